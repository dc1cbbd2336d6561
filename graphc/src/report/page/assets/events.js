// Events of the simulated step, unpacked from blocks and their runs.

/** Columns of a row of `timeline.actors` that are used by name. */
const [NAME, DOING, PART_OF, TOUCHED] = [0, 1, 3, 5];
/** What an actor makes, reads and changes, in `TOUCHED`. */
const [MADE, READ, UPDATED] = [0, 1, 2];
/** Gaps between events up to so many ticks are none. */
const SHORTEST_WAIT = 3;

/** A lane of the timeline with what drawing needs: starts and ends of its runs, and the colour of each block. */
function lane(timeline, row, stream, number) {
  const doings = timeline.actors[row.program];
  const colors = stream.blocks.map((actors, block) => {
    const sums = timeline.doings.map(() => 0);
    actors.forEach((actor, at) => {
      const [from, to] = stream.base[block][at] || [0, 0];
      sums[doings[actor][1]] += to - from;
    });
    const computed = sums.map((sum, doing) => (timeline.doings[doing] === "communication" && number === 0 ? sum / 4 : sum));
    return computed.indexOf(Math.max(...computed));
  });
  // What runs once a step is of no microbatch.
  const often = stream.blocks.map((_, block) => stream.items.filter((item) => item[0] === block).length);
  const waits = new Map((row.waits[number] || []).map((wait) => [wait.actor, wait]));
  const made = { row, stream, number, doings, colors, often, waits, starts: [], ends: [], events: 0 };
  stream.items.forEach((item) => {
    const base = stream.base[item[0]];
    const later = item[3].reduce((all, [, waited, longer]) => all + waited + longer, 0);
    made.starts.push(item[2]);
    made.ends.push(item[2] + (base.length ? base[base.length - 1][1] : 0) + later);
    made.events += base.length;
  });
  return made;
}

/** Calls with each event of a run: actor, start and end in ticks, microbatch, place in the run. */
function eachEvent(lane, run, call) {
  const [block, microbatch, start, departures] = lane.stream.items[run];
  const [base, actors] = [lane.stream.base[block], lane.stream.blocks[block]];
  let [shift, next] = [0, 0];
  for (let at = 0; at < base.length; at++) {
    let longer = 0;
    if (next < departures.length && departures[next][0] === at) {
      shift += departures[next][1];
      longer = departures[next][2];
      next += 1;
    }
    call(actors[at], start + base[at][0] + shift, start + base[at][1] + shift + longer, microbatch, at);
    shift += longer;
  }
}

/** The first run that ends after a time. */
function firstRun(lane, time) {
  let [low, high] = [0, lane.ends.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.ends[middle] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The event at a place in time: the one that runs, or else a message that takes no time within `near` ticks; none where there is neither. */
function eventAt(lane, time, near = 0) {
  let [found, message] = [null, null];
  for (let run = firstRun(lane, time - near); run < lane.starts.length && lane.starts[run] <= time + near; run++) {
    eachEvent(lane, run, (actor, start, end, microbatch, place) => {
      const event = { actor, start, end, microbatch: ofMicrobatch(lane, run, microbatch), run, place };
      if (start <= time && time < end) found = event;
      else if (start === end && Math.abs(start - time) <= near) message = message || event;
    });
  }
  return message || found;
}

/** The microbatch of a run, none of what runs once a step. */
const ofMicrobatch = (lane, run, microbatch) => (lane.often[lane.stream.items[run][0]] > 1 ? microbatch : null);

/** The event at a place of a run; none where there is no such place. */
function eventOf(lane, run, place) {
  let found = null;
  if (lane.stream.items[run]) {
    eachEvent(lane, run, (actor, start, end, microbatch, at) => {
      if (at === place) found = { actor, start, end, microbatch: ofMicrobatch(lane, run, microbatch), run, place };
    });
  }
  return found;
}

/** The first event whose actor is wanted, or with a time the one that begins nearest to it, if any; `wanted` is asked with its row and its
 *  program. */
function firstEvent(lane, wanted, time = null) {
  const places = lane.stream.blocks.map((block) => block.findIndex((actor) => wanted(lane.doings[actor], lane.row.program)));
  let best = null;
  for (let run = 0; run < lane.starts.length; run++) {
    const place = places[lane.stream.items[run][0]];
    if (place < 0) continue;
    const event = eventOf(lane, run, place);
    if (time === null) return event;
    if (!best || Math.abs(event.start - time) < Math.abs(best.start - time)) best = event;
  }
  return best;
}

/** Spans of equal keys that follow each other: first place, last place, key. What has no key is of those before it. */
function spansOf(keys) {
  const spans = [];
  let known = keys.find((key) => key !== null);
  keys.forEach((key, at) => {
    known = key === null ? known : key;
    const last = spans[spans.length - 1];
    if (last && last[2] === known) last[1] = at;
    else spans.push([at, at, known]);
  });
  return spans;
}

/** What a block is nested in: its passes, and in each of them its layers (-1: of several layers, or of none). */
function nestOf(lane, block) {
  lane.nests = lane.nests || [];
  if (!lane.nests[block]) {
    const rows = lane.stream.blocks[block].map((actor) => lane.doings[actor]);
    const passes = spansOf(rows.map((row) => row[2]));
    const layers = passes.flatMap(([first, last]) =>
      spansOf(rows.slice(first, last + 1).map((row) => (row[4] === null ? -1 : row[4]))).map(([from, to, key]) => [first + from, first + to, key]));
    lane.nests[block] = { passes, layers };
  }
  return lane.nests[block];
}

/** Ticks of each doing of a lane's step. */
function byDoing(timeline, lane) {
  const sums = timeline.doings.map(() => 0);
  for (let run = 0; run < lane.starts.length; run++) {
    eachEvent(lane, run, (actor, start, end) => { sums[lane.doings[actor][1]] += end - start; });
  }
  return sums;
}
