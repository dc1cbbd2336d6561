// What a step costs: by stage, by axis and kind of communication, by op.

const axisName = (plan, axis) => {
  if (axis === null) return "point to point";
  const [extent, between] = plan.costs.axes[axis] || [0, false];
  return `axis ${axis} (${extent}, ${between ? "between nodes" : "inside nodes"})`;
};

/** Ranks whose shares of the step differ by less than this are alike. */
const ALIKE = 1 / 200;

/** Classes of one stage that spend a step alike, each group with the ranks of all. */
const costGroups = remembered((plan) => {
  const step = plan.summary.step_seconds || 1e-9;
  const groups = [];
  for (const one of plan.costs.classes) {
    const same = ({ classes: [first] }) => first.stage === one.stage && ["compute", "exposed", "waiting"].every((name) => Math.abs(first[name] - one[name]) <= step * ALIKE);
    const known = groups.find(same);
    if (known) known.classes.push(one);
    else groups.push({ classes: [one] });
  }
  groups.forEach((group) => { group.ranks = ranksNamed(joinedRuns(group.classes.map((one) => one.of))); });
  return groups;
});

/** The means of all ranks, or what those of one group spend. */
function spent(plan, chosen) {
  const classes = chosen === "all" ? plan.costs.classes : costGroups(plan)[Number(chosen)].classes;
  const ranks = classes.reduce((all, one) => all + one.ranks, 0) || 1;
  const sums = { compute: 0, exposed: 0, hidden: 0, waiting: 0, communication: new Map(), kernels: new Map() };
  for (const one of classes) {
    const weight = one.ranks / ranks;
    for (const name of ["compute", "exposed", "hidden", "waiting"]) sums[name] += one[name] * weight;
    const add = (map, key, values, actor) => {
      const known = map.get(key) || { sums: values.map(() => 0), rank: one.rank, actor };
      known.sums = known.sums.map((sum, at) => sum + values[at] * weight);
      map.set(key, known);
    };
    one.communication.forEach(([axis, kind, n, sent, s, actor]) => add(sums.communication, JSON.stringify([axis, kind]), [n, sent, s], actor));
    one.kernels.forEach(([op, n, flops, moved, s, actor]) => add(sums.kernels, op, [n, flops, moved, s], actor));
  }
  return sums;
}

/** The row of an actor in the timeline of a rank; none where that is not shown. */
function actorRow(plan, { rank, actor }) {
  const row = plan.timeline.rows.find((one) => one.rank === rank);
  return row && plan.timeline.actors[row.program][actor];
}

/** Shows the event of the actor that takes longest of a sum. */
function showLongest(plan, sum) {
  const wanted = actorRow(plan, sum);
  if (wanted) showEvent(step.all[page.plans.indexOf(plan)], (row) => row === wanted);
}

/** A link to the event of the actor that takes longest of a sum. */
function eventLink(plan, text, sum) {
  const row = actorRow(plan, sum);
  return row ? jump(text, () => showLongest(plan, sum), `When: ${visible(row[NAME])}, which takes longest`) : text;
}

/** Groups of ranks that are drawn; of more it is said how many there are. */
const MOST_GROUPS = 24;

function splitBars(plan) {
  const step = plan.summary.step_seconds;
  const parts = [["compute", "kernel"], ["exposed", "communication"], ["waiting", "idle"]];
  const row = (label, one) => {
    const text = parts.map(([name]) => `${name} ${seconds(one[name])}`).join(", ");
    return [el("span", null, label), el("div", { class: "bar", role: "img", "aria-label": `${label}: ${text}`, title: `${text}; hidden communication ${seconds(one.hidden)}` },
      parts.map(([name, background]) => el("i", { style: { width: `${(one[name] / step) * 100}%`, background: `var(--${background})` } })))];
  };
  const groups = costGroups(plan);
  const more = groups.length > MOST_GROUPS ? ` ${groups.length - MOST_GROUPS} more kinds of ranks are in the table.` : "";
  return el("figure", null, el("figcaption", null, `A step of ${seconds(step)}, by stage`),
    legend([["var(--kernel)", "kernels"], ["var(--communication)", "communication that is not hidden"], ["var(--idle)", "waiting (bubble)"]]),
    el("div", { class: "split" }, groups.slice(0, MOST_GROUPS).map((one, at) => row(`stage ${one.classes[0].stage} · ${one.ranks}`, spent(plan, at))),
      el("span"), shareAxis(step)),
    el("p", { class: "note" }, `The whole width is the step; rows are shares of a rank's time. Ranks that differ by less than half a percent of the step are one row.${more}`),
    opened("as a table", () => table("Seconds of a rank's step", [["stage"], ["ranks"], ["kernels", true], ["not hidden", true], ["hidden", true], ["waiting", true]],
      groups.map((one, at) => [String(one.classes[0].stage), one.ranks, ...["compute", "exposed", "hidden", "waiting"].map((name) => seconds(spent(plan, at)[name]))])), `table:${keyOf(plan, "costs")}`));
}

/** The axis of bars as wide as a step: percent, and the seconds that they are. */
const shareAxis = (step) => el("div", { class: "shares", "aria-hidden": "true" },
  [0, 0.25, 0.5, 0.75, 1].map((share) => el("span", null, `${share * 100} %`, el("br"), share === 0 ? "" : seconds(step * share))));

/** Seconds of a rank; of messages that go on beside the rank there are none. */
const ownSeconds = (kind, s, most) => (s === 0 && (kind === "send" || kind === "receive") ? el("span", { title: "Messages between stages take the link's time, not the rank's. Who needs one that is under way waits." }, "in waiting")
  : inline(s / most, seconds(s), "communication"));

/** A number with a bar of a colour of the theme. */
function inline(share, text, background) {
  return [text, " ", el("i", { class: "inline", style: { width: `${Math.round(share * 70)}px`, background: `var(--${background})` } })];
}

function communicationTable(plan, sums) {
  const rows = [...sums.communication].map(([key, one]) => [...JSON.parse(key), ...one.sums, one]).sort((a, b) => b[4] - a[4]);
  const most = Math.max(1e-30, ...rows.map((row) => row[4]));
  return table("Communication of a rank in a step", [["kind"], ["seconds", true], ["over"], ["messages", true], ["bytes", true]],
    rows.map(([axis, kind, n, sent, s, one]) => [eventLink(plan, kind, one), ownSeconds(kind, s, most), axisName(plan, axis), count(n), sent > 0 ? bytes(sent) : "–"]));
}

function kernelTable(plan, sums) {
  const rows = [...sums.kernels].map(([op, one]) => [op, ...one.sums, one]).sort((a, b) => b[4] - a[4]);
  const most = Math.max(1e-30, ...rows.map((row) => row[4]));
  return table("Kernels of a rank in a step, by op", [["op"], ["seconds", true], ["launches", true], ["FLOPs", true], ["bytes moved", true]],
    rows.map(([op, n, flops, moved, s, one]) => [eventLink(plan, op, one), inline(s / most, seconds(s), "kernel"), count(n), flops > 0 ? metric(flops, "FLOP") : "–", moved > 0 ? bytes(moved) : "–"]));
}

function costs(plan) {
  const body = el("div", { class: "pair" });
  const draw = (chosen) => {
    const sums = spent(plan, chosen);
    body.replaceChildren(
      el("div", null, sums.communication.size ? communicationTable(plan, sums) : el("p", { class: "note" }, "Nothing is communicated."), kernelTable(plan, sums)),
      roofline(plan, sums));
  };
  const groups = costGroups(plan);
  const others = () => address.all("costs").filter((key) => !key.startsWith(keyOf(plan, "")));
  const choose = el("select", { "aria-label": "Whose costs", on: { change: ({ target: { value } }) => {
    draw(value);
    address.put("costs", value === "all" ? others() : [...others(), keyOf(plan, value)]);
  } } },
    el("option", { value: "all" }, "the mean of all ranks"),
    groups.map((one, at) => el("option", { value: at }, `stage ${one.classes[0].stage}, ${one.ranks}`)));
  address.on("costs", (keys) => {
    const [value] = namesOf(plan, keys).filter((key) => groups[key]);
    choose.value = value === undefined ? "all" : value;
    draw(choose.value);
  });
  draw("all");
  return el("div", null, splitBars(plan), groups.length > 1 && el("p", { class: "controls" }, "Below: ", choose), body);
}
