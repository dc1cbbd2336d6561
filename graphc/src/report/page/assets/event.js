// One event of the timeline: how it is called, and where else on the page it is.

/** Text that can be read on the colour of what an actor does. */
const inkOn = (doing) => (doing === "data" ? color("bg") : ["communication", "recomputed", "update"].includes(doing) ? "#111111" : "#ffffff");

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

function eventText({ plan, timeline, tick, view }, { lane: one, event }) {
  const row = one.doings[event.actor];
  return `${actorText(plan, row)}\n${visible(row[0])}\n${timeline.doings[row[1]]} · ${microbatchText(event)} · stage ${one.row.stage}, ${ranksNamed(one.row.of)}\n` +
    `${lasting(timeline, row, event, tick)}, from ${instant(event.start * tick, view.whole / 1000)}`;
}

/** How long an event lasts. A message takes no time of a stream: it goes on beside it. */
const lasting = (timeline, row, event, tick) =>
  (event.start === event.end && timeline.doings[row[DOING]] === "communication" ? "no time of the stream (the link's)" : seconds((event.end - event.start) * tick));

/** A pass or a layer: its name, and how long it lasts. */
function spanText(shown, found) {
  const { plan, timeline, tick } = shown;
  const row = found.lane.doings[found.event.actor];
  const [from, to] = shown.extent(found);
  const pass = row[2] === null ? "" : timeline.passes[row[2]];
  const layer = row[4] === null ? "several layers, or none" : visible(plan.places.layers[row[4]].name);
  const idle = shown.waited(found) * tick;
  const waits = idle > 0 ? `, of which ${seconds(idle)} are waited` : "";
  return `${found.level === "pass" ? "" : `${layer}\n`}${pass} · ${microbatchText(found.event)}\n${seconds((to - from) * tick)}${waits}, from ${instant(from * tick, shown.view.whole / 1000)}\nDouble-click: as wide as the window`;
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

/** Registers of an event that are listed one by one; those of a bucket may be hundreds. */
const MOST_REGISTERS = 6;

/** Whether a tensor is there from step to step: no event makes it, but for copies of it. */
const isVariable = ([, kind]) => ["parameter", "state", "table"].includes(kind);

/** One register: the tensor in it, as a link to what goes where if the plan lists it, with its type, layout and bytes. */
function registerLine(plan, program, number, made = false) {
  const [index, name, type, layout, size] = plan.timeline.registers[program][number];
  const tensor = index === null ? null : plan.places.tensors[index];
  const [dtype, , shape] = plan.places.types[type];
  return el("div", { class: "register" }, tensor ? [jump(named(tensor[0]), () => showTensor(plan, tensor)), ` ${made && isVariable(tensor) ? "copy of the " : ""}${tensor[1]} `] : [named(name), " intermediate "],
    el("span", { class: "mono" }, `${dtype}[${shape.join(", ")}] `), chips(plan.places.layouts[layout]), ` ${bytes(size)} on a rank`);
}

/** What many registers are together: how many, their bytes, and the layers that they are of. */
function bucketText(plan, program, numbers) {
  const rows = numbers.map((number) => plan.timeline.registers[program][number]);
  const size = rows.reduce((sum, row) => sum + row[4], 0);
  const known = new Set(rows.map(([index]) => layerOfTensor(plan).get(index)).filter(Boolean));
  const layers = plan.places.layers.filter((layer) => known.has(layer));
  const of = layers.length === 0 ? "" : ` of ${visible(layers[0].name)}${layers.length > 1 ? ` … ${visible(layers[layers.length - 1].name)} (${some(layers.length, "layer")})` : ""}`;
  return `${some(numbers.length, "tensor")}${of}, ${bytes(size)} on a rank together`;
}

/** What an event makes, reads or updates, each with its registers. */
function registerFacts(plan, program, row) {
  return [["makes", MADE], ["reads", READ], ["updates", UPDATED]].map(([title, which]) => {
    const numbers = row[TOUCHED][which];
    const more = numbers.length - MOST_REGISTERS;
    const lines = (some) => some.map((number) => registerLine(plan, program, number, which === MADE));
    return numbers.length > 0 && [el("dt", null, title), el("dd", { data: { registers: title } }, more > 0 && el("div", null, bucketText(plan, program, numbers)), lines(numbers.slice(0, MOST_REGISTERS)),
      more > 0 && opened(`${more} more`, () => lines(numbers.slice(MOST_REGISTERS)), `registers:${title}:${keyOf(plan, row[NAME])}`))];
  });
}

/** Whether an actor of a program makes, reads or changes a tensor. */
const touches = (plan, program, row, which, index) => row[TOUCHED][which].some((number) => plan.timeline.registers[program][number][0] === index);

/** The number of each listed tensor by its name. */
const tensorNumbers = remembered((plan) => new Map(plan.places.tensors.map(([name], index) => [name, index]).reverse()));

/** A name as a link to its tensor, if the plan lists it. */
function tensorLink(plan, name) {
  const index = tensorNumbers(plan).get(name);
  return index === undefined ? named(name) : jump(named(name), () => showTensor(plan, plan.places.tensors[index]));
}

/** Opens a tensor in what goes where, and goes there. */
function showTensor(plan, tensor) {
  address.put("tensor", [...address.all("tensor").filter((key) => !key.startsWith(keyOf(plan, ""))), keyOf(plan, tensor[0])]);
  address.readers.get("tensor").forEach((apply) => apply(address.all("tensor")));
  address.show("where");
}

function eventPanel(shown, found, close) {
  const { plan, timeline, tick } = shown;
  const row = found.lane.doings[found.event.actor];
  const layer = row[4] === null ? null : plan.places.layers[row[4]];
  return el("div", { class: "panel", role: "region", "aria-label": "The chosen event" },
    el("h4", null, el("bdi", null, actorText(plan, row)), " ", el("button", { type: "button", on: { click: close } }, "close")),
    el("dl", { class: "facts" },
      el("dt", null, "actor"), el("dd", null, named(row[0]), ` · ${timeline.doings[row[1]]}`),
      el("dt", null, "when"), el("dd", null, `${lasting(timeline, row, found.event, tick)}, from ${instant(found.event.start * tick, shown.view.whole / 1000)}, ${microbatchText(found.event)}`),
      el("dt", null, "where"), el("dd", null, `stage ${found.lane.row.stage}, ${ranksNamed(found.lane.row.of)}, stream ${found.lane.number}`),
      waitFact(shown, found),
      registerFacts(plan, found.lane.row.program, row),
      layer && [el("dt", null, "layer"), el("dd", null, layerLinks(plan, row[4]))]));
}
