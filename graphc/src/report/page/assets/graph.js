// The graph of ops, folded by layer: what each layer reads from others, and its ops when it is opened.

/** Columns of a row of `graph.ops`. */
const [OP, LAYER_OF, PART, READS, MAKES] = [0, 1, 2, 3, 4];

/** Ops by layer, null of those of none; made once for a plan. */
const opsByLayer = remembered((plan) => {
  const all = new Map();
  plan.graph.ops.forEach((op) => all.set(op[LAYER_OF], [...(all.get(op[LAYER_OF]) || []), op]));
  return all;
});

/** The op that makes each tensor. */
const makerOf = remembered((plan) => new Map(plan.graph.ops.flatMap((op) => op[MAKES].map((tensor) => [tensor, op]))));

/** Boxing steps by tensor. */
const boxingOf = remembered((plan) => {
  const all = new Map();
  plan.places.boxing.forEach((step) => all.set(step[0], [...(all.get(step[0]) || []), step]));
  return all;
});

/** The boxing steps by which a tensor comes into the layout in which it is read, in order; none where it lies so. */
function boxingTo(plan, tensor, layout) {
  const steps = boxingOf(plan).get(tensor) || [];
  const own = plan.places.tensors[tensor][3];
  const ways = new Map([[own, []]]);
  for (const at of ways.keys()) {
    if (at === layout) break;
    for (const step of steps) if (step[2] === at && !ways.has(step[3])) ways.set(step[3], [...ways.get(at), step]);
  }
  return ways.get(layout) || [];
}

/** What an op reads that some other op makes, and what else: parameters, inputs. */
function splitReads(plan, op) {
  const made = makerOf(plan);
  return [op[READS].filter(([tensor]) => made.has(tensor)), op[READS].filter(([tensor]) => !made.has(tensor))];
}

/** Tensors that a layer reads from others, each once in each layout. */
function entering(plan, number) {
  const seen = new Map();
  for (const op of opsByLayer(plan).get(number) || []) {
    for (const [tensor, layout] of splitReads(plan, op)[0]) {
      if (makerOf(plan).get(tensor)[LAYER_OF] !== number) seen.set(`${tensor} ${layout}`, [tensor, layout]);
    }
  }
  return [...seen.values()];
}

const badgeText = (steps) => steps.map(([, kind, , , axis]) => (axis === null ? kind : `${kind} ${axis}`)).join(", ");

/** What enters a layer: tensor, layout, and the boxing on the way. */
function enteringLine(plan, number, title = null) {
  const all = entering(plan, number);
  const line = ([tensor, layout]) => {
    const steps = boxingTo(plan, tensor, layout);
    const own = plan.places.tensors[tensor];
    const part = plan.parts[makerOf(plan).get(tensor)[PART]];
    return el("span", { class: "edge" }, "↓ ", part && [named(part), " "], jump(named(own[0]), () => showTensor(plan, own)), " ",
      el("span", { class: "mono" }, typeText(plan, tensor)), " ", chips(plan.places.layouts[own[3]]),
      steps.length > 0 && [el("span", { class: "boxing" }, badgeText(steps)), " ", chips(plan.places.layouts[layout])]);
  };
  const more = all.length > 4 && el("span", { class: "note" }, ` and ${all.length - 4} more`);
  return all.length > 0 && el("div", { class: title ? "entering between" : "entering" }, title, all.slice(0, 4).map(line), more);
}

/** "9 all_gather, 2 slice" of the boxing that the ops of a layer ask for. */
function boxingCount(plan, number) {
  const kinds = new Map();
  const seen = new Set();
  for (const op of opsByLayer(plan).get(number) || []) {
    for (const [tensor, layout] of op[READS].filter(([t, l]) => !seen.has(`${t} ${l}`))) {
      seen.add(`${tensor} ${layout}`);
      boxingTo(plan, tensor, layout).forEach(([, kind]) => kinds.set(kind, (kinds.get(kind) || 0) + 1));
    }
  }
  return [...kinds].map(([kind, n]) => `${n} ${kind}`).join(", ");
}

/** The layouts of what the ops of a layer make, as a strip of cells. */
function layoutStrip(plan, number) {
  const cells = (opsByLayer(plan).get(number) || []).flatMap((op) => op[MAKES].slice(0, 1));
  return el("span", { class: "strip-of-ops", "aria-hidden": "true" }, cells.slice(0, 120).map((tensor) =>
    el("i", null, split(plan.places.layouts[plan.places.tensors[tensor][3]]).map((sbp) => el("b", { style: { background: `var(--${hue(sbp)})` } })))));
}

function layerOps(plan, number, key) {
  const ops = opsByLayer(plan).get(number) || [];
  const name = number === null ? "ops of no layer" : plan.places.layers[number].name;
  const boxes = boxingCount(plan, number);
  const title = [named(name), el("span", { class: "count" }, `${some(ops.length, "op")}${boxes ? ` · boxing: ${boxes}` : ""}`), layoutStrip(plan, number)];
  return [enteringLine(plan, number), opened(title, () => dag(plan, number, ops), key)];
}

/** Layers alike that follow each other, folded into one; those without ops left out. */
function foldedOps(plan) {
  const with_ops = plan.places.layers.filter((_, number) => opsByLayer(plan).has(number));
  return folded(with_ops);
}

function opsGroup(plan, layers) {
  const number = (layer) => plan.places.layers.indexOf(layer);
  const key = (layer) => `ops:${keyOf(plan, layer.name)}`;
  if (layers.length === 1) return el("div", { class: "ops" }, layerOps(plan, number(layers[0]), key(layers[0])));
  const boxes = boxingCount(plan, number(layers[1]));
  const between = enteringLine(plan, number(layers[1]), "between two of them: ");
  const title = [named(layers[0].name), " … ", named(layers[layers.length - 1].name),
    el("span", { class: "count" }, `${layers.length} layers alike, stage ${layers[0].stage}${boxes ? ` · boxing in each: ${boxes}` : ""}`), layoutStrip(plan, number(layers[0])), between];
  return el("div", { class: "ops" }, enteringLine(plan, number(layers[0])),
    opened(title, () => el("div", { class: "inner" }, layers.map((layer) => el("div", { class: "ops" }, layerOps(plan, number(layer), key(layer))))),
      `alike:${keyOf(plan, layers[0].name)}`));
}

/** Opens the ops of a layer, and goes there. */
function showOps(plan, number) {
  const layer = plan.places.layers[number];
  const group = foldedOps(plan).find((layers) => layers.includes(layer));
  if (!group) return address.show("graph");
  if (group.length > 1) reveal("graph", `alike:${keyOf(plan, group[0].name)}`);
  reveal("graph", `ops:${keyOf(plan, layer.name)}`);
}

function graph(plan) {
  return el("div", { class: "graph" },
    legend([...HUES, ["var(--communication)", "boxing on the way"]]), opsByLayer(plan).has(null) && el("div", { class: "ops" }, layerOps(plan, null, `ops:${keyOf(plan, "")}`)),
    foldedOps(plan).map((layers) => opsGroup(plan, layers)));
}
