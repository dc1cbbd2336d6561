// What differs between two plans.

function figureRow([name, before, after]) {
  const form = name.includes("memory") ? bytes : seconds;
  const [text, kind] = change(before, after);
  return [name, form(before), form(after), el("span", { class: kind }, text)];
}

const worded = (value) => (value === null ? "none" : typeof value === "string" ? value : JSON.stringify(value));

/** Tensors that have a name before those that have a number. */
const byName = (tensors) => tensors.slice().sort(([a], [b]) => a.startsWith("%") - b.startsWith("%"));

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
        table("Figures", [["figure"], ["A", true], ["B", true], ["change", true]], d.figures.map(figureRow)),
        same(d.collectives, table("Collectives of a step", [["kind"], ["A", true], ["B", true]],
          d.collectives.map(([kind, a, b]) => [kind, count(a), count(b)])))),
      el("div", null,
        same(d.inputs, table("Options and other inputs", columns("option"), d.inputs.map(([name, a, b]) => [named(name), code(a), code(b)]))),
        same(d.tensors, table("Tensors that lie in other ways", columns("tensor"),
          byName(d.tensors).slice(0, 2000).map(([name, a, b]) => [named(name), worded(a), worded(b)]))))));
}
