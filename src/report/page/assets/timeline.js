// The simulated step: a lane for each stream of each kind of rank, on a canvas that zooms and pans.

const LANE = 24;
const GAP = 10;
const LABELS = 118;
const AXIS = 24;
/** Events that are drawn one by one; of more, runs of blocks are. */
const MOST_EVENTS = 60000;

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
    Object.assign(this, { plan, view, timeline: plan.timeline, drawn: 0, planned: false });
    this.lanes = plan.timeline.rows.flatMap((row) =>
      row.streams.map((stream, number) => lane(plan.timeline, row, stream, number)).filter((one) => one.events > 0));
    this.tick = plan.timeline.tick_seconds;
    this.canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": "The simulated step as a timeline; plus and minus zoom, arrows move, 0 shows all. A table follows." });
    this.tops = [];
    let top = AXIS;
    this.lanes.forEach((one, at) => {
      if (at > 0 && one.row !== this.lanes[at - 1].row) top += GAP;
      this.tops.push(top);
      top += LANE;
    });
    this.height = top + 6;
    view.listeners.push(() => this.later());
    this.listen();
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
    return LABELS + ((ticks * this.tick - this.view.from) / (this.view.to - this.view.from)) * (this.width - LABELS);
  }

  time(x) {
    return this.view.from + ((x - LABELS) / (this.width - LABELS)) * (this.view.to - this.view.from);
  }

  draw() {
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    this.width = canvas.parentNode.clientWidth;
    canvas.style.height = `${this.height}px`;
    if (canvas.width !== Math.round(this.width * ratio) || canvas.height !== Math.round(this.height * ratio)) {
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(this.height * ratio);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.theme = Object.fromEntries(["bg", "ink", "soft", "line", "panel", ...this.timeline.doings].map((name) => [name, color(name)]));
    pen.fillStyle = this.theme.bg;
    pen.fillRect(0, 0, this.width, this.height);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.axis(pen);
    const [from, to] = [this.view.from / this.tick, this.view.to / this.tick];
    const spans = this.lanes.map((one) => [firstRun(one, from), this.endRun(one, to)]);
    const events = this.lanes.reduce((all, one, at) => {
      for (let run = spans[at][0]; run < spans[at][1]; run++) all += one.stream.base[one.stream.items[run][0]].length;
      return all;
    }, 0);
    this.drawn = 0;
    this.lanes.forEach((one, at) => this.lane(pen, one, this.tops[at], spans[at], events <= MOST_EVENTS));
    this.labels(pen);
    canvas.dataset.drawn = String(this.drawn);
    canvas.dataset.one = String(events <= MOST_EVENTS);
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
    const wanted = ticksBetween(this.view.from, this.view.to, Math.max(3, this.width / 130));
    const step = wanted.length > 1 ? wanted[1] - wanted[0] : this.view.to - this.view.from;
    pen.textAlign = "center";
    for (const at of wanted) {
      const x = this.x(at / this.tick);
      pen.fillStyle = this.theme.line;
      pen.fillRect(Math.round(x), AXIS - 4, 1, this.height);
      pen.fillStyle = this.theme.soft;
      pen.fillText(instant(at, step), Math.min(this.width - 28, Math.max(LABELS + 24, x)), AXIS / 2 - 1);
    }
  }

  lane(pen, one, top, [first, end], each) {
    pen.save();
    pen.beginPath();
    pen.rect(LABELS, top, this.width - LABELS, LANE);
    pen.clip();
    pen.fillStyle = this.theme.panel;
    pen.fillRect(LABELS, top + 2, this.width - LABELS, LANE - 4);
    for (let run = first; run < end; run++) {
      const [x, to] = [this.x(one.starts[run]), this.x(one.ends[run])];
      const color = this.theme[this.timeline.doings[one.colors[one.stream.items[run][0]]]];
      if (each) {
        this.events(pen, one, run, top);
      } else {
        pen.fillStyle = color;
        pen.fillRect(x, top + 2, Math.max(0.5, to - x - (to - x > 4 ? 1 : 0)), LANE - 4);
        this.drawn += 1;
      }
      if (!each || (to - x > 16 && this.average(one, run, to - x) < 12)) this.name(pen, one, run, x, to, top, each);
    }
    pen.restore();
  }

  average(one, run, width) {
    return width / (one.stream.base[one.stream.items[run][0]].length || 1);
  }

  /** The microbatch of a run, in the middle of it. */
  name(pen, one, run, x, to, top, each) {
    const [block, microbatch] = one.stream.items[run];
    if (to - x < 15 || one.often[block] === 1) return;
    const text = String(microbatch);
    const middle = (Math.max(x, LABELS) + Math.min(to, this.width)) / 2;
    pen.textAlign = "center";
    if (each) {
      pen.fillStyle = this.theme.bg;
      pen.globalAlpha = 0.85;
      pen.fillRect(middle - 9, top + 6, 18, LANE - 12);
      pen.globalAlpha = 1;
    }
    pen.fillStyle = each ? this.theme.ink : "#ffffff";
    if (!each && this.timeline.doings[one.colors[block]] === "communication") pen.fillStyle = "#111111";
    pen.fillText(text, middle, top + LANE / 2 + 0.5);
  }

  /** All events of a run; those below a pixel together, in the colour of most of them. */
  events(pen, one, run, top) {
    let [pixel, sums] = [null, null];
    const flush = () => {
      if (pixel === null) return;
      const entries = Object.entries(sums).sort((a, b) => b[1] - a[1]);
      pen.fillStyle = this.theme[this.timeline.doings[entries[0][0]]];
      pen.globalAlpha = Math.min(1, 0.25 + entries.reduce((all, [, sum]) => all + sum, 0));
      pen.fillRect(pixel, top + 2, 1, LANE - 4);
      pen.globalAlpha = 1;
      [pixel, sums] = [null, null];
    };
    eachEvent(one, run, (actor, start, end) => {
      const [x, to] = [this.x(start), this.x(end)];
      if (to < LABELS || x > this.width || end <= start) return;
      this.drawn += 1;
      const doing = one.doings[actor][1];
      if (to - x < 1) {
        if (pixel !== Math.floor(x)) flush();
        pixel = Math.floor(x);
        sums = sums || {};
        sums[doing] = (sums[doing] || 0) + (to - x);
        return;
      }
      flush();
      pen.fillStyle = this.theme[this.timeline.doings[doing]];
      pen.fillRect(x, top + 2, Math.max(0.6, to - x - (to - x > 3 ? 0.7 : 0)), LANE - 4);
      if (to - x > 46) this.actorName(pen, one, actor, x, to, top);
    });
    flush();
  }

  actorName(pen, one, actor, x, to, top) {
    const [from, until] = [Math.max(x, LABELS) + 4, Math.min(to, this.width) - 4];
    const doing = this.timeline.doings[one.doings[actor][1]];
    const text = visible(one.doings[actor][0]);
    const fits = Math.floor((until - from) / 6.1);
    if (fits < 4) return;
    pen.fillStyle = ["communication", "recomputed", "update", "data"].includes(doing) ? "#111111" : "#ffffff";
    pen.textAlign = "left";
    pen.fillText(text.length > fits ? text.slice(0, fits - 1) + "…" : text, from, top + LANE / 2 + 0.5);
  }

  labels(pen) {
    pen.fillStyle = this.theme.bg;
    pen.fillRect(0, 0, LABELS, this.height);
    pen.textAlign = "left";
    this.lanes.forEach((one, at) => {
      const first = at === 0 || this.lanes[at - 1].row !== one.row;
      pen.fillStyle = first ? this.theme.ink : this.theme.soft;
      const like = one.row.ranks > 1 ? ` (${one.row.ranks} ranks)` : ` (rank ${one.row.rank})`;
      pen.fillText(first ? `stage ${one.row.stage}${like}` : "  communication", 8, this.tops[at] + LANE / 2);
    });
  }

  listen() {
    const { canvas, view } = this;
    let dragged = null;
    const place = (event) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener("wheel", (event) => {
      const zooms = event.ctrlKey || event.metaKey || document.activeElement === canvas;
      if (zooms && Math.abs(event.deltaY) >= Math.abs(event.deltaX)) view.zoom(Math.exp(event.deltaY * 0.0018), this.time(place(event)));
      else if (event.deltaX || event.shiftKey) view.pan((event.deltaX || event.deltaY) / this.width);
      else return;
      event.preventDefault();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      dragged = place(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => { dragged = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (dragged === null) return this.point(event);
      view.pan((dragged - place(event)) / (this.width - LABELS));
      dragged = place(event);
      tip.hide();
    });
    canvas.addEventListener("pointerleave", tip.hide);
    canvas.addEventListener("dblclick", (event) => view.zoom(0.4, this.time(place(event))));
    canvas.addEventListener("keydown", (event) => {
      const acts = {
        "+": () => view.zoom(0.7), "=": () => view.zoom(0.7), "-": () => view.zoom(1 / 0.7), "0": () => view.set(0, view.whole),
        ArrowLeft: () => view.pan(-0.15), ArrowRight: () => view.pan(0.15), Home: () => view.set(0, view.to - view.from),
        End: () => view.set(view.whole - (view.to - view.from), view.whole),
      };
      if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      acts[event.key]();
      event.preventDefault();
    });
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const at = this.tops.findIndex((top) => event.clientY - box.top >= top && event.clientY - box.top < top + LANE);
    const one = this.lanes[at];
    const found = one && eventAt(one, this.time(event.clientX - box.left) / this.tick);
    if (!found) return tip.hide();
    const [name, doing] = one.doings[found.actor];
    tip.show(event, `${visible(name)}\n${this.timeline.doings[doing]} · ${found.microbatch === null ? "once a step" : `microbatch ${found.microbatch}`} · rank ${one.row.rank}, stream ${one.number}\n` +
      `${seconds((found.end - found.start) * this.tick)}, from ${instant(found.start * this.tick, this.view.whole / 1000)}`);
  }

  /** Seconds of each lane by what it does. */
  table() {
    const { doings } = this.timeline;
    return table("Seconds of a step by stream", [["stage"], ["rank", true], ["stream", true], ["events", true], ...doings.map((name) => [name, true])],
      this.lanes.map((one) => [String(one.row.stage), String(one.row.rank), String(one.number), count(one.events),
        ...byDoing(this.timeline, one).map((sum) => seconds(sum * this.tick))]));
  }
}

/** Timelines of all plans, one below the other, on one scale. */
function timelines(page) {
  const view = new View(Math.max(...page.plans.map((plan) => plan.summary.step_seconds)));
  const all = page.plans.map((plan) => new Timeline(plan, view));
  const button = (text, title, act) => el("button", { type: "button", title, "aria-label": title, on: { click: act } }, text);
  const doings = page.plans[0].timeline.doings;
  const figures = all.map((one, at) => el("figure", { data: { events: String(one.lanes.reduce((sum, lane) => sum + lane.events, 0)) } },
    page.plans.length > 1 && el("figcaption", null, el("span", { class: "tag" }, "AB"[at]), seconds(page.plans[at].summary.step_seconds)),
    el("div", { class: "canvas" }, one.canvas),
    one.timeline.left_out > 0 && el("p", { class: "note" }, `${one.timeline.left_out} more kinds of ranks are not shown.`),
    opened("as a table", () => one.table())));
  const body = [
    el("div", { class: "controls" },
      button("+", "Zoom in", () => view.zoom(0.5)), button("−", "Zoom out", () => view.zoom(2)), button("◀", "Earlier", () => view.pan(-0.3)),
      button("▶", "Later", () => view.pan(0.3)), button("All", "The whole step", () => view.set(0, view.whole)),
      el("span", null, "drag to move, Ctrl and wheel to zoom, keys + − ← → 0; numbers are microbatches")),
    legend(doings.map((name) => [`var(--${name})`, name]).concat([["var(--panel)", "waiting"]])),
    figures,
  ];
  return { body, draw: () => all.forEach((one) => one.draw()), view, all };
}
