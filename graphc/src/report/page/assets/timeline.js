// The simulated step: lanes of streams on a canvas that zooms and pans, each nested in passes and layers.

const LANE = 24;
/** Heights of a nested lane: its passes, its layers, its events. */
const [PASS, LAYER, EVENT] = [13, 15, 21];
const GAP = 10;
const AXIS = 24;
/** Events that are drawn one by one; of more, runs of blocks are. */
const MOST_EVENTS = 60000;
/** Lanes up to which all are nested at first: those of six stages with a second stream. */
const MOST_NESTED = 12;

/** What of the step is seen, in seconds; all timelines of a page share it. */
class View {
  constructor(seconds) {
    // A step that takes no time is drawn as one that takes a little.
    Object.assign(this, { whole: seconds || 1e-9, from: 0, to: seconds || 1e-9, listeners: [] });
  }

  set(from, to) {
    const span = Math.min(this.whole, Math.max(this.whole * 1e-7, to - from));
    this.from = Math.max(0, Math.min(this.whole - span, from));
    this.to = this.from + span;
    this.listeners.forEach((listener) => listener());
  }

  zoom(by, at = (this.from + this.to) / 2) {
    this.set(at - (at - this.from) * by, at + (this.to - at) * by);
  }

  pan(share) {
    const way = (this.to - this.from) * share;
    this.set(this.from + way, this.to + way);
  }
}

class Timeline {
  constructor(plan, view) {
    Object.assign(this, { plan, view, timeline: plan.timeline, drawn: 0, planned: false, chosen: null, choose: () => {} });
    this.every = plan.timeline.rows.flatMap((row) =>
      row.streams.map((stream, number) => lane(plan.timeline, row, stream, number)).filter((one) => one.events > 0));
    this.tick = plan.timeline.tick_seconds;
    this.canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": "The simulated step as a timeline; plus and minus zoom, arrows move, 0 shows all, comma and full stop go from event to event. A table follows." });
    this.folds = this.foldable();
    this.unfolded = false;
    this.nested = this.shown().length <= MOST_NESTED;
    this.arrange();
    view.listeners.push(() => this.later());
    this.listen();
  }

  /** Rows of one stage whose streams have the same form, which differ in sizes and times alone: the first of each, with how many there are. */
  foldable() {
    const first = new Map();
    for (const row of this.timeline.rows) {
      const key = JSON.stringify([row.stage, row.streams.map((stream) => stream.blocks.map((block) => block.length))]);
      first.set(key, [...(first.get(key) || []), row]);
    }
    return new Map([...first.values()].map((rows) => [rows[0], rows]));
  }

  shown() {
    return this.every.filter((one) => this.unfolded || this.folds.has(one.row));
  }

  /** Places lanes below each other. */
  arrange() {
    this.lanes = this.shown();
    this.tops = [];
    let top = AXIS;
    this.lanes.forEach((one, at) => {
      if (at > 0 && one.row !== this.lanes[at - 1].row) top += GAP;
      else if (at > 0 && this.nested) top += 3;
      this.tops.push(top);
      top += this.high();
    });
    this.height = top + 6;
  }

  high() {
    return this.nested ? PASS + LAYER + EVENT : LANE;
  }

  later() {
    if (this.planned) return;
    this.planned = true;
    requestAnimationFrame(() => {
      this.planned = false;
      this.draw();
    });
  }

  x(ticks) {
    return this.left + ((ticks * this.tick - this.view.from) / (this.view.to - this.view.from)) * (this.width - this.left);
  }

  time(x) {
    return this.view.from + ((x - this.left) / (this.width - this.left)) * (this.view.to - this.view.from);
  }

  draw() {
    const pen = this.pen();
    this.axis(pen);
    const [from, to] = [this.view.from / this.tick, this.view.to / this.tick];
    const spans = this.lanes.map((one) => [firstRun(one, from), this.endRun(one, to)]);
    const events = this.lanes.reduce((all, one, at) => {
      for (let run = spans[at][0]; run < spans[at][1]; run++) all += one.stream.base[one.stream.items[run][0]].length;
      return all;
    }, 0);
    this.drawn = 0;
    this.lanes.forEach((one, at) => this.lane(pen, one, this.tops[at], spans[at], events <= MOST_EVENTS));
    this.mark(pen);
    this.labels(pen);
    this.canvas.dataset.drawn = String(this.drawn);
    this.canvas.dataset.one = String(events <= MOST_EVENTS);
  }

  /** A pen for an empty canvas of the right size. */
  pen() {
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    this.width = canvas.parentNode.clientWidth;
    this.left = this.width < 560 ? 84 : 158;
    canvas.style.height = `${this.height}px`;
    if (canvas.width !== Math.round(this.width * ratio) || canvas.height !== Math.round(this.height * ratio)) {
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(this.height * ratio);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.theme = Object.fromEntries(["bg", "ink", "soft", "line", "panel", "wait", ...this.timeline.doings].map((name) => [name, color(name)]));
    this.theme.hatch = hatch(pen, this.theme.wait);
    pen.fillStyle = this.theme.bg;
    pen.fillRect(0, 0, this.width, this.height);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    return pen;
  }

  endRun(one, to) {
    let [low, high] = [0, one.starts.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (one.starts[middle] < to) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  axis(pen) {
    const wanted = ticksBetween(this.view.from, this.view.to, Math.max(2, (this.width - this.left) / 110));
    const step = wanted.length > 1 ? wanted[1] - wanted[0] : this.view.to - this.view.from;
    pen.textAlign = "center";
    for (const at of wanted) {
      const x = this.x(at / this.tick);
      pen.fillStyle = this.theme.line;
      pen.fillRect(Math.round(x), AXIS - 4, 1, this.height);
      pen.fillStyle = this.theme.soft;
      pen.fillText(instant(at, step), Math.min(this.width - 28, Math.max(this.left + 24, x)), AXIS / 2 - 1);
    }
  }

  lane(pen, one, top, [first, end], each) {
    const high = this.nested ? EVENT : LANE;
    const row = top + this.high() - high;
    pen.save();
    pen.beginPath();
    pen.rect(this.left, top, this.width - this.left, this.high());
    pen.clip();
    pen.fillStyle = this.theme.panel;
    pen.fillRect(this.left, row + 2, this.width - this.left, high - 4);
    this.waits(pen, one, [first, end], [row, high], each);
    for (let run = first; run < end; run++) {
      const [x, to] = [this.x(one.starts[run]), this.x(one.ends[run])];
      if (each) {
        this.events(pen, one, run, [row, high]);
        if (this.nested) this.nest(pen, one, run, top);
      } else {
        pen.fillStyle = this.theme[this.timeline.doings[one.colors[one.stream.items[run][0]]]];
        pen.fillRect(x, top + 2, Math.max(0.5, to - x - (to - x > 4 ? 1 : 0)), this.high() - 4);
        this.drawn += 1;
      }
      if (!each || (!this.nested && to - x > 16 && this.average(one, run, to - x) < 12)) this.name(pen, one, run, [x, to], top, each);
    }
    pen.restore();
  }

  /** The gaps of a lane: between its runs, and within them where events are drawn one by one. */
  waits(pen, one, [first, end], line, each) {
    for (let run = first; run <= Math.min(end, one.starts.length - 1); run++) {
      let free = run > 0 ? one.ends[run - 1] : 0;
      if (!each) this.wait(pen, one, [free, one.starts[run]], line, one.stream.blocks[one.stream.items[run][0]][0]);
      else {
        eachEvent(one, run, (actor, start, to) => {
          this.wait(pen, one, [free, start], line, actor);
          free = to;
        });
      }
    }
    if (end >= one.starts.length && end > 0) this.wait(pen, one, [one.ends[end - 1], this.plan.summary.step_seconds / this.tick], line, null);
  }

  /** A wait with what it is for. */
  wait(pen, one, [from, to], [top, high], actor) {
    if (to - from <= SHORTEST_WAIT) return;
    const [x, until] = [this.x(from), this.x(to)];
    if (until - x < 1 || until < this.left || x > this.width) return;
    pen.fillStyle = this.theme.hatch;
    pen.fillRect(x, top + 2, until - x, high - 4);
    if (until - x < 40) return;
    const [start, end] = [Math.max(x, this.left) + 4, Math.min(until, this.width) - 3];
    const text = waitTexts(this.plan, one, actor).find((text) => pen.measureText(text).width <= end - start - 4);
    if (!text) return;
    pen.fillStyle = this.theme.bg;
    pen.fillRect(start - 2, top + high / 2 - 7, pen.measureText(text).width + 4, 14);
    this.text(pen, [text], [x, until], [top, high], this.theme.soft);
  }

  /** The parts of a span of places in which the stream does not wait, in pixels. Waits below a pixel part nothing. */
  pieces(times, first, last) {
    const all = [];
    for (let place = first; place <= last; place++) {
      const [x, to] = [this.x(times[place][0]), this.x(times[place][1])];
      const before = all[all.length - 1];
      if (before && x - before[1] < 1) before[1] = Math.max(before[1], to);
      else all.push([x, to]);
    }
    return all;
  }

  /** The passes and layers of a run, above its events. */
  nest(pen, one, run, top) {
    const nest = nestOf(one, one.stream.items[run][0]);
    const times = [];
    eachEvent(one, run, (actor, start, end, microbatch, place) => { times[place] = [start, end]; });
    const microbatch = ofMicrobatch(one, run, one.stream.items[run][1]);
    for (const [first, last, pass] of nest.passes) {
      const name = pass === undefined ? "" : this.timeline.passes[pass];
      const texts = microbatch === null ? [name] : [`${name} ${microbatch}`, String(microbatch)];
      this.pieces(times, first, last).forEach((piece) => this.span(pen, piece, [top, PASS], texts, this.theme[name] || this.theme.panel));
    }
    nest.layers.forEach(([first, last, layer], at) => {
      const known = layer >= 0 && this.plan.places.layers[layer];
      const texts = known ? [known.name, known.name.slice(known.name.lastIndexOf(".") + 1)] : [];
      this.pieces(times, first, last).forEach((piece) => this.span(pen, piece, [top + PASS, LAYER], texts, at % 2 ? this.theme.panel : this.theme.bg, this.theme.ink));
    });
  }

  /** A span with the first of its names for which there is room. */
  span(pen, [x, to], [top, high], texts, fill, ink = null) {
    if (to < this.left || x > this.width || to <= x) return;
    pen.fillStyle = fill;
    pen.globalAlpha = ink ? 1 : 0.55;
    pen.fillRect(x, top + 1, Math.max(0.6, to - x - (to - x > 3 ? 0.7 : 0)), high - 1);
    pen.globalAlpha = 1;
    if (ink && to - x > 3) {
      pen.lineWidth = 1;
      pen.strokeStyle = this.theme.line;
      pen.strokeRect(x + 0.5, top + 1.5, to - x - 1.5, high - 2);
    }
    this.text(pen, texts, [x, to], [top, high], ink || this.theme.ink);
  }

  /** The first of some texts for which there is room between two places. */
  text(pen, texts, [x, to], [top, high], ink) {
    const [from, until] = [Math.max(x, this.left) + 4, Math.min(to, this.width) - 3];
    if (until - from < 14) return;
    const fits = texts.find((text) => text && pen.measureText(text).width <= until - from);
    if (!fits) return;
    pen.fillStyle = ink;
    pen.textAlign = "left";
    pen.fillText(fits, from, top + high / 2 + 0.5);
  }

  average(one, run, width) {
    return width / (one.stream.base[one.stream.items[run][0]].length || 1);
  }

  /** The microbatch of a run, in the middle of it. */
  name(pen, one, run, [x, to], top, each) {
    const [block, microbatch] = one.stream.items[run];
    if (to - x < 15 || one.often[block] === 1) return;
    const middle = (Math.max(x, this.left) + Math.min(to, this.width)) / 2;
    const line = top + this.high() / 2;
    pen.textAlign = "center";
    if (each) {
      pen.fillStyle = this.theme.bg;
      pen.globalAlpha = 0.85;
      pen.fillRect(middle - 9, line - 6, 18, 12);
      pen.globalAlpha = 1;
    }
    pen.fillStyle = each ? this.theme.ink : inkOn(this.timeline.doings[one.colors[block]]);
    pen.fillText(String(microbatch), middle, line + 0.5);
  }

  /** All events of a run; those below a pixel together, in the colour of most of them. */
  events(pen, one, run, [top, high]) {
    let [pixel, sums] = [null, null];
    const messages = [];
    const flush = () => {
      if (pixel === null) return;
      const entries = Object.entries(sums).sort((a, b) => b[1] - a[1]);
      pen.fillStyle = this.theme[this.timeline.doings[entries[0][0]]];
      pen.globalAlpha = Math.min(1, 0.25 + entries.reduce((all, [, sum]) => all + sum, 0));
      pen.fillRect(pixel, top + 2, 1, high - 4);
      pen.globalAlpha = 1;
      [pixel, sums] = [null, null];
    };
    eachEvent(one, run, (actor, start, end) => {
      const [x, to] = [this.x(start), this.x(end)];
      const doing = one.doings[actor][DOING];
      const message = end <= start && this.timeline.doings[doing] === "communication";
      if (to < this.left || x > this.width || (end <= start && !message)) return;
      this.drawn += 1;
      if (message) {
        messages.push(x);
        return;
      }
      if (to - x < 1) {
        if (pixel !== Math.floor(x)) flush();
        pixel = Math.floor(x);
        sums = sums || {};
        sums[doing] = (sums[doing] || 0) + (to - x);
        return;
      }
      flush();
      pen.fillStyle = this.theme[this.timeline.doings[doing]];
      pen.fillRect(x, top + 2, Math.max(0.6, to - x - (to - x > 3 ? 0.7 : 0)), high - 4);
      if (to - x > 26) this.text(pen, actorTexts(this.plan, one.doings[actor]), [x, to], [top, high], inkOn(this.timeline.doings[doing]));
    });
    flush();
    // Messages take no time of a stream, and are drawn as strokes.
    pen.fillStyle = this.theme.communication;
    messages.forEach((x) => pen.fillRect(x - 1, top, 2.5, high));
  }

  /** A frame around the chosen event. */
  mark(pen) {
    const top = this.chosen && this.tops[this.lanes.indexOf(this.chosen.lane)];
    if (top === null || top === undefined) return;
    const { start, end } = this.chosen.event;
    const high = this.nested ? EVENT : LANE;
    const x = this.x(start);
    pen.save();
    pen.beginPath();
    pen.rect(this.left, 0, this.width - this.left, this.height);
    pen.clip();
    pen.lineWidth = 2;
    pen.strokeStyle = this.theme.ink;
    pen.strokeRect(x - 1, top + this.high() - high + 1, Math.max(3, this.x(end) - x + 1), high - 2);
    pen.restore();
  }

  labels(pen) {
    pen.fillStyle = this.theme.bg;
    pen.fillRect(0, 0, this.left, this.height);
    pen.textAlign = "left";
    this.lanes.forEach((one, at) => {
      const first = at === 0 || this.lanes[at - 1].row !== one.row;
      const what = one.number > 0 ? "communication" : "kernels";
      const alike = this.unfolded ? [one.row] : this.folds.get(one.row) || [one.row];
      const ranks = ranksNamed(joinedRuns(alike.map((row) => row.of))) + (alike.length > 1 ? `, as ${one.row.rank}` : "");
      const stage = `stage ${one.row.stage}`;
      const lines = this.nested ? [this.left < 100 ? stage : `${stage} · ${what}`, this.left < 100 && one.number > 0 ? what : ranks] : [first ? `${stage} · ${ranks}` : `  ${what}`];
      const from = this.tops[at] + this.high() / 2 - (lines.length - 1) * 7;
      lines.forEach((line, number) => {
        pen.fillStyle = number === 0 && first ? this.theme.ink : this.theme.soft;
        pen.fillText(shortened(pen, line, this.left - 12), 6, from + number * 14);
      });
    });
  }

  /** The event at a place of the canvas, with its lane. */
  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const at = this.tops.findIndex((top) => event.clientY - box.top >= top && event.clientY - box.top < top + this.high());
    const one = this.lanes[at];
    const x = event.clientX - box.left;
    if (!one || x < this.left) return null;
    const time = this.time(x) / this.tick;
    const level = this.level(event.clientY - box.top - this.tops[at]);
    const found = eventAt(one, time, level === "event" ? this.time(x + 2) / this.tick - time : 0);
    return found ? { lane: one, event: found, level } : this.waitAt(one, time);
  }

  /** The wait of a lane at a time, with the event that ends it, or none at the step's end. */
  waitAt(one, time) {
    const event = eventAfter(one, time);
    const wait = event ? waitBefore(one, event) : { from: one.ends[one.ends.length - 1], to: this.plan.summary.step_seconds / this.tick };
    return wait && wait.from <= time && time <= wait.to ? { lane: one, event, level: "wait", wait } : null;
  }

  /** What of a nested lane is at a height: its passes, its layers, its events. */
  level(y) {
    return !this.nested || y >= PASS + LAYER ? "event" : y >= PASS ? "layer" : "pass";
  }

  listen() {
    const { canvas, view } = this;
    let [dragged, moved] = [null, 0];
    const place = (event) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener("wheel", (event) => {
      const zooms = event.ctrlKey || event.metaKey || document.activeElement === canvas;
      if (zooms && Math.abs(event.deltaY) >= Math.abs(event.deltaX)) view.zoom(Math.exp(event.deltaY * 0.0018), this.time(place(event)));
      else if (event.deltaX || event.shiftKey) view.pan((event.deltaX || event.deltaY) / this.width);
      else return;
      event.preventDefault();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      [dragged, moved] = [place(event), 0];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", (event) => {
      const found = dragged !== null && moved < 4 ? this.under(event) : undefined;
      if (found !== undefined) this.choose(found && found.event ? found : null);
      dragged = null;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (dragged === null) return this.point(event);
      moved += Math.abs(dragged - place(event));
      view.pan((dragged - place(event)) / (this.width - this.left));
      dragged = place(event);
      tip.hide();
    });
    canvas.addEventListener("pointerleave", tip.hide);
    canvas.addEventListener("dblclick", (event) => this.zoomTo(this.under(event), this.time(place(event))));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const { view } = this;
    const acts = {
      "+": () => view.zoom(0.7), "=": () => view.zoom(0.7), "-": () => view.zoom(1 / 0.7), "0": () => view.set(0, view.whole),
      ArrowLeft: () => view.pan(-0.15), ArrowRight: () => view.pan(0.15), Home: () => view.set(0, view.to - view.from),
      End: () => view.set(view.whole - (view.to - view.from), view.whole), ".": () => this.next(1), ",": () => this.next(-1),
    };
    if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    acts[event.key]();
    event.preventDefault();
  }

  /** Chooses the event after the chosen one, or before it; the first of all where none is. */
  next(way) {
    const { lane: one, event } = this.chosen || { lane: this.lanes[0], event: null };
    if (!one) return;
    const [run, place] = event ? [event.run, event.place + way] : [0, 0];
    const length = (at) => (one.stream.items[at] ? one.stream.base[one.stream.items[at][0]].length : 0);
    const found = place < 0 ? eventOf(one, run - 1, length(run - 1) - 1) : eventOf(one, run, place) || eventOf(one, run + 1, 0);
    if (!found) return;
    this.choose({ lane: one, event: found, level: "event" });
    this.follow(found);
  }

  /** Moves the window where an event lies beyond it, so that the event begins in its middle. */
  follow({ start, end }) {
    const { view, tick } = this;
    if (start * tick >= view.from && end * tick <= view.to) return;
    const half = (view.to - view.from) / 2;
    view.set(start * tick - half, start * tick + half);
  }

  /** Shows a pass, a layer or an event as wide as there is room; else what is around a time. */
  zoomTo(found, time) {
    const [from, to] = found ? this.extent(found) : [0, 0];
    if (to <= from) return this.view.zoom(0.4, time);
    const air = (to - from) * 0.05;
    this.view.set((from - air) * this.tick, (to + air) * this.tick);
  }

  /** From when to when what was found lasts: the event, its layer or its pass, in ticks. */
  extent({ lane: one, event, level, wait }) {
    if (level === "wait") return [wait.from, wait.to];
    if (level === "event") return [event.start, event.end];
    const [first, last] = this.placesOf(one, event, level);
    return [eventOf(one, event.run, first).start, eventOf(one, event.run, last).end];
  }

  /** The first and the last place of the pass or the layer in which an event lies. */
  placesOf(one, event, level) {
    const nest = nestOf(one, one.stream.items[event.run][0]);
    return nest[level === "pass" ? "passes" : "layers"].find(([from, to]) => from <= event.place && event.place <= to);
  }

  /** Ticks of a pass or a layer in which the stream waits. */
  waited({ lane: one, event, level }) {
    return waitedBetween(one, event.run, ...this.placesOf(one, event, level));
  }

  point(event) {
    const found = this.under(event);
    if (!found) return tip.hide();
    const text = { event: eventText, wait: waitTip }[found.level] || spanText;
    tip.show(event, text(this, found));
  }

  /** Seconds of each lane by what it does, and those in which it waits. */
  table() {
    const { doings } = this.timeline;
    return table("Seconds of a step by stream", [["stage"], ["ranks"], ["stream", true], ["events", true], ...doings.map((name) => [name, true]), ["waiting", true]],
      this.every.map((one) => {
        const sums = byDoing(this.timeline, one).map((sum) => sum * this.tick);
        const waiting = Math.max(0, this.plan.summary.step_seconds - sums.reduce((all, sum) => all + sum, 0));
        return [String(one.row.stage), ranksNamed(one.row.of), String(one.number), count(one.events), ...[...sums, waiting].map(seconds)];
      }));
  }
}
