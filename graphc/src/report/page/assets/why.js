// Why tensors lie as they do: what the best plan with each other layout would cost.

/** Differences of objectives that are none: the planner's own precision. */
const SAME_OBJECTIVE = 1e-6;

/** The objective that others are held against: the best plan with the layout that is chosen, planned as the others are. */
function baseOf(plan, reasons) {
  const chosen = reasons.find((reason) => reason.chosen && reason.seconds !== null);
  return chosen ? chosen.seconds : plan.summary.planner.objective_seconds;
}

/** All reasons of a plan with what each is held against. */
const reasonsOf = (plan) => plan.why.flatMap((why) => [why.choices, why.backward].flatMap((reasons) => reasons.map((reason) => [reason, baseOf(plan, reasons)])));

/** The most that any layout on the page costs, in seconds: bars of all tensors and of both plans have this scale. */
const mostCost = (plans) => Math.max(0, ...plans.flatMap(reasonsOf).map(([reason, base]) => (reason.seconds === null ? 0 : Math.abs(reason.seconds - base))));

/** A difference of objectives in words. */
function moreText(more, base) {
  if (Math.abs(more) <= base * SAME_OBJECTIVE) return "as much";
  const [by, share] = [seconds(Math.abs(more)), percent(Math.abs(more) / base, 3)];
  const sign = more > 0 ? "+" : "−";
  return by.startsWith("<") ? `${by} ${more > 0 ? "more" : "less"}` : `${sign}${by} (${share.startsWith("<") ? "" : sign}${share})`;
}

function reasonRow(plan, base, reason, most) {
  const more = reason.seconds === null ? null : reason.seconds - base;
  const changed = reason.changes > 0 && [`${reason.changes} more: `, reason.changed.flatMap((name, at) => [at ? ", " : "", tensorLink(plan, name), numberedPart(plan, name)]), reason.changes > reason.changed.length && ", …"];
  const width = most > 0 && more !== null ? (Math.abs(more) / most) * 90 : 0;
  return {
    chosen: reason.chosen,
    cells: [reason.layout + (reason.chosen ? " (chosen)" : ""),
      more === null ? "no plan" : seconds(reason.seconds),
      more === null ? "" : reason.chosen ? "–" : moreText(more, base),
      more === null ? visible(reason.error) : [!reason.chosen && el("i", { class: more < 0 ? "cost less" : "cost", data: { seconds: String(more) }, style: { width: `${width}px` } }), " ", changed]],
  };
}

/** What differences are held against, where that is not the plan's own objective. */
function baseText(plan, base) {
  const own = plan.summary.planner.objective_seconds;
  if (Math.abs(base - own) <= own * SAME_OBJECTIVE) return `Held against the plan's own objective, ${seconds(own)}.`;
  return `Held against ${seconds(base)}: the best plan with this tensor as it is, all else planned anew. The plan's own objective is ${seconds(own)}: ${moreText(own - base, base)}.`;
}

function reasonTable(plan, caption, reasons) {
  const [base, most] = [baseOf(plan, reasons), mostCost(page.plans)];
  const scale = most > 0 ? ` (bars to ${seconds(most)})` : "";
  return [el("p", { class: "note base" }, baseText(plan, base)), table(caption, [["layout"], ["objective", true], ["more than as it is", true], [`what changes with it, or why there is no plan${scale}`]],
    reasons.map((reason) => reasonRow(plan, base, reason, most)), { scroll: false, name: "reasons" })];
}

const whyTables = (plan, why) => why.error
  ? el("p", { class: "note" }, `No alternatives: ${visible(why.error)}`)
  : [reasonTable(plan, "The best plan with each layout", why.choices),
    why.backward.length > 0 && reasonTable(plan, "For the backward pass", why.backward),
    why.unplanned > 0 && el("p", { class: "note" }, `There was no time for ${some(why.unplanned, "more layout")}: `, el("code", null, "graphc explain"), " plans all.")];

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

/** How much was explained, in which time, and how to have more. */
function explainedNote(plan) {
  const [done, left] = [plan.why.length, plan.unexplained.length];
  const more = "`graphc report --explain N` plans those of the N heaviest tensors, `graphc explain PLAN TENSOR` those of one.";
  if (done === 0) return el("p", { class: "note" }, prose(`No alternatives were asked for: ${more}`));
  const most = mostCost(page.plans);
  const scale = most > 0 ? ` The longest bar is ${seconds(most)} a step; all bars have one scale.` : "";
  const within = plan.why_seconds === null || left === 0 ? "" : ` In ${seconds(plan.why_seconds)} there was time for ${done} of the ${done + left} heaviest: ${more}`;
  return el("p", { class: "note" }, `${some(done, "tensor")} in each layout, all else planned anew.${scale}`, prose(within));
}

/** Of a tensor that has a number for a name what makes it. */
function partOf(plan, tensor) {
  const maker = tensor.startsWith("%") && makerOf(plan).get(plan.places.tensors.findIndex(([name]) => name === tensor));
  return maker && el("span", { class: "note" }, ` of ${visible(plan.parts[maker[PART]])} ${maker[OP]}`);
}

/** The part of the model that a tensor belongs to which has a number for a name, by the first event that makes it. */
function numberedPart(plan, name) {
  const part = name.startsWith("%") && partsByName(plan).get(name);
  return part && el("span", { class: "note" }, ` (${visible(part)})`);
}

/** The part of the model by the name of what an event makes. */
const partsByName = remembered((plan) => {
  const all = new Map();
  const nameOf = ([index, name]) => (index === null ? name : plan.places.tensors[index][0]);
  plan.timeline.actors.forEach((rows, program) => rows.forEach((row) => row[TOUCHED][MADE].forEach((number) => {
    const name = nameOf(plan.timeline.registers[program][number]);
    if (plan.parts[row[PART_OF]] && !all.has(name)) all.set(name, plan.parts[row[PART_OF]]);
  })));
  return all;
});

/** Where else on the page an explained tensor is. */
const whyLinks = (plan, { tensor }) => el("p", { class: "note" }, tensorLink(plan, tensor), " is in What goes where.");

function why(plan) {
  const fixed = plan.summary.strategy !== "auto" && plan.why.length > 0;
  return el("div", null, planner(plan),
    plan.asked.length > 0 && askedTable(plan),
    fixed && el("p", { class: "note" }, `This plan is of the strategy ${plan.summary.strategy}, and its objective ${seconds(plan.summary.planner.objective_seconds)}; the alternatives are the planner's own, the chosen layout among them.`),
    explainedNote(plan),
    plan.why.map((one, at) => opened(["Why ", named(one.tensor), partOf(plan, one.tensor)], () => [whyLinks(plan, one), whyTables(plan, one)].flat(3).filter(Boolean), `why:${keyOf(plan, one.tensor)}`, at === 0)));
}
