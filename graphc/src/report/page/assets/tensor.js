// One tensor: where it lies, what it takes, how it is communicated.

function boxingTable(plan, index) {
  const { places } = plan;
  const steps = places.boxing.filter(([tensor]) => tensor === index);
  if (!steps.length) return el("p", { class: "note" }, "It is never brought to another layout.");
  return table("Brought to other layouts", [["by"], ["from"], ["to"], ["axis", true], ["bytes of a rank", true], ["a step", true]],
    steps.map(([, kind, from, to, axis, moved, often]) => [kind, el("span", null, chips(places.layouts[from])), el("span", null, chips(places.layouts[to])),
      axis === null ? "–" : String(axis), bytes(moved), `${often} x`]));
}

/** Ranks up to which parts are listed. */
const MOST_PARTS = 256;

/** Which part of a tensor each rank of its stage holds. */
function partTable(plan, tensor) {
  const stage = plan.places.stages[tensor[4]];
  const [shape, layout] = [plan.places.types[tensor[2]][2], plan.places.layouts[tensor[3]]];
  const rows = ranksOf(stage).slice(0, MOST_PARTS).map((rank, place) =>
    [String(rank), el("span", { class: "mono" }, `[${part(shape, stage.hierarchy, layout, place).map(([from, to]) => `${from}:${to}`).join(", ")}]`)]);
  return table(layout.includes("P") ? "The part of each rank, a summand" : "The part of each rank", [["rank", true], ["part"]], rows);
}

/** Links to the events that make, change, communicate and read a tensor; nothing where no event does. */
function eventLinks(plan, index) {
  const shown = step.all[page.plans.indexOf(plan)];
  const doing = (row) => plan.timeline.doings[row[1]];
  const communicates = (row) => doing(row) === "communication";
  const makes = (row) => row[5].includes(index) && !communicates(row);
  const kinds = [
    ["made", (row) => makes(row) && doing(row) !== "update"],
    ["updated", (row) => makes(row) && doing(row) === "update"],
    ["communicated", (row) => communicates(row) && (row[5].includes(index) || row[6].includes(index))],
    ["read", (row) => row[6].includes(index) && !communicates(row)],
  ];
  const found = kinds.filter(([, wanted]) => plan.timeline.actors.some((actors) => actors.some(wanted)));
  return found.length > 0 && [el("dt", null, "events"), el("dd", null, found.map(([text, wanted], at) => [at ? " · " : "", jump(text, () => showEvent(shown, wanted))]))];
}

function tensorPanel(plan, tensor, close) {
  const { places } = plan;
  const index = places.tensors.indexOf(tensor);
  const [dtype, , shape] = places.types[tensor[2]];
  const stage = places.stages[tensor[4]];
  const layer = places.layers.findIndex((one) => one.tensors.includes(index));
  const why = plan.why.find((one) => one.tensor === tensor[0]);
  const marks = marksOf(tensor[5]);
  return el("div", { class: "panel", role: "region", "aria-label": "The chosen tensor" },
    el("h4", null, named(tensor[0]), partOf(plan, tensor[0]), " ", el("button", { type: "button", on: { click: close } }, "close")),
    el("dl", { class: "facts" },
      el("dt", null, "kind"), el("dd", null, `${tensor[1]} of ${dtype}[${shape.join(", ")}]`, marks.map((text) => [" ", el("span", { class: "badge" }, text)])),
      el("dt", null, "layout"), el("dd", null, chips(places.layouts[tensor[3]]), ` on ${times(stage.hierarchy)}, ranks ${runs(stage.ranks)} (stage ${tensor[4]})`),
      el("dt", null, "bytes"), el("dd", null, bytesText(plan, tensor)),
      el("dt", null, "layer"), el("dd", null, layer < 0 ? "none" : layerLinks(plan, layer)),
      eventLinks(plan, index)),
    why && whyTables(plan, why),
    opened("parts by rank, as a table", () => partTable(plan, tensor), false, `parts:${keyOf(plan, "")}`),
    boxingTable(plan, index));
}
