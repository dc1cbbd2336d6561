// What a step costs: by stage, by axis and kind of communication, by op.

const axisName = (plan, axis) => {
  if (axis === null) return "point to point";
  const [extent, between] = plan.costs.axes[axis] || [0, false];
  return `axis ${axis} (${extent}, ${between ? "between nodes" : "inside nodes"})`;
};

/** The means of all ranks, or what one class spends. */
function spent(plan, chosen) {
  const classes = chosen === "all" ? plan.costs.classes : [plan.costs.classes[Number(chosen)]];
  const ranks = classes.reduce((all, one) => all + one.ranks, 0) || 1;
  const sums = { compute: 0, exposed: 0, hidden: 0, waiting: 0, communication: new Map(), kernels: new Map() };
  for (const one of classes) {
    const weight = one.ranks / ranks;
    for (const name of ["compute", "exposed", "hidden", "waiting"]) sums[name] += one[name] * weight;
    const add = (map, key, values) => map.set(key, (map.get(key) || values.map(() => 0)).map((sum, at) => sum + values[at] * weight));
    one.communication.forEach(([axis, kind, ...values]) => add(sums.communication, JSON.stringify([axis, kind]), values));
    one.kernels.forEach(([op, ...values]) => add(sums.kernels, op, values));
  }
  return sums;
}

/** Classes of a stage whose shares of a step are the same to half a percent, as one: the first, with the ranks of all. */
function alikeClasses(plan) {
  const step = plan.summary.step_seconds || 1e-30;
  const groups = new Map();
  for (const one of plan.costs.classes) {
    const key = [one.stage, ...["compute", "exposed", "waiting"].map((name) => Math.round((one[name] / step) * 200))].join();
    groups.set(key, [...(groups.get(key) || []), one]);
  }
  return [...groups.values()].map((all) => ({ ...all[0], runs: joined(all.flatMap((one) => one.runs)) }));
}

const classText = (one) => `stage ${one.stage} · ${ranksOfRuns(one.runs)}`;

function splitBars(plan) {
  const step = plan.summary.step_seconds;
  const parts = [["compute", "kernel"], ["exposed", "communication"], ["waiting", "idle"]];
  const row = (label, one) => {
    const text = parts.map(([name]) => `${name} ${seconds(one[name])}`).join(", ");
    return [el("span", null, label), el("div", { class: "bar", role: "img", "aria-label": `${label}: ${text}`, title: `${text}; hidden communication ${seconds(one.hidden)}` },
      parts.map(([name, background]) => el("i", { style: { width: `${(one[name] / step) * 100}%`, background: `var(--${background})` } })))];
  };
  const classes = plan.costs.classes;
  return el("figure", null, el("figcaption", null, `A step of ${seconds(step)}, by stage`),
    legend([["var(--kernel)", "kernels"], ["var(--communication)", "communication that is not hidden"], ["var(--idle)", "waiting (bubble)"]]),
    el("div", { class: "split" }, alikeClasses(plan).slice(0, 24).map((one) => row(classText(one), one)),
      el("span"), shareAxis(step)),
    el("p", { class: "note" }, "The whole width is the step; rows are shares of a rank's time."),
    opened("as a table", () => table("Seconds of a rank's step", [["stage"], ["ranks"], ["kernels", true], ["not hidden", true], ["hidden", true], ["waiting", true]],
      classes.map((one) => [String(one.stage), ranksOfRuns(one.runs), ...["compute", "exposed", "hidden", "waiting"].map((name) => seconds(one[name]))])), false, `costs:${keyOf(plan, "")}`));
}

/** The axis of bars as wide as a step: percent, and the seconds that they are. */
const shareAxis = (step) => el("div", { class: "shares", "aria-hidden": "true" },
  [0, 0.25, 0.5, 0.75, 1].map((share) => el("span", null, `${share * 100} %`, el("br"), share === 0 ? "" : seconds(step * share))));

/** Seconds of a rank; of messages that go on beside the rank there are none. */
const ownSeconds = (kind, s, most) => (s === 0 && (kind === "send" || kind === "receive") ? el("span", { title: "Messages between stages take the link's time, not the rank's. Who needs one that is under way waits." }, "in waiting")
  : inline(s / most, seconds(s)));

function inline(share, text) {
  return [text, " ", el("i", { class: "inline", style: { width: `${Math.round(share * 70)}px` } })];
}

function communicationTable(plan, sums) {
  const rows = [...sums.communication].map(([key, values]) => [...JSON.parse(key), ...values]).sort((a, b) => b[4] - a[4]);
  const most = Math.max(1e-30, ...rows.map((row) => row[4]));
  return table("Communication of a rank in a step", [["over"], ["kind"], ["messages", true], ["bytes sent", true], ["seconds", true]],
    rows.map(([axis, kind, n, sent, s]) => [axisName(plan, axis), opLink(plan, kind), count(n), sent > 0 ? bytes(sent) + (kind === "receive" ? " taken" : "") : "–", ownSeconds(kind, s, most)]));
}

/** An op, or a kind of communication, as a link to its first event. */
function opLink(plan, op) {
  const word = op.split(" ")[0];
  const wanted = (row) => row[0].split(" ")[0] === word || opOf(row) === word;
  const known = plan.timeline.actors.some((actors) => actors.some(wanted));
  return known ? jump(op, () => showEvent(step.all[page.plans.indexOf(plan)], wanted)) : op;
}

function kernelTable(plan, sums) {
  const rows = [...sums.kernels].map(([op, values]) => [op, ...values]).sort((a, b) => b[4] - a[4]);
  const most = Math.max(1e-30, ...rows.map((row) => row[4]));
  return table("Kernels of a rank in a step, by op", [["op"], ["launches", true], ["FLOPs", true], ["bytes moved", true], ["seconds", true]],
    rows.map(([op, n, flops, moved, s]) => [opLink(plan, op), count(n), flops > 0 ? metric(flops, "FLOP") : "–", moved > 0 ? bytes(moved) : "–", inline(s / most, seconds(s))]));
}

function costs(plan) {
  const body = el("div", { class: "pair" });
  const draw = (chosen) => {
    const sums = spent(plan, chosen);
    body.replaceChildren(
      el("div", null, sums.communication.size ? communicationTable(plan, sums) : el("p", { class: "note" }, "Nothing is communicated."), kernelTable(plan, sums)),
      roofline(plan, sums));
  };
  const classes = plan.costs.classes;
  const choose = el("select", { "aria-label": "Whose costs", on: { change: (event) => draw(event.target.value) } },
    el("option", { value: "all" }, "the mean of all ranks"),
    classes.map((one, at) => el("option", { value: at }, classText(one))));
  draw("all");
  return el("div", null, splitBars(plan), classes.length > 1 && el("p", { class: "controls" }, "Below: ", choose), body);
}
