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

/** Links to the events that make a tensor or update it, to those that read it, and to those that communicate it; nothing where no event does. */
function eventLinks(plan, index) {
  const shown = step.all[page.plans.indexOf(plan)];
  const communicates = (row) => plan.timeline.doings[row[DOING]] === "communication";
  const does = (which, between) => (row, program) => communicates(row) === between && touches(plan, program, row, which, index);
  const kinds = [["made by", isVariable(plan.places.tensors[index]) ? () => false : does(MADE, false)], ["updated by", (row, program) => touches(plan, program, row, UPDATED, index)],
    ["read first by", does(READ, false)], ["communicated by", (row, program) => does(MADE, true)(row, program) || does(READ, true)(row, program)]];
  const first = ([text, wanted]) => {
    for (const lane of shown.every) {
      const event = firstEvent(lane, wanted);
      if (event) return [[text, wanted, lane.doings[event.actor]]];
    }
    return [];
  };
  const found = kinds.flatMap(first);
  return found.length > 0 && [el("dt", null, "events"), el("dd", { data: { events: "" } }, found.map(([text, wanted, row], at) =>
    [at ? " · " : "", `${text} `, jump(actorText(plan, row), () => showEvent(shown, wanted), visible(row[NAME]))]))];
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
    opened("parts by rank, as a table", () => partTable(plan, tensor), `parts:${keyOf(plan, tensor[0])}`),
    boxingTable(plan, index));
}
