// The ops of one layer as a graph from above, laid out in ranks: boxes of ops, edges of tensors in the colour of their layout.

const BOX = { width: 168, high: 36, weight: 15, gapX: 26, gapY: 28 };

/** Ops, and what comes from other layers, as nodes: `op` of a row, or `from` of a tensor, with the nodes that each reads. */
function nodesOf(plan, ops) {
  const nodes = ops.map((op) => ({ op, reads: [], weights: splitReads(plan, op)[1] }));
  const byOp = new Map(nodes.map((node) => [node.op, node]));
  const outside = new Map();
  for (const node of nodes) {
    for (const [tensor, layout] of splitReads(plan, node.op)[0]) {
      const maker = makerOf(plan).get(tensor);
      if (!byOp.has(maker) && !outside.has(tensor)) outside.set(tensor, { op: null, from: tensor, reads: [], weights: [] });
      node.reads.push({ node: byOp.get(maker) || outside.get(tensor), tensor, layout });
    }
  }
  return [...outside.values(), ...nodes];
}

/** Ranks of nodes: each below all that it reads; what comes from outside right above its first reader. */
function rankNodes(nodes) {
  nodes.filter((node) => node.op).forEach((node) => {
    const inner = node.reads.filter((read) => read.node.op).map((read) => read.node.rank + 1);
    node.rank = Math.max(1, ...inner);
  });
  for (const node of nodes.filter((one) => !one.op)) {
    node.rank = Math.min(...nodes.filter((one) => one.reads.some((read) => read.node === node)).map((one) => one.rank)) - 1;
  }
  const ranks = [];
  [...nodes, ...passages(nodes)].forEach((node) => { ranks[node.rank] = [...(ranks[node.rank] || []), node]; });
  return ranks.filter(Boolean);
}

/** Edges over several ranks go through narrow nodes between the boxes; those of one node share them. */
function passages(nodes) {
  const known = new Map();
  for (const node of nodes) {
    for (const read of node.reads) {
      read.through = [];
      for (let rank = read.node.rank + 1, before = read.node; rank < node.rank; rank++) {
        const chain = known.get(read.node) || known.set(read.node, new Map()).get(read.node);
        if (!chain.has(rank)) chain.set(rank, { passage: true, rank, reads: [{ node: before }], weights: [] });
        before = chain.get(rank);
        read.through.push(before);
      }
    }
  }
  return [...known.values()].flatMap((chain) => [...chain.values()]);
}

const boxHeight = (node) => (node.passage ? 0 : node.op ? BOX.high + node.weights.length * BOX.weight : 22);
const boxWidth = (node) => (node.passage ? 14 : BOX.width);
const center = (node) => node.x + boxWidth(node) / 2;

/** Places nodes: within ranks in the order of what they read, each near the middle of that. */
function placeNodes(ranks) {
  const middle = (node) => (node.reads.length ? node.reads.reduce((sum, read) => sum + center(read.node), 0) / node.reads.length : 0);
  const widthOf = (rank) => rank.reduce((sum, node) => sum + boxWidth(node) + BOX.gapX, -BOX.gapX);
  const whole = Math.max(...ranks.map(widthOf));
  let y = 6;
  for (const rank of ranks) {
    rank.sort((a, b) => middle(a) - middle(b));
    const wide = widthOf(rank);
    const boxes = rank.filter((node) => node.reads.length && !node.passage);
    const wanted = boxes.length ? boxes.reduce((sum, node) => sum + middle(node), 0) / boxes.length - wide / 2 : (whole - wide) / 2;
    const high = Math.max(...rank.map(boxHeight));
    let x = Math.max(0, Math.min(whole - wide, wanted));
    for (const node of rank) {
      Object.assign(node, { x, y, below: y + (node.passage ? high : boxHeight(node)) });
      x += boxWidth(node) + BOX.gapX;
    }
    y += high + BOX.gapY;
  }
  return { width: whole + 2, height: y - BOX.gapY + 8 };
}

/** Strokes beside each other, one for each axis of a layout. */
function edgePaths(plan, read, to, along) {
  const axes = split(plan.places.layouts[plan.places.tensors[read.tensor][3]]);
  return axes.map((sbp, axis) => {
    const off = (axis - (axes.length - 1) / 2) * 3;
    let d = `M${center(read.node) + off} ${read.node.below}`;
    let [x1, y1] = [center(read.node) + off, read.node.below];
    for (const node of [...read.through, to]) {
      const x2 = (node === to ? to.x + boxWidth(to) * along : center(node)) + off;
      const bend = Math.min(60, (node.y - y1) / 2);
      d += `C${x1} ${y1 + bend} ${x2} ${node.y - bend} ${x2} ${node.y}V${node === to ? node.y : node.below}`;
      [x1, y1] = [x2, node.below];
    }
    return svg("path", { class: "tensor", d, style: { stroke: `var(--${hue(sbp)})` } });
  });
}

/** Boxes with the boxing on the edges of a node, right above it, beside each other; edges with the same boxing share one. */
function edgeBoxings(plan, to) {
  const known = new Map();
  to.reads.forEach((read, at) => {
    const steps = boxingTo(plan, read.tensor, read.layout);
    if (steps.length === 0) return;
    const text = shortBadge(steps, 24);
    known.set(text, [...(known.get(text) || []), { read, steps, along: (at + 1) / (to.reads.length + 1) }]);
  });
  const badges = [...known].map(([text, all]) => ({ text: all.length > 1 ? `${all.length} x ${text}` : text, all }));
  const width = ({ text }) => text.length * 6 + 10;
  const wide = badges.reduce((sum, badge) => sum + width(badge) + 3, -3);
  let x = badges.length === 1 ? to.x + (BOX.width * badges[0].all.reduce((sum, { along }) => sum + along, 0)) / badges[0].all.length - wide / 2 : center(to) - wide / 2;
  return badges.map((badge) => {
    const made = svg("g", { class: "edge-boxing", on: tipOf(() => badge.all.map(({ read, steps }) => boxingText(plan, read, steps)).join("\n")) },
      svg("rect", { x, y: to.y - 22, width: width(badge), height: 15, rx: 3, style: { fill: "var(--communication)" } }),
      svg("text", { class: "on", x: x + width(badge) / 2, y: to.y - 11, "text-anchor": "middle" }, badge.text));
    x += width(badge) + 3;
    return made;
  });
}

function boxingText(plan, { tensor }, steps) {
  const { places } = plan;
  return [visible(places.tensors[tensor][0]), ...steps.map(([, kind, from, to, axis, moved, often]) =>
    `${kind}${axis === null ? "" : ` over ${axisName(plan, axis)}`}: (${places.layouts[from]}) to (${places.layouts[to]}), ${bytes(moved)} of a rank, ${often} x`)].join("\n");
}

const tipOf = (text) => ({ mousemove: (event) => tip.show(event, text()), mouseleave: tip.hide });
const fitted = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
/** The boxing on an edge in so many letters: all steps, or the first and how many more. */
const shortBadge = (steps, most) => (steps.length === 1 || badgeText(steps).length <= most ? fitted(badgeText(steps), most) : `${fitted(steps[0][1], most - 3)} +${steps.length - 1}`);
const typeText = (plan, tensor) => {
  const [dtype, , shape] = plan.places.types[plan.places.tensors[tensor][2]];
  return `${dtype}[${shape.join(", ")}]`;
};

/** The layout of a tensor as a strip at the left of its box, one part for each axis. */
function layoutBar(plan, layout, x, y, high) {
  const axes = split(plan.places.layouts[layout]);
  return axes.map((sbp, axis) => svg("rect", { x, y: y + (axis * high) / axes.length, width: 7, height: high / axes.length, style: { fill: `var(--${hue(sbp)})` } }));
}

function opBox(plan, layer, node) {
  const { op, x, y } = node;
  const [made] = op[MAKES];
  const part = plan.parts[op[PART]];
  const inner = layer && part.startsWith(`${layer.name}.`) ? part.slice(layer.name.length + 1) : part;
  const high = boxHeight(node);
  const choose = () => made !== undefined && showTensor(plan, plan.places.tensors[made]);
  return svg("g", { class: "op", tabindex: made === undefined ? null : 0, role: "button", "aria-label": `${op[OP]} of ${visible(part)}`,
    on: { click: choose, keydown: (event) => event.key === "Enter" && choose(), ...tipOf(() => opText(plan, op)) } },
  svg("rect", { class: "box", x, y, width: BOX.width, height: high, rx: 4 }),
  made !== undefined && layoutBar(plan, plan.places.tensors[made][3], x, y, BOX.high),
  svg("text", { class: "head", x: x + 13, y: y + 15 }, op[OP], inner && svg("tspan", { class: "part" }, ` ${fitted(visible(inner), 24 - op[OP].length)}`)),
  svg("text", { x: x + 13, y: y + 29 }, made === undefined ? "" : fitted(typeText(plan, made), 25)),
  node.weights.map(([tensor, layout], at) => weightLine(plan, tensor, layout, x, y + BOX.high + at * BOX.weight)));
}

/** A parameter or an input in the box of its reader: its layout at rest, and the boxing by which it is read. */
function weightLine(plan, tensor, layout, x, y) {
  const name = visible(plan.places.tensors[tensor][0]);
  const steps = boxingTo(plan, tensor, layout);
  const boxed = steps.length > 0 ? shortBadge(steps, 14) : "";
  return [layoutBar(plan, plan.places.tensors[tensor][3], x, y + 1, BOX.weight - 2),
    svg("text", { class: "weight", x: x + 13, y: y + 11 }, fitted(name.slice(name.lastIndexOf(".") + 1), boxed ? 9 : 24)),
    boxed && [svg("rect", { x: x + BOX.width - boxed.length * 5.6 - 8, y: y + 1, width: boxed.length * 5.6 + 6, height: 12, rx: 3, style: { fill: "var(--communication)" } }),
      svg("text", { class: "on small", x: x + BOX.width - 5, y: y + 10.5, "text-anchor": "end" }, boxed)]];
}

function opText(plan, op) {
  const { places } = plan;
  const line = ([tensor, layout]) => {
    const steps = boxingTo(plan, tensor, layout);
    return `  ${visible(places.tensors[tensor][0])} ${typeText(plan, tensor)} (${places.layouts[layout]})${steps.length ? `, by ${badgeText(steps)}` : ""}`;
  };
  return [`${op[OP]} ${visible(plan.parts[op[PART]])}`, "reads", ...op[READS].map(line), "makes", ...op[MAKES].map((tensor) => line([tensor, places.tensors[tensor][3]]))].join("\n");
}

/** A tensor that comes from another layer, which a click opens. */
function outsideBox(plan, node) {
  const maker = makerOf(plan).get(node.from);
  const name = fitted(visible(plan.parts[maker[PART]] || plan.places.tensors[node.from][0]), 24);
  return svg("g", { class: "op", on: { click: () => maker[LAYER_OF] !== null && showOps(plan, maker[LAYER_OF]) } },
    svg("rect", { class: "outside", x: node.x, y: node.y, width: BOX.width, height: 22, rx: 11 }),
    svg("text", { x: node.x + BOX.width / 2, y: node.y + 15, "text-anchor": "middle" }, `from ${name}`));
}

/** The picture of a layer's ops. */
function dag(plan, number, ops) {
  const nodes = nodesOf(plan, ops);
  const { width, height } = placeNodes(rankNodes(nodes));
  const layer = number === null ? null : plan.places.layers[number];
  const image = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${some(ops.length, "op")} of ${layer ? visible(layer.name) : "no layer"}`, data: { ops: ops.length } });
  const edges = nodes.flatMap((node) => node.reads.map((read, at) => [read, node, (at + 1) / (node.reads.length + 1)]));
  edges.forEach(([read, to, along]) => image.append(...edgePaths(plan, read, to, along)));
  nodes.forEach((node) => image.append(node.op ? opBox(plan, layer, node) : outsideBox(plan, node)));
  nodes.forEach((node) => image.append(...edgeBoxings(plan, node)));
  return el("div", { class: "dag" }, number !== null && el("p", { class: "note" }, layerLinks(plan, number)), image);
}
