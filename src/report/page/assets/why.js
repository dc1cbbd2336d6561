// Why tensors lie as they do: what the best plan with each other layout would cost.

function reasonRow(plan, reason, most) {
  const objective = plan.summary.planner.objective_seconds;
  const more = reason.seconds === null ? null : reason.seconds / objective - 1;
  const changed = reason.changes ? `${reason.changes} more: ${reason.changed.map(visible).join(", ")}${reason.changes > reason.changed.length ? ", …" : ""}` : "";
  return {
    chosen: reason.chosen,
    cells: [reason.layout + (reason.chosen ? " (chosen)" : ""),
      more === null ? "no plan" : seconds(reason.seconds), more === null ? "" : `${more < 0 ? "" : "+"}${percent(more, 3)}`,
      more === null ? visible(reason.error) : [el("i", { class: "inline", style: { width: `${most > 0 ? Math.max(0, more / most) * 90 : 0}px` } }), " ", el("bdi", null, changed)]],
  };
}

function reasonTable(plan, caption, reasons) {
  const objective = plan.summary.planner.objective_seconds;
  const most = Math.max(0, ...reasons.map((reason) => (reason.seconds === null ? 0 : reason.seconds / objective - 1)));
  return table(caption, [["layout"], ["objective", true], ["more", true], ["what changes with it, or why there is no plan"]],
    reasons.map((reason) => reasonRow(plan, reason, most)), { scroll: false });
}

const whyTables = (plan, why) => why.error
  ? el("p", { class: "note" }, `No alternatives: ${visible(why.error)}`)
  : [reasonTable(plan, "The best plan with each layout", why.choices),
    why.backward.length > 0 && reasonTable(plan, "For the backward pass", why.backward)];

function planner(plan) {
  const p = plan.summary.planner;
  const proof = p.status === "optimal" ? "No plan of this problem has a lower one: the bound meets it."
    : `No plan has an objective below ${seconds(p.bound_seconds)}: at most ${percent(p.gap, 2)} is left to gain.`;
  const pipeline = plan.summary.pipeline;
  return [
    el("p", { class: "note" }, objectiveNote(plan)),
    el("p", { class: "note" }, `${proof} ${count(p.variables)} variables, ${count(p.constraints)} constraints.`),
    pipeline && el("p", { class: "note" }, `Stages were chosen: layers ${pipeline.layers.join(" + ")}, ${seconds(pipeline.seconds)} by the costs of layers, bound ${seconds(pipeline.bound_seconds)}.`),
  ];
}

/** What pins, a strategy and a limit cost: the best plan without each. */
function askedTable(plan) {
  const objective = plan.summary.planner.objective_seconds;
  const row = ({ what, seconds: without, error }) => [visible(what), without === null ? "no plan" : seconds(without),
    without === null ? visible(error) : `${without > objective ? "+" : ""}${percent(without / objective - 1, 3)}`];
  return table("What was asked for, and the best plan without it", [["asked for"], ["objective without", true], ["change", true]],
    plan.asked.map(row), { scroll: false });
}

function why(plan) {
  const none = "None were computed for this page: `graphc report --explain N` plans those of the N heaviest tensors, `graphc explain PLAN TENSOR` those of one.";
  const fixed = plan.summary.strategy !== "auto" && plan.why.length > 0;
  return el("div", null, planner(plan),
    plan.asked.length > 0 && askedTable(plan),
    fixed && el("p", { class: "note" }, `This plan is of the strategy ${plan.summary.strategy}; the alternatives are the planner's own, so they may cost less.`),
    plan.why.length ? plan.why.map((one, at) => opened(["Why ", named(one.tensor)], () => [whyTables(plan, one)].flat().filter(Boolean), at === 0))
      : el("p", { class: "note" }, none));
}
