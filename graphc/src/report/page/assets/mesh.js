// Ranks by stage, and which part of a tensor each of them holds.

const hue = (sbp) => (sbp === "B" ? "b" : sbp[0] === "P" ? "p" : `s${Math.min(3, Number(sbp.slice(2, -1)))}`);
const split = (layout) => layout.split(", ");
const dimOf = (sbp) => (sbp[0] === "S" ? Number(sbp.slice(2, -1)) : null);

const chips = (layout) => split(layout).map((sbp) => el("span", { class: `chip ${sbp[0]}${sbp[0] === "S" ? Math.min(3, dimOf(sbp)) : ""}` }, sbp));

/** The part of a tensor at a place of its mesh: ranges of its dims, cut axis by axis, the first parts taking what is left over. */
function part(shape, hierarchy, layout, place) {
  const ranges = shape.map((extent) => [0, extent]);
  const coordinates = [];
  for (let axis = hierarchy.length - 1, rest = place; axis >= 0; axis--) {
    coordinates[axis] = rest % hierarchy[axis];
    rest = Math.floor(rest / hierarchy[axis]);
  }
  split(layout).forEach((sbp, axis) => {
    const dim = dimOf(sbp);
    if (dim === null || dim >= shape.length) return;
    const [from, to] = ranges[dim];
    const [whole, extra] = [Math.floor((to - from) / hierarchy[axis]), (to - from) % hierarchy[axis]];
    const at = coordinates[axis];
    const start = from + at * whole + Math.min(at, extra);
    ranges[dim] = [start, start + whole + (at < extra ? 1 : 0)];
  });
  return ranges;
}

function ranksOf(stage) {
  return stage.ranks.flatMap(([first, n, step]) => Array.from({ length: n }, (_, at) => first + at * step));
}

function programOf(places, rank) {
  let before = 0;
  for (const [program, n] of places.programs) {
    before += n;
    if (rank < before) return program;
  }
  return 0;
}

/** The ranks of a plan, with `show(tensor)`, which colours them by the part that they hold. */
function mesh(plan) {
  const { places } = plan;
  const all = plan.summary.ranks;
  const cell = all <= 32 ? 38 : all <= 128 ? 26 : 11;
  const blocks = places.stages.map((stage, number) => block(plan, stage, number, cell));
  const axes = places.mesh.map((extent, axis) => `axis ${axis}: ${extent}`).join(", ");
  const nodes = places.node ? `; shades alternate from node to node, ${places.node} ranks each` : "";
  const figure = el("figure", { class: "mesh" },
    el("figcaption", null, `${some(all, "rank")} as ${times(places.mesh)} (${axes})${nodes}`),
    el("div", { class: "stages" }, blocks.map((one) => one.figure)),
    opened("as a table", () => stageTable(plan), `table:${keyOf(plan, "stages")}`));
  const show = (tensor) => blocks.forEach((one, stage) => one.show(tensor && tensor[4] === stage ? tensor : null));
  return { figure, show };
}

const layersOf = (places, number) => places.layers.filter((layer) => layer.stage === number && layer.name !== "the rest").length;

function stageTable(plan) {
  const { places, memory } = plan;
  const arena = (number) => Math.max(0, ...memory.programs.filter((one) => one.stage === number).map((one) => one.arena_bytes));
  return table("Ranks by stage", [["stage", true], ["ranks"], ["mesh"], ["layers", true], ["memory of a rank", true]],
    places.stages.map((stage, number) => [String(number), runs(stage.ranks), times(stage.hierarchy), String(layersOf(places, number)), bytes(arena(number))]));
}

function block(plan, stage, number, cell) {
  const { places } = plan;
  const ranks = ranksOf(stage);
  const columns = stage.hierarchy.length > 1 ? stage.hierarchy[stage.hierarchy.length - 1] : Math.min(16, ranks.length);
  const rows = Math.ceil(ranks.length / columns);
  const image = svg("svg", { width: columns * cell, height: rows * cell, role: "img", "aria-label": `Stage ${number}: ranks ${runs(stage.ranks)}` });
  const cells = ranks.map((rank, place) => {
    const [x, y] = [(place % columns) * cell, Math.floor(place / columns) * cell];
    const node = places.node ? Math.floor(rank / places.node) : 0;
    const shape = svg("rect", { x, y, width: cell, height: cell, rx: cell > 20 ? 4 : 1.5, class: node % 2 ? "odd" : null, data: { rank } });
    const text = cell > 20 ? svg("text", { x: x + cell / 2, y: y + cell / 2 }, String(rank)) : null;
    image.append(...[shape, text].filter(Boolean));
    return { rank, place, node, shape, text };
  });
  let shown = null;
  image.addEventListener("mousemove", (event) => {
    const found = event.target.dataset && cells.find((one) => String(one.rank) === event.target.dataset.rank);
    if (found) tip.show(event, rankText(plan, stage, number, found, shown));
  });
  image.addEventListener("mouseleave", tip.hide);
  const show = (tensor) => {
    shown = tensor;
    const parts = tensor && partsOf(plan, stage, tensor);
    for (const { place, node, shape, text } of cells) {
      const index = parts && parts.number[place];
      shape.setAttribute("class", parts ? "part" : node % 2 ? "odd" : "");
      shape.style.fill = parts ? shade(index, parts.count) : "";
      if (text) text.setAttribute("class", !parts ? "" : lightness(index, parts.count) < 50 ? "on dark" : "on");
    }
  };
  const caption = [el("b", null, `stage ${number}`), `ranks ${runs(stage.ranks)}`, `mesh ${times(stage.hierarchy)}`, some(layersOf(places, number), "layer")];
  return { show, figure: el("div", { class: "stage", style: { "max-width": `${Math.max(104, columns * cell)}px` } },
    el("div", { class: "caption" }, caption.map((text) => el("div", null, text))), image) };
}

/** Different parts in different shades of the colour of ranks, equal parts in the same one. */
const shade = (index, count) => `hsl(78 62% ${lightness(index, count)}%)`;
const lightness = (index, count) => Math.round(80 - 54 * (count > 1 ? index / (count - 1) : 0));

function partsOf(plan, stage, tensor) {
  const known = new Map();
  const [shape, layout] = [plan.places.types[tensor[2]][2], plan.places.layouts[tensor[3]]];
  const number = ranksOf(stage).map((_, place) => {
    const key = JSON.stringify(part(shape, stage.hierarchy, layout, place));
    if (!known.has(key)) known.set(key, known.size);
    return known.get(key);
  });
  return { number, count: known.size };
}

function rankText(plan, stage, number, { rank, place, node }, tensor) {
  const program = programOf(plan.places, rank);
  const filled = plan.memory.programs.find((one) => one.program === program);
  const lines = [`rank ${rank} · stage ${number} · node ${node} · program ${program}`];
  if (filled) lines.push(`${bytes(filled.arena_bytes)} of memory`);
  if (tensor) {
    const [shape, layout] = [plan.places.types[tensor[2]][2], plan.places.layouts[tensor[3]]];
    const ranges = part(shape, stage.hierarchy, layout, place).map(([from, to]) => `${from}:${to}`).join(", ");
    lines.push(`${visible(tensor[0])}[${ranges}]${layout.includes("P") ? ", a summand" : ""}`);
  }
  return lines.join("\n");
}
