// One tensor: where it lies, what it takes, how it is communicated.

function boxingTable(plan, index) {
  const { places } = plan;
  const steps = places.boxing.filter(([tensor]) => tensor === index);
  if (!steps.length) return el("p", { class: "note" }, "It is never brought to another layout.");
  return table("Brought to other layouts", [["by"], ["from"], ["to"], ["axis", true], ["bytes of a rank", true], ["a step", true]],
    steps.map(([, kind, from, to, axis, moved, often]) => [kind, el("span", null, chips(places.layouts[from])), el("span", null, chips(places.layouts[to])),
      axis === null ? "–" : String(axis), bytes(moved), `${often} x`]));
}

function tensorPanel(plan, tensor, close) {
  const { places } = plan;
  const index = places.tensors.indexOf(tensor);
  const [dtype, size, shape] = places.types[tensor[2]];
  const whole = shape.reduce((all, extent) => all * extent, size);
  const stage = places.stages[tensor[4]];
  const layer = places.layers.find((one) => one.tensors.includes(index));
  const why = plan.why.find((one) => one.tensor === tensor[0]);
  const marks = marksOf(tensor[5]);
  return el("div", { class: "panel", role: "region", "aria-label": "The chosen tensor" },
    el("h4", null, named(tensor[0]), " ", el("button", { type: "button", on: { click: close } }, "close")),
    el("dl", { class: "facts" },
      el("dt", null, "kind"), el("dd", null, `${tensor[1]} of ${dtype}[${shape.join(", ")}]`, marks.map((text) => [" ", el("span", { class: "badge" }, text)])),
      el("dt", null, "layout"), el("dd", null, chips(places.layouts[tensor[3]]), ` on ${times(stage.hierarchy)}, ranks ${runs(stage.ranks)} (stage ${tensor[4]})`),
      el("dt", null, "bytes"), el("dd", null, `${bytes(shardBytes(plan, tensor))} on a rank of ${bytes(whole)} in all`),
      el("dt", null, "layer"), el("dd", null, layer ? named(layer.name) : "none")),
    why && whyTables(plan, why),
    boxingTable(plan, index));
}
