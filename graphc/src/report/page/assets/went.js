// How a run went: curves of its metrics, and measured beside predicted seconds.

/** Curves of shares of samples or steps: their axis goes from nothing to all, however little of it a run has seen. */
const isShare = (name) => /(^|[ ._])(top\d+|accuracy|skipped)$/.test(name);

/** The ends of the axis of a curve between two values. */
function ends(name, low, high) {
  if (isShare(name) && low >= 0 && high <= 1) return [0, 1];
  const some = (high - low || Math.abs(high) || 1) * (high === low ? 0.5 : 0.04);
  return [low >= 0 ? Math.max(0, low - some) : low - some, high + some];
}

/** A prediction further from all that was measured than this is told, but not drawn. */
const FAR = 4;

function curve(name, steps, values, predicted = null) {
  const points = steps.map((step, at) => [step, values[at]]).filter(([, value]) => value !== null);
  const frame = { left: 62, right: 12, top: 12, bottom: 28, width: room(440), height: 200 };
  const measured = [Math.min(...points.map((one) => one[1])), Math.max(...points.map((one) => one[1]))];
  const near = predicted !== null && predicted < measured[1] * FAR && predicted > measured[0] / FAR;
  const [low, high] = ends(name, ...(near ? [Math.min(measured[0], predicted), Math.max(measured[1], predicted)] : measured));
  const span = high - low;
  const [first, last] = [points[0][0], points[points.length - 1][0]];
  const x = (step) => frame.left + ((step - first) / (last - first || 1)) * (frame.width - frame.left - frame.right);
  const y = (value) => frame.height - frame.bottom - ((value - low) / span) * (frame.height - frame.top - frame.bottom);
  const image = svg("svg", { viewBox: `0 0 ${frame.width} ${frame.height}`, role: "img", "aria-label": `${visible(name)} by step, from ${points[0][1]} to ${points[points.length - 1][1]}` });
  for (const at of ticksBetween(low, low + span, 4)) {
    image.append(svg("line", { class: "grid", x1: frame.left, x2: frame.width - frame.right, y1: y(at), y2: y(at) }),
      svg("text", { x: frame.left - 6, y: y(at) + 4, "text-anchor": "end" }, isShare(name) && span === 1 ? percent(at, 0) : Number(at.toPrecision(4)).toString()));
  }
  for (const at of ticksBetween(first, last, 6)) {
    if (Number.isInteger(at)) image.append(svg("text", { x: x(at), y: frame.height - 8, "text-anchor": "middle" }, String(at)));
  }
  if (near) {
    image.append(svg("line", { class: "predicted", x1: frame.left, x2: frame.width - frame.right, y1: y(predicted), y2: y(predicted) }),
      svg("text", { class: "strong", x: frame.width - frame.right, y: y(predicted) + (y(predicted) < frame.top + 20 ? 14 : -6), "text-anchor": "end" }, "predicted"));
  }
  image.append(svg("path", { class: "curve", d: points.map(([step, value], at) => `${at ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("") }));
  if (points.length <= 40) image.append(...points.map(([step, value]) => svg("circle", { cx: x(step), cy: y(value), r: 2.2, style: { fill: "var(--accent)" } })));
  image.addEventListener("mousemove", (event) => {
    const box = image.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * frame.width;
    const nearest = points.reduce((best, one) => (Math.abs(x(one[0]) - place) < Math.abs(x(best[0]) - place) ? one : best));
    tip.show(event, `step ${nearest[0]}: ${visible(name)} ${Number(nearest[1].toPrecision(6))}`);
  });
  image.addEventListener("mouseleave", tip.hide);
  const end = points[points.length - 1][1];
  return el("figure", { data: { curve: name, last: String(end) } },
    el("figcaption", null, el("bdi", null, visible(name)), `: ${Number(points[0][1].toPrecision(5))} to ${Number(end.toPrecision(5))}`), image);
}

/** Rows of communication, in the colour of which they are drawn. */
const COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "receive"];

/** The name of a measured actor, as a link to its first event. */
function measuredActor(name) {
  const [shown] = step.all;
  const wanted = (row) => row[NAME] === name || name.startsWith(`${row[NAME]} and `);
  return shown.timeline.actors.some((actors) => actors.some(wanted)) ? jump(named(name), () => showEvent(shown, wanted)) : named(name);
}

/** What a sum leaves of a whole; nothing where rounding alone does. */
const leftOver = (whole, sum) => (whole - sum > whole * NO_SHARE ? whole - sum : 0);

/** Measured by predicted. */
const ratio = (predicted, measured) => (predicted > 0 ? (measured / predicted).toFixed(2) : "–");

/** Seconds of a step of some ranks by op and kind: measured beside predicted, their sums, and what of the step lies outside of all actors. */
function measuredTable({ step: whole }, rows, whose) {
  const sum = (at) => rows.reduce((all, row) => all + row[at], 0);
  const outside = [1, 2].map((at) => leftOver(whole[at - 1], sum(at)));
  const most = Math.max(1e-30, ...rows.flatMap(([, a, b]) => [a, b]));
  const both = (name, a, b) => {
    const background = `var(--${COLLECTIVES.includes(name) ? "communication" : "kernel"})`;
    return [el("i", { class: "inline predicted-bar", style: { width: `${(a / most) * 110}px`, background } }), el("br"), el("i", { class: "inline", style: { width: `${(b / most) * 110}px`, background } })];
  };
  const plain = (name, a, b) => [name, seconds(a), seconds(b), ratio(a, b), ""];
  return table(`Seconds of a step of ${whose}, by op and kind`, [["op"], ["predicted", true], ["measured", true], ["ratio", true], [""]],
    [{ chosen: true, cells: plain("the step", ...whole) }, plain("outside of actors", ...outside), plain("all actors", sum(1), sum(2)),
      ...rows.map(([name, a, b]) => [visible(name), seconds(a), seconds(b), ratio(a, b), both(name, a, b)])]);
}

function measured(data, batch) {
  const { step, rows, ranks, actors } = data;
  const [text, kind] = change(step[0], step[1]);
  const off = actors.filter(([, a]) => a > 0).sort((a, b) => b[2] - b[1] - (a[2] - a[1])).slice(0, 100);
  return el("div", null,
    el("p", { class: "lead" }, `A step was measured at ${seconds(step[1])}, the median of the profile, and predicted at ${seconds(step[0])} (`, el("span", { class: kind }, text), ")",
      batch > 0 && step[1] > 0 && `: ${rate(batch / step[1])} samples/s instead of ${rate(batch / step[0])}`, "."),
    el("p", { class: "note outside" }, "Each row holds measured against predicted seconds of the same ranks. Outside of actors lies what no actor's time holds: waiting for other ranks, which is not in the time of communication, starting actors, and what the program does between steps."),
    legend([["var(--kernel)", "kernels"], ["var(--communication)", "communication"]]),
    el("p", { class: "note" }, "Of two bars the pale one is predicted, the full one is measured."),
    el("div", { class: "pair" },
      el("div", null, measuredTable(data, rows, ranks.length > 0 ? "a rank, the mean of all" : "a rank"),
        ranks.map((one) => opened(`of ${ranksNamed(one.ranks)}`, () => measuredTable(data, one.rows, ranksNamed(one.ranks)), `measured:${runs(one.ranks)}`))),
      off.length > 0 && table("Actors that take most above their prediction", [["actor"], ["predicted", true], ["measured", true], ["ratio", true]],
        off.map(([name, a, b]) => [measuredActor(name), seconds(a), seconds(b), ratio(a, b)]))));
}

function paceText({ predicted, measured }) {
  const times = measured / predicted;
  return el("span", { class: "pace", data: { measured: String(measured), predicted: String(predicted) } },
    `${rate(measured)} samples/s, ${times >= 10 || times < 0.1 ? `${times.toPrecision(2)} times` : percent(times, 0) + " of"} the ${rate(predicted)} that the plan predicts.`);
}

function went(page) {
  const data = page.went;
  const first = (name) => ["loss", "samples/s"].indexOf(name) + 1 || 3;
  const names = Object.keys(data.curves).sort((a, b) => first(a) - first(b) || a.localeCompare(b));
  const predicted = (name) => (name === "samples/s" && data.pace ? data.pace.predicted : null);
  return el("section", { id: "went" }, el("h2", null, "How it went"),
    data.count > 0 && el("p", { class: "lead" }, `${some(data.count, "step")} of a run`,
      ...(data.pace ? [", ", paceText(data.pace)] : [": train with --measure speed for samples per second."])),
    names.length > 0 && el("div", { class: "curves" }, names.map((name) => curve(name, data.steps, data.curves[name], predicted(name)))),
    data.measured && measured(data.measured, page.plans[0].summary.samples));
}
