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

/** Tensors that have a name before those that have a number. */
const byName = (tensors) => tensors.slice().sort(([a], [b]) => a.startsWith("%") - b.startsWith("%"));

/** Tensors of layers that differ alike, as one row: the name with `*` for the layer's number, and how many there are. */
function byLayerName(tensors) {
  const groups = new Map();
  for (const [name, a, b] of byName(tensors)) {
    const key = JSON.stringify([name.replace(/(^|\.)\d+(?=\.)/g, "$1*"), a, b]);
    groups.set(key, [...(groups.get(key) || []), name]);
  }
  return [...groups].map(([key, names]) => [...JSON.parse(key), names]);
}

/** The tensors of a row: one by its name, several by their pattern. */
const tensorsCell = ([pattern, , , names]) => (names.length === 1 ? tensorLink(page.plans.find((plan) => tensorNumbers(plan).has(names[0])) || page.plans[0], names[0])
  : [named(pattern), el("span", { class: "note" }, ` ${names.length} alike`)]);

function difference(page) {
  const d = page.difference;
  const columns = (what) => [[what], ["A"], ["B"]];
  const same = (rows, made) => (rows.length ? made : null);
  const code = (value) => named(worded(value));
  return el("section", { id: "differs" },
    el("h2", null, "What differs"),
    el("p", { class: "lead" }, `${some(d.tensors.length, "tensor")} in other layouts, ${some(d.inputs.length, "option")} said otherwise.`),
    el("div", { class: "pair" },
      el("div", null,
        table("Figures", [["figure"], ["A", true], ["B", true], ["change", true]],
          [...paceRow(page.plans), ...d.figures.map((row) => figureRow(comparableFigures(page.plans), row))]),
        comparisonNote(page.plans),
        same(d.collectives, table("Collectives of a step", [["kind"], ["A", true], ["B", true]],
          d.collectives.map(([kind, a, b]) => [kind, count(a), count(b)])))),
      el("div", null,
        same(d.inputs, table("Options and other inputs", columns("option"), d.inputs.map(([name, a, b]) => [named(name), code(a), code(b)]))),
        same(d.tensors, table("Tensors that lie in other ways", columns("tensor"),
          byLayerName(d.tensors).slice(0, 2000).map((row) => [tensorsCell(row), worded(row[1]), worded(row[2])]))))));
}
