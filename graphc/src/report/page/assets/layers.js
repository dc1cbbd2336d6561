// The model's layers, each tensor coloured by its layout. Layers of one form that follow each other are folded.

const KINDS = ["input", "parameter", "activation", "output", "gradient", "state"];
const MARKS = [[1, "pinned"], [2, "kept"], [4, "gathered again"], [8, "recomputed"]];
const marksOf = (marks) => MARKS.filter(([bit]) => marks & bit).map(([, text]) => text);

const HUES = [["var(--b)", "B: whole on every rank"], ["var(--s0)", "S(0): split along dim 0"], ["var(--s1)", "S(1)"],
  ["var(--s2)", "S(2)"], ["var(--s3)", "S(3) and more"], ["var(--p)", "P: summands"]];

/** What becomes of a tensor until the backward pass, as a line under its bar: whole if kept, short if gathered again, dots if recomputed. */
function underline(marks, x) {
  if (marks & 8) return `M${x + 0.5} 22.5h2v2h-2zM${x + 5.5} 22.5h2v2h-2z`;
  if (marks & 4) return `M${x + 2.5} 22.5h3v2h-3z`;
  return marks & 2 ? `M${x} 22.5h8v2h-8z` : "";
}

const sign = (marks, text) => el("li", null, svg("svg", { width: 10, height: 12, viewBox: "0 15 9 10", class: "sign" },
  marks & 1 ? svg("path", { d: "M.75 16h7v7h-7z", fill: "none", "stroke-width": 1.5, style: { stroke: "var(--ink)" } })
    : svg("path", { d: underline(marks, 0), style: { fill: "var(--soft)" } })), text);

/** The legend of layouts and marks, of the marks that some tensor has. */
function layoutLegend(plan) {
  const some = plan.places.tensors.reduce((all, tensor) => all | tensor[5], 0);
  const made = legend(HUES);
  made.append(...MARKS.filter(([bit]) => some & bit).map(([bit, text]) => sign(bit, text)));
  return made;
}

/** Runs of layers of one stage and form. */
function folded(layers) {
  const groups = [];
  layers.forEach((layer) => {
    const last = groups[groups.length - 1];
    if (last && last[0].form === layer.form && last[0].stage === layer.stage) last.push(layer);
    else groups.push([layer]);
  });
  return groups;
}

/** Tensors of a layer in the order in which they are drawn: by kind. */
const ordered = (plan, layer) =>
  layer.tensors.slice().sort((a, b) => KINDS.indexOf(plan.places.tensors[a][1]) - KINDS.indexOf(plan.places.tensors[b][1]) || a - b);

/** Each tensor as a bar: one part for each axis of the mesh, from above. */
function barcode(plan, layer, select) {
  const tensors = ordered(plan, layer);
  const step = 10;
  const gaps = [];
  let x = 0;
  tensors.forEach((index, at) => {
    const kind = plan.places.tensors[index][1];
    if (at > 0 && kind !== plan.places.tensors[tensors[at - 1]][1]) x += 6;
    gaps.push(x);
    x += step;
  });
  const paths = new Map();
  tensors.forEach((index, at) => {
    const axes = split(plan.places.layouts[plan.places.tensors[index][3]]);
    axes.forEach((sbp, axis) => {
      const height = 20 / axes.length;
      const d = `M${gaps[at]} ${axis * height}h${step - 2}v${height - (axes.length > 1 ? 0.7 : 0)}h-${step - 2}z`;
      paths.set(hue(sbp), (paths.get(hue(sbp)) || "") + d);
    });
  });
  const under = tensors.map((index, at) => underline(plan.places.tensors[index][5], gaps[at])).join("");
  const frames = tensors.map((index, at) => (plan.places.tensors[index][5] & 1 ? `M${gaps[at]} .75h${step - 2}v18.5h-${step - 2}z` : "")).join("");
  const at = (event) => {
    const box = image.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * x;
    const found = gaps.findLastIndex((gap) => gap <= place);
    return plan.places.tensors[tensors[Math.max(0, found)]];
  };
  const image = svg("svg", {
    class: "barcode", viewBox: `0 0 ${x} 25`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${some(tensors.length, "tensor")} of ${visible(layer.name)} by layout`,
    on: {
      click: (event) => { event.preventDefault(); select(at(event)); },
      mousemove: (event) => tip.show(event, tensorText(plan, at(event))), mouseleave: tip.hide,
    },
  }, [...paths].map(([name, d]) => svg("path", { d, style: { fill: `var(--${name})` } })),
  under && svg("path", { d: under, style: { fill: "var(--soft)" } }),
  frames && svg("path", { d: frames, fill: "none", "stroke-width": 1.5, style: { stroke: "var(--ink)" } }));
  image.style.maxWidth = `${x}px`;
  return image;
}

function tensorText(plan, tensor) {
  const [dtype, , shape] = plan.places.types[tensor[2]];
  const marks = marksOf(tensor[5]);
  return `${visible(tensor[0])}\n${tensor[1]} ${dtype}[${shape.join(", ")}] · ${plan.places.layouts[tensor[3]]}${marks.length ? " · " + marks.join(", ") : ""}`;
}

function tensorRow(plan, tensor, select) {
  const [dtype, , shape] = plan.places.types[tensor[2]];
  return [
    el("button", { type: "button", class: "hit", on: { click: () => select(tensor) } }, named(tensor[0])), tensor[1],
    el("span", { class: "mono" }, `${dtype}[${shape.join(", ")}]`), el("span", null, chips(plan.places.layouts[tensor[3]])), String(tensor[4]),
    bytes(shardBytes(plan, tensor)), marksOf(tensor[5]).map((text) => el("span", { class: "badge" }, text)),
  ];
}

const COLUMNS = [["tensor"], ["kind"], ["type"], ["layout"], ["stage", true], ["bytes a rank", true], ["for the backward pass"]];

/** The parts of a step's batch of which a rank holds one at a time; weights and states have no parts. */
const microbatchesOf = (plan, tensor) => (["activation", "input", "output"].includes(tensor[1]) && plan.places.types[tensor[2]][2].length > 0 ? plan.summary.microbatches : 1);

/** Bytes of a tensor on a rank, of one microbatch where it has some. */
function shardBytes(plan, tensor) {
  const [, size, shape] = plan.places.types[tensor[2]];
  const stage = plan.places.stages[tensor[4]];
  if (!stage || !stage.hierarchy.length) return 0;
  const all = part(shape, stage.hierarchy, plan.places.layouts[tensor[3]], 0).reduce((product, [from, to]) => product * (to - from), size);
  return Math.ceil(all / microbatchesOf(plan, tensor));
}

/** What a tensor takes on a rank, and what it is in all. */
function bytesText(plan, tensor) {
  const [, size, shape] = plan.places.types[tensor[2]];
  const parts = microbatchesOf(plan, tensor);
  const whole = shape.reduce((all, extent) => all * extent, size);
  return `${bytes(shardBytes(plan, tensor))} on a rank${parts > 1 ? ` for a microbatch, ${parts} a step,` : ""} of ${bytes(whole)} in all`;
}

const tensorTable = (plan, indices, select, caption) =>
  table(caption, COLUMNS, indices.map((index) => tensorRow(plan, plan.places.tensors[index], select)));

/** Names of layers that share a variant: the first ones and how many more. */
function called(layers) {
  const names = layers.slice(0, 3).map((layer) => visible(layer.name)).join(", ");
  return layers.length > 3 ? `${names}, … (${layers.length})` : names;
}

/** Keys of a layer in the address: that of those that it is folded with, and its own. */
function layerKeys(plan, number) {
  const group = folded(plan.places.layers).find((layers) => layers.includes(plan.places.layers[number]));
  const own = keyOf(plan, plan.places.layers[number].name);
  return group.length > 1 ? [`layers:${keyOf(plan, group[0].name)}`, `layer:${own}`] : [`layers:${own}`];
}

/** A layer by its name, with where else on the page it is. */
function layerLinks(plan, number) {
  const layer = plan.places.layers[number];
  const places = [
    ["tensors", "What goes where", () => layerKeys(plan, number).forEach((key) => reveal("where", key))],
    ["events", "When", () => showEvent(step.all[page.plans.indexOf(plan)], (row) => row[4] === number, "layer")],
    ["ops", "The graph", () => showOps(plan, number)],
  ];
  return [named(layer.name), places.map(([text, title, act]) => [" · ", jump(text, act, title)])];
}

function group(plan, layers, select) {
  const variants = new Map();
  layers.forEach((layer) => variants.set(layer.variant, [...(variants.get(layer.variant) || []), layer]));
  const title = layers.length === 1 ? [named(layers[0].name)] : [named(layers[0].name), " … ", named(layers[layers.length - 1].name)];
  const kinds = variants.size > 1 ? ` in ${variants.size} variants` : "";
  const counted = layers.length === 1 ? some(layers[0].tensors.length, "tensor") : `${layers.length} layers alike${kinds}, ${layers[0].tensors.length} tensors each`;
  const inner = (layer) => tensorTable(plan, ordered(plan, layer), select, `Tensors of ${visible(layer.name)}`);
  const made = opened(
    [title, el("span", { class: "count" }, `stage ${layers[0].stage} · ${counted}`)],
    () => el("div", { class: "inner" }, layers.length === 1 ? inner(layers[0])
      : layers.map((layer) => opened(named(layer.name), () => inner(layer), `layer:${keyOf(plan, layer.name)}`))),
    `layers:${keyOf(plan, layers[0].name)}`);
  made.classList.add("layer");
  const rows = [...variants.values()].map((same) =>
    el("div", { class: variants.size > 1 ? "variant" : "variant alone" }, variants.size > 1 && el("bdi", null, called(same)), barcode(plan, same[0], select)));
  made.querySelector("summary").append(...rows);
  return made;
}

/** Layers and the search for tensors by name. */
function layers(plan, select) {
  const list = el("div", { class: "layers" }, folded(plan.places.layers).map((some) => group(plan, some, select)));
  const found = el("div", { class: "found", hidden: true });
  const look = (text) => {
    const wanted = text.trim().toLowerCase();
    const all = [];
    plan.places.tensors.forEach((tensor, index) => tensor[0].toLowerCase().includes(wanted) && all.push(index));
    found.hidden = !wanted;
    list.hidden = Boolean(wanted);
    if (wanted) {
      const shown = all.slice(0, 200);
      const more = all.length > shown.length ? `, the first ${shown.length} are shown` : "";
      found.replaceChildren(tensorTable(plan, shown, select, `${some(all.length, "tensor")} with “${visible(text.trim())}”${more}`));
    }
  };
  return { list, found, look };
}
