// What differs between two plans.

/** A row of figures. Seconds of steps of other batches cannot be better or worse than each other, nor sums over more stages. */
function figureRow(comparable, [name, before, after]) {
  const form = name.includes("memory") ? bytes : seconds;
  const [text, kind] = change(before, after);
  return [name, form(before), form(after), el("span", { class: comparable(name) ? kind : "" }, text)];
}

/** Whether a figure of one plan is better than the other's where it is less. */
function comparableFigures([a, b]) {
  const batches = a.summary.samples === b.summary.samples;
  const stages = a.summary.stages === b.summary.stages;
  return (name) => batches && (stages || !["objective", "bound"].includes(name));
}

/** Figures in the order in which they decide: what a step takes before what the planner adds up. */
const FIGURES = ["predicted step", "peak memory", "objective", "bound"];

/** What the step is made of, the means of all ranks: kernels, communication beside none, waiting. */
function shareRows(plans, comparable) {
  return ["kernels", "communication not hidden", "waiting"].flatMap((name, at) => {
    const [before, after] = plans.map(({ summary }) => summary.shares[at] * summary.step_seconds).map((one) => (one > NO_SHARE * plans[0].summary.step_seconds ? one : 0));
    const [text, kind] = change(before, after);
    return before + after > 0 ? [[el("span", { class: "part-of" }, name), seconds(before), seconds(after), el("span", { class: comparable(name) ? kind : "" }, before > 0 ? text : "new")]] : [];
  });
}

/** The share of the machines' peak, of which more is better. */
function peakRow([a, b], comparable) {
  const [before, after] = [a.summary.mfu, b.summary.mfu];
  if (before === null || after === null) return [];
  const points = (after - before) * 100;
  const kind = !comparable("peak") || points === 0 ? "" : points > 0 ? "better" : "worse";
  return [["of the machines' peak", percent(before), percent(after), el("span", { class: kind }, `${points > 0 ? "+" : ""}${points.toFixed(1)} points`)]];
}

/** All figures. */
function figureRows(plans, figures) {
  const comparable = comparableFigures(plans);
  const known = FIGURES.map((name) => figures.find(([other]) => other === name)).filter(Boolean);
  const [step, ...rest] = known.map((row) => figureRow(comparable, row));
  return [...paceRow(plans), step, ...shareRows(plans, comparable), ...peakRow(plans, comparable), ...rest];
}

/** Bytes that a rank sends and receives by collectives of a kind, the mean of all ranks. */
function bytesOfKind(plan, kind) {
  const own = kind === "send_recv" ? "send" : kind;
  const sums = [...spent(plan, "all").communication].filter(([key]) => JSON.parse(key)[1] === own);
  const sent = sums.reduce((sum, [, one]) => sum + one.sums[1], 0);
  return sent > 0 ? bytes(sent) : "–";
}

/** Samples per second of both plans, of which more is better. */
function paceRow([a, b]) {
  const paces = [a, b].map(({ summary: { samples, step_seconds: step } }) => (samples && step > 0 ? samples / step : null));
  if (paces.includes(null)) return [];
  const [text] = change(paces[0], paces[1]);
  const kind = paces[1] === paces[0] ? "" : paces[1] > paces[0] ? "better" : "worse";
  return [["samples/s", rate(paces[0]), rate(paces[1]), el("span", { class: kind, data: { pace: "" } }, text)]];
}

/** What to know before seconds are compared. */
function comparisonNote([a, b]) {
  const batches = a.summary.samples !== b.summary.samples && a.summary.samples && b.summary.samples;
  const notes = [
    batches && `A step of A is ${some(a.summary.samples, "sample")}, one of B ${count(b.summary.samples)}: compare samples per second, not seconds or bytes of a step.`,
    a.summary.stages !== b.summary.stages && "Objective and bound add up all stages, so those of different numbers of stages cannot be compared: the predicted step can.",
  ].filter(Boolean);
  return notes.length > 0 && el("p", { class: "note" }, notes.join(" "));
}

const worded = (value) => (value === null ? "none" : typeof value === "string" ? value : JSON.stringify(value));

/** Tensors of one layer that are shown at once; of more the layer is folded. */
const MOST_UNFOLDED = 12;

/** The layer of each tensor. */
const layerOfTensor = remembered((plan) => new Map(plan.places.layers.flatMap((layer) => layer.tensors.map((tensor) => [tensor, layer]))));

/** The plan that lists a tensor, the tensor's number in it, and its layer. */
function placeOf(plans, name) {
  const plan = plans.find((one) => tensorNumbers(one).has(name));
  const index = plan && tensorNumbers(plan).get(name);
  return plan ? { plan, layer: layerOfTensor(plan).get(index) } : { plan: plans[0], layer: undefined };
}

/** What a tensor is called in its layer: its name without the layer's, or its place among the layer's tensors where the name has none. */
function nameInLayer(plan, layer, name) {
  if (!layer || layer.name === "the rest") return name;
  return name.includes(layer.name) ? name.replace(layer.name, "*") : `#${layer.tensors.indexOf(tensorNumbers(plan).get(name))}`;
}

/** Where a layout says on which stage it is. */
const OF_STAGE = / of stage \d+$/;

/** Differences by form of layers: those of layers alike that are the same, under one name, are one row. */
function foldDifferences(plans, tensors) {
  const forms = new Map();
  for (const [name, a, b] of tensors) {
    const { plan, layer } = placeOf(plans, name);
    const form = layer ? `${plans.indexOf(plan)} ${layer.form}` : "";
    if (!forms.has(form)) forms.set(form, { plan, layers: new Set(), names: new Set(), rows: new Map() });
    const known = forms.get(form);
    if (layer) known.layers.add(layer);
    const own = nameInLayer(plan, layer, name);
    known.names.add(own);
    // Layers alike lie on stages of their own: that alone makes no other row.
    const key = JSON.stringify([own, ...[a, b].map((text) => text && text.replace(OF_STAGE, ""))]);
    known.rows.set(key, [...(known.rows.get(key) || []), [name, a, b]]);
  }
  return [...forms.values()];
}

/** What differs in layers alike, folded where it is much. */
function layerDifferences({ plan, layers, names, rows }, few) {
  const alike = plan.places.layers.filter((layer) => layers.has(layer));
  const title = alike.length === 0 ? "tensors of no layer" : alike.length === 1 ? [named(alike[0].name)] : [named(alike[0].name), " … ", named(alike[alike.length - 1].name)];
  const all = [...rows.values()];
  const name = (same) => [tensorLink(plan, same[0][0]), same.length > 1 && ` in ${same.length} layers`];
  const made = () => table("Tensors that lie in other ways", [["tensor"], ["A"], ["B"]],
    byName(all).map((same) => [el("span", null, name(same)), layoutOfAll(same, 1, 2), layoutOfAll(same, 2, 1)]));
  const count = `${some(names.size, "tensor")}${alike.length > 1 ? ` each, ${alike.length} layers` : ""}`;
  return opened([title, el("span", { class: "count" }, ` ${count}`)], made, `differs:${alike.length ? alike[0].name : ""}`, few);
}

/** The layout that a tensor has in all layers of a row, beside the other plan's. */
function layoutOfAll(same, which, other) {
  const stages = new Set(same.map((row) => row[which]));
  return el("span", null, layoutCell(same[0][which], same[0][other]), stages.size > 1 && " and on others' stages");
}

/** A layout as it is compared: "(B, S(0)) on 2x2 of stage 0", without the place where the other's is the same. */
function layoutCell(layout, other) {
  const [, sbp, place] = /^\((.*)\) on (.*)$/.exec(layout || "") || [];
  if (sbp === undefined) return layout === null ? "none" : layout;
  return [chips(sbp), other !== null && other.endsWith(`) on ${place}`) ? "" : ` on ${place}`];
}

/** Tensors that have a name before those that have a number. */
const byName = (rows) => rows.slice().sort(([[a]], [[b]]) => a.startsWith("%") - b.startsWith("%"));

function difference(page) {
  const d = page.difference;
  const columns = (what) => [[what], ["A"], ["B"]];
  const same = (rows, made) => (rows.length ? made : null);
  const code = (value) => named(worded(value));
  const forms = foldDifferences(page.plans, d.tensors);
  const few = forms.reduce((sum, one) => sum + one.rows.size, 0) <= MOST_UNFOLDED;
  return el("section", { id: "differs" },
    el("h2", null, "What differs"),
    el("p", { class: "lead" }, `${some(d.tensors.length, "tensor")} in other layouts, ${some(d.inputs.length, "option")} said otherwise.`),
    el("div", { class: "pair" },
      el("div", null,
        table("Figures", [["figure"], ["A", true], ["B", true], ["change", true]],
          figureRows(page.plans, d.figures)),
        comparisonNote(page.plans),
        same(d.collectives, table("Collectives of a step, and the bytes of a rank", [["kind"], ["A", true], ["B", true], ["A, bytes", true], ["B, bytes", true]],
          d.collectives.map(([kind, a, b]) => [kind, count(a), count(b), ...page.plans.map((plan) => bytesOfKind(plan, kind))])))),
      el("div", null,
        same(d.inputs, table("Options and other inputs", columns("option"), d.inputs.map(([name, a, b]) => [named(name), code(a), code(b)]))),
        same(forms, el("div", { class: "differing" }, el("p", { class: "note" }, "Tensors that lie in other ways, by layer; those of layers alike are one row."), forms.map((one) => layerDifferences(one, few)))))));
}
