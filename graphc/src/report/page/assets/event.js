// One event of the timeline: how it is called, and where else on the page it is.

/** Text that can be read on the colour of what an actor does. */
const inkOn = (doing) => (["communication", "recomputed", "update", "data"].includes(doing) ? "#111111" : "#ffffff");

/** A text that is no wider than there is room. */
function shortened(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 1 && pen.measureText(text.slice(0, end) + "…").width > room) end -= 1;
  return text.slice(0, end) + "…";
}

/** The op of an actor: the first word of its name, a chain of elementwise ops as one word. */
function opOf([name]) {
  const op = name.split(" ")[0];
  return op.includes("+") ? "elementwise" : op;
}

/** What an actor works on, as the model calls it, and its op; its own name where the model has none for it. */
function actorText(plan, row) {
  const part = plan.parts[row[3]];
  return part ? `${visible(part)} ${visible(opOf(row))}` : visible(row[0]);
}

/** Texts for an actor, from the longest to the shortest: the last ones leave out what the layer above says. */
function actorTexts(plan, row) {
  const part = plan.parts[row[3]];
  if (!part) return [visible(row[0]), visible(opOf(row))];
  const layer = row[4] === null ? "" : plan.places.layers[row[4]].name;
  const inner = part.startsWith(`${layer}.`) ? part.slice(layer.length + 1) : part;
  return [actorText(plan, row), visible(part), `${visible(inner)} ${visible(opOf(row))}`, visible(inner), visible(inner.slice(inner.lastIndexOf(".") + 1)), visible(opOf(row))];
}

const microbatchText = ({ microbatch }) => (microbatch === null ? "once a step" : `microbatch ${microbatch}`);

/** How long an event takes, from when on, and how long its stream has waited before, where that is more than a rounded nothing. */
function whenText({ tick, view }, { lane: one, event }) {
  const waited = waitedBefore(one, event) * tick;
  const after = waited > view.whole * 1e-6 ? `, after waiting ${seconds(waited)}` : "";
  return `${seconds((event.end - event.start) * tick)} from ${instant(event.start * tick, view.whole / 1000)}${after}`;
}

function eventText(shown, found) {
  const { plan, timeline } = shown;
  const { lane: one, event } = found;
  const row = one.doings[event.actor];
  return `${actorText(plan, row)}\n${visible(row[0])}\n${timeline.doings[row[1]]} · ${microbatchText(event)} · stage ${one.row.stage}, ${ranksOfRuns(one.row.ranks)}\n${whenText(shown, found)}`;
}

/** A wait: how long it lasts, and what ends it. */
function waitText({ plan, tick, view }, { lane: one, since, event }) {
  const row = one.doings[event.actor];
  return `waits ${seconds((event.start - since) * tick)}, until ${instant(event.start * tick, view.whole / 1000)}\nthen ${visible(row[0])}`;
}

/** A pass or a layer: its name, and how long it lasts. */
function spanText(shown, found) {
  const { plan, timeline, tick } = shown;
  const row = found.lane.doings[found.event.actor];
  const [from, to] = shown.extent(found);
  const pass = row[2] === null ? "" : timeline.passes[row[2]];
  const layer = row[4] === null ? "several layers, or none" : visible(plan.places.layers[row[4]].name);
  return `${found.level === "pass" ? "" : `${layer}\n`}${pass} · ${microbatchText(found.event)}\n${seconds((to - from) * tick)}, from ${instant(from * tick, shown.view.whole / 1000)}\nDouble-click: as wide as the window`;
}

/** The address of an event: the plan, and rank, stream, run and place. */
const eventKey = (plan, { lane: one, event }) => keyOf(plan, [one.row.rank, one.number, event.run, event.place].join("."));

/** The event that an address means; none where the page has none there. */
function eventOfKey(shown, key) {
  const [rank, stream, run, place] = key.split(".").map(Number);
  const one = shown.every.find((other) => other.row.rank === rank && other.number === stream);
  const event = one && eventOf(one, run, place);
  return event ? { lane: one, event, level: "event" } : null;
}

/** A tensor of an actor with its type, layout and bytes: one that the plan lists as a link to what goes where. */
function tensorFact(plan, index) {
  const listed = plan.places.tensors[index];
  if (!listed) {
    const [name, type, layout, size] = plan.timeline.unlisted[index - plan.places.tensors.length];
    return el("div", null, named(name), " ", el("span", { class: "mono" }, `${type} `), chips(layout), ` ${bytes(size)} of a rank`);
  }
  const [dtype, , shape] = plan.places.types[listed[2]];
  return el("div", null, jump(named(listed[0]), () => showTensor(plan, listed)), ` ${listed[1]} `, el("span", { class: "mono" }, `${dtype}[${shape.join(", ")}] `), chips(plan.places.layouts[listed[3]]), ` ${bytesText(plan, listed)}`);
}

/** Tensors that are named of an actor. */
const MOST_FACTS = 8;

function tensorFacts(plan, title, all) {
  if (all.length === 0) return false;
  const more = all.length - MOST_FACTS;
  return [el("dt", null, title), el("dd", null, all.slice(0, MOST_FACTS).map((index) => tensorFact(plan, index)), more > 0 && el("div", { class: "note" }, `and ${some(more, "more tensor")}`))];
}

/** The tensor of a name, as a link where the plan lists it. */
const tensorNumbers = remembered((plan) => new Map(plan.places.tensors.map((tensor) => [tensor[0], tensor])));
function tensorLink(plan, name) {
  const tensor = tensorNumbers(plan).get(name);
  return tensor ? jump(named(name), () => showTensor(plan, tensor)) : named(name);
}

/** Opens a tensor in what goes where, and goes there. */
function showTensor(plan, tensor) {
  address.put("tensor", [...address.all("tensor").filter((key) => !key.startsWith(keyOf(plan, ""))), keyOf(plan, tensor[0])]);
  address.readers.get("tensor").forEach((apply) => apply(address.all("tensor")));
  address.show("where");
}

function eventPanel(shown, found, close) {
  const { plan, timeline } = shown;
  const row = found.lane.doings[found.event.actor];
  const layer = row[4] === null ? null : plan.places.layers[row[4]];
  return el("div", { class: "panel", role: "region", "aria-label": "The chosen event" },
    el("h4", null, el("bdi", null, actorText(plan, row)), " ", el("button", { type: "button", on: { click: close } }, "close")),
    el("dl", { class: "facts" },
      el("dt", null, "actor"), el("dd", null, named(row[0]), ` · ${timeline.doings[row[1]]}`),
      el("dt", null, "when"), el("dd", null, `${whenText(shown, found)}, ${microbatchText(found.event)}`),
      el("dt", null, "where"), el("dd", null, `stage ${found.lane.row.stage}, ${ranksOfRuns(found.lane.row.ranks)}, stream ${found.lane.number}`),
      tensorFacts(plan, timeline.doings[row[1]] === "update" ? "changes" : "makes", row[5]),
      tensorFacts(plan, "reads", row[6]),
      layer && [el("dt", null, "layer"), el("dd", null, layerLinks(plan, row[4]))]));
}
