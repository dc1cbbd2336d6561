// Where a stream waits: the gaps between its events, and what each of them waits for.

/** When the event before a place of a run ended, in ticks: the stream is free from then on. */
function freeBefore(lane, run, place) {
  if (place > 0) return eventOf(lane, run, place - 1).end;
  return run > 0 ? lane.ends[run - 1] : 0;
}

/** The wait that ends with an event: from when, until when, in ticks; none where the event follows at once. */
function waitBefore(lane, event) {
  const from = freeBefore(lane, event.run, event.place);
  return event.start - from > SHORTEST_WAIT ? { from, to: event.start } : null;
}

/** The event that a stream waits for at a time; none where it does not wait, or only for the next step. */
function eventAfter(lane, time) {
  let run = firstRun(lane, time);
  for (; run < lane.starts.length; run++) {
    let found = null;
    eachEvent(lane, run, (actor, start, end, microbatch, place) => {
      if (!found && start > time) found = { actor, start, end, microbatch: ofMicrobatch(lane, run, microbatch), run, place };
    });
    if (found) return found;
  }
  return null;
}

/** What an actor waits for: "add_2 of rank 1"; of a tensor that has a number for a name also the part of the model. */
function awaited(plan, lane, actor) {
  const wait = lane.waits.get(actor);
  if (!wait || !wait.tensor) return "its turn";
  const part = wait.tensor.startsWith("%") && plan.parts[lane.doings[actor][3]];
  return `${visible(wait.tensor)}${part ? ` (${visible(part)})` : ""} of ${wait.ranks.length > 0 ? ranksNamed(wait.ranks) : "another stream"}`;
}

/** Texts of a wait, from the longest to the shortest. */
const waitTexts = (plan, lane, actor) => (actor === null ? ["waits for the next step", "waits"] : [`waits for ${awaited(plan, lane, actor)}`, "waits"]);

function waitTip(shown, { lane: one, event, wait }) {
  const lasts = `${seconds((wait.to - wait.from) * shown.tick)}, from ${instant(wait.from * shown.tick, shown.view.whole / 1000)}`;
  const then = event ? `\nthen ${actorText(shown.plan, one.doings[event.actor])}` : "";
  return `${waitTexts(shown.plan, one, event ? event.actor : null)[0]}\n${lasts}${then}`;
}

/** The row of an event's panel that says how long the stream waited for it, and for what. */
function waitFact(shown, { lane: one, event }) {
  const wait = waitBefore(one, event);
  return wait && [el("dt", null, "waits before"), el("dd", { data: { waits: "" } }, `${seconds((wait.to - wait.from) * shown.tick)} for ${awaited(shown.plan, one, event.actor)}`)];
}

/** Ticks in which a stream does nothing between two places of a run. */
function waitedBetween(lane, run, first, last) {
  let [sum, free] = [0, null];
  eachEvent(lane, run, (actor, start, end, microbatch, place) => {
    if (place > first && place <= last) sum += Math.max(0, start - free);
    free = end;
  });
  return sum;
}

/** Diagonal lines, as in the style of the page, for what waits. */
function hatch(pen, ink) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const lines = tile.getContext("2d");
  lines.strokeStyle = ink;
  lines.lineWidth = 1;
  lines.beginPath();
  [[-1, 1, 1, -1], [0, 6, 6, 0], [5, 7, 7, 5]].forEach(([x0, y0, x1, y1]) => { lines.moveTo(x0, y0); lines.lineTo(x1, y1); });
  lines.stroke();
  return pen.createPattern(tile, "repeat");
}
