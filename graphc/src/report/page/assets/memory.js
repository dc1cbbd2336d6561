// Bytes that are alive over the step, stacked by what they are for.

/** The frame of one of so many charts in a row. */
const frameOf = (columns) => ({ left: 62, right: 12, top: 18, bottom: 26, width: room([1340, 660, 470, 330][columns - 1]), height: [260, 260, 220, 190][columns - 1] });

/** Programs whose arenas differ by less than this share are alike; of different stages only where each kind of bytes does so too. */
const ALIKE_ARENAS = 0.02;

/** The most bytes of each kind that a program ever has. */
const mostOfKinds = remembered((program) => program.moments.reduce((most, [, kinds]) => most.map((one, at) => Math.max(one, kinds[at])), program.moments[0][1]));

/** Whether two programs fill their memory alike. */
function fillsAlike(a, b) {
  const near = (x, y) => Math.abs(x - y) <= a.arena_bytes * ALIKE_ARENAS;
  return near(a.arena_bytes, b.arena_bytes) && (a.stage === b.stage || mostOfKinds(a).every((most, at) => near(most, mostOfKinds(b)[at])));
}

/** Programs that are alike, each group with the fullest of them, which is drawn, and the ranks of all. */
const memoryGroups = remembered((plan) => {
  const groups = [];
  for (const one of plan.memory.programs) {
    const known = groups.find(({ all: [first] }) => fillsAlike(first, one));
    if (known) known.all.push(one);
    else groups.push({ all: [one] });
  }
  for (const group of groups) {
    group.fullest = group.all.reduce((best, one) => (one.arena_bytes > best.arena_bytes ? one : best));
    group.ranks = ranksNamed(joinedRuns(group.all.map((one) => one.ranks)));
    const stages = joinedRuns([[...new Set(group.all.map((one) => one.stage))].map((stage) => [stage, 1, 1])]);
    group.stages = `${stages.length > 1 || stages[0][1] > 1 ? "stages" : "stage"} ${runs(stages)}`;
  }
  return groups;
});

/** Whose memory a chart is of, and how much it is. */
function memoryTitle({ all, fullest, ranks, stages }, peak) {
  const least = Math.min(...all.map((one) => one.arena_bytes));
  const arena = bytes(least) === bytes(fullest.arena_bytes) ? bytes(least) : `${bytes(least)} to ${bytes(fullest.arena_bytes)}`;
  return `S${stages.slice(1)}, ${ranks}: peak ${bytes(peak)}, arena ${arena}${all.length > 1 ? ` (drawn: ${ranksNamed(fullest.ranks)}${stages.startsWith("stages") ? ` of stage ${fullest.stage}` : ""}, the fullest)` : ""}`;
}

function memoryFigure(plan, group, scale, frame) {
  const filled = group.fullest;
  const { memory } = plan;
  const whole = plan.summary.step_seconds || 1e-9;
  const wide = frame.width - frame.left - frame.right;
  const high = frame.height - frame.top - frame.bottom;
  const x = (seconds) => frame.left + (seconds / whole) * wide;
  const y = (bytes) => frame.top + high - (bytes / scale) * high;
  const { moments } = filled;
  const total = (moment) => moment[1].reduce((all, one) => all + one, 0);
  const image = svg("svg", { viewBox: `0 0 ${frame.width} ${frame.height}`, role: "img",
    "aria-label": `Memory of ${group.stages}, ${group.ranks}, over the step; a table follows` });
  for (const at of ticks(scale, 4, 2)) {
    if (at > scale) continue;
    image.append(svg("line", { class: "grid", x1: frame.left, x2: frame.width - frame.right, y1: y(at), y2: y(at) }),
      svg("text", { x: frame.left - 5, y: y(at) + 4, "text-anchor": "end" }, bytes(at)));
  }
  for (const at of ticks(whole, frame.width / 120)) {
    if (at < whole * 0.97) image.append(svg("text", { x: x(at), y: frame.height - 8, "text-anchor": at === 0 ? "start" : "middle" }, instant(at, ticks(whole, frame.width / 120)[1])));
  }
  areas(image, memory, moments, whole, x, y);
  limits(image, memory, frame, scale, y);
  const peak = moments[filled.peak];
  const [px, py] = [x(peak[0]), y(total(peak))];
  image.append(svg("circle", { cx: px, cy: py, r: 3.5, style: { fill: "var(--ink)" } }),
    svg("text", { class: "strong", x: Math.min(frame.width - 90, Math.max(frame.left + 40, px)), y: Math.max(11, py - 7), "text-anchor": "middle" }, `peak ${bytes(total(peak))}`));
  hover(image, plan, filled, frame, x, total, whole);
  return el("figure", { data: { peak: String(total(peak)), arenas: JSON.stringify(group.all.map((one) => one.arena_bytes)) } },
    el("figcaption", null, memoryTitle(group, total(peak))),
    image,
    opened("what fills the peak, as a table", () => peakTable(plan, filled), `table:${keyOf(plan, `peak${filled.program}`)}`));
}

/** One area for each kind, each on those before it, as steps. */
function areas(image, memory, moments, whole, x, y) {
  const floor = moments.map(() => 0);
  memory.kinds.forEach((kind, at) => {
    if (moments.every((moment) => moment[1][at] === 0)) return;
    let [over, under] = ["", ""];
    moments.forEach((moment, n) => {
      const to = n + 1 < moments.length ? moments[n + 1][0] : whole;
      const [low, top] = [floor[n], floor[n] + moment[1][at]];
      over += `${n ? "L" : "M"}${x(moment[0]).toFixed(1)} ${y(top).toFixed(1)}H${x(to).toFixed(1)}`;
      under = `L${x(to).toFixed(1)} ${y(low).toFixed(1)}H${x(moment[0]).toFixed(1)}` + under;
      floor[n] = top;
    });
    image.append(svg("path", { d: over + under + "Z", style: { fill: `var(--${kind})` } }));
  });
}

function limits(image, memory, frame, scale, y) {
  const line = (at, text, dash) => at <= scale && image.append(
    svg("line", { x1: frame.left, x2: frame.width - frame.right, y1: y(at), y2: y(at), "stroke-width": 1.4, "stroke-dasharray": dash, style: { stroke: "var(--limit)" } }),
    svg("text", { x: frame.width - frame.right, y: y(at) + 12, "text-anchor": "end" }, text));
  line(memory.device_bytes, `the device has ${bytes(memory.device_bytes)}`, "none");
  if (memory.limit_bytes) line(memory.limit_bytes, `limit ${bytes(memory.limit_bytes)}`, "5 3");
}

function hover(image, plan, filled, frame, x, total, whole) {
  const cross = svg("line", { class: "cross", y1: frame.top, y2: frame.height - frame.bottom, visibility: "hidden" });
  image.append(cross);
  const momentAt = (event) => {
    const box = image.getBoundingClientRect();
    const at = ((((event.clientX - box.left) / box.width) * frame.width - frame.left) / (frame.width - frame.left - frame.right)) * whole;
    return filled.moments[Math.max(0, filled.moments.findLastIndex((one) => one[0] <= at))];
  };
  image.addEventListener("click", (event) => address.go(() => showMoment(plan, filled, momentAt(event))));
  image.addEventListener("mousemove", (event) => {
    const moment = momentAt(event);
    cross.setAttribute("x1", x(moment[0]));
    cross.setAttribute("x2", x(moment[0]));
    cross.setAttribute("visibility", "visible");
    tip.show(event, momentText(plan, filled, moment, total(moment)));
  });
  image.addEventListener("mouseleave", () => {
    tip.hide();
    cross.setAttribute("visibility", "hidden");
  });
}

function momentText(plan, filled, [at, kinds, actor, largest], total) {
  const lines = [`${bytes(total)} at ${instant(at, plan.summary.step_seconds / 1000)}, in ${visible((plan.timeline.actors[filled.program][actor] || ["an actor"])[0])}`];
  plan.memory.kinds.forEach((kind, n) => kinds[n] > 0 && lines.push(`${kind} ${bytes(kinds[n])}`));
  lines.push("largest:");
  largest.forEach(([name, size, n]) => lines.push(`  ${bytes(size)}  ${visible(filled.names[name])}${n > 1 ? ` (${n} of them)` : ""}`));
  return lines.join("\n");
}

/** The event of a moment, in the timeline of the first ranks of the program. */
function showMoment(plan, filled, [at, , actor]) {
  const shown = step.all[page.plans.indexOf(plan)];
  const row = (plan.timeline.actors[filled.program] || [])[actor];
  if (row) showEvent(shown, (other, program) => program === filled.program && other === row, "event", at / shown.tick);
}

function peakTable(plan, filled) {
  const [at, kinds, actor, largest] = filled.moments[filled.peak];
  const row = (plan.timeline.actors[filled.program] || [])[actor];
  const rows = plan.memory.kinds.map((kind, at) => [kind, kinds[at]]).filter(([, size]) => size > 0).sort((a, b) => b[1] - a[1]);
  const when = row && el("p", { class: "note" }, `At ${instant(at, plan.summary.step_seconds / 1000)}, in `, jump(named(row[NAME]), () => showMoment(plan, filled, filled.moments[filled.peak])));
  return el("div", { class: "pair" },
    el("div", null, when, table("By kind", [["kind"], ["bytes", true]], rows.map(([kind, size]) => [kind, bytes(size)]), { scroll: false })),
    table("Largest", [["tensor"], ["bytes", true], ["contents", true]], largest.map(([name, size, n]) => [tensorLink(plan, filled.names[name]), bytes(size), String(n)]), { scroll: false }));
}

/** The top of all charts: the device's memory where that is near, else what is used and some air. */
function memoryScale(plans) {
  const used = Math.max(...plans.flatMap((plan) => plan.memory.programs.map((one) => one.arena_bytes)), 1);
  const limit = Math.max(...plans.map((plan) => plan.memory.device_bytes));
  return limit <= used * 2.5 ? Math.max(limit, used) * 1.06 : used * 1.12;
}

function memory(plan, scale, single) {
  const { programs } = plan.memory;
  const groups = memoryGroups(plan);
  // Beside another plan charts have half the width, and half of that where there are many.
  const beside = single ? Math.min(3, groups.length || 1) : groups.length > 2 ? 2 : 1;
  const beyond = plan.memory.device_bytes > scale;
  const used = plan.memory.kinds.filter((_, at) => programs.some((one) => one.moments.some((moment) => moment[1][at] > 0)));
  return el("div", null,
    legend(used.map((kind) => [`var(--${kind})`, kind === "copy" ? "copy of a parameter" : kind])),
    beyond && el("p", { class: "note" }, `The device has ${bytes(plan.memory.device_bytes)}, far above what is drawn.`),
    el("div", { class: `memories in${beside}` }, groups.map((one) => memoryFigure(plan, one, scale, frameOf(single ? beside : 2 * beside)))),
    plan.memory.left_out > 0 && el("p", { class: "note" }, `${plan.memory.left_out} more programs, with less memory, are not shown.`));
}
