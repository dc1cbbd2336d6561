// The section of timelines: what steers them, the chosen event, and what the address says of both.

/** How much of the step an address shows: two shares of it. */
const spanKey = (view) => (view.to - view.from >= view.whole * 0.9999 ? [] : [[view.from, view.to].map((time) => Number((time / view.whole).toPrecision(9))).join("-")]);

function readSpan(view, keys) {
  const [from, to] = (keys[0] || "0-1").split("-").map(Number);
  if (from < to) view.set(from * view.whole, to * view.whole);
}

/** One plan's timeline with the panel of the event that is chosen. */
function timelineFigure(one, at) {
  const { plan } = one;
  const panel = el("div", { class: "chosen" });
  const choose = (found) => {
    one.chosen = found;
    panel.replaceChildren(...(found ? [eventPanel(one, found, () => choose(null))] : []));
    const others = address.all("event").filter((key) => !key.startsWith(keyOf(plan, "")));
    address.put("event", found ? [...others, eventKey(plan, found)] : others);
    if (one.width) one.later();
  };
  one.choose = choose;
  address.on("event", (keys) => {
    const [key] = namesOf(plan, keys);
    choose(key === undefined ? null : eventOfKey(one, key));
  });
  return el("figure", { data: { events: String(one.every.reduce((sum, lane) => sum + lane.events, 0)) } },
    page.plans.length > 1 && el("figcaption", null, el("span", { class: "tag" }, "AB"[at]), seconds(plan.summary.step_seconds)),
    el("div", { class: "canvas" }, one.canvas), panel,
    one.timeline.left_out > 0 && el("p", { class: "note" }, `${one.timeline.left_out} more kinds of ranks are not shown.`),
    opened("as a table", () => one.table(), `table:${keyOf(plan, "events")}`));
}

/** A button that is pressed or not, of all timelines. */
function switchOf(all, text, title, name) {
  const button = el("button", { type: "button", title, "aria-pressed": "false" }, text);
  const set = (on) => {
    all.forEach((one) => { one[name] = on; one.arrange(); if (one.width) one.later(); });
    button.setAttribute("aria-pressed", String(on));
  };
  button.addEventListener("click", () => {
    set(!all[0][name]);
    address.put(name, [Number(all[0][name])]);
  });
  const first = all[0][name];
  address.on(name, ([key]) => set(key === undefined ? first : key === "1"));
  button.setAttribute("aria-pressed", String(all[0][name]));
  return button;
}

/** Shows the first event whose actor is wanted, with some of what is around it; of a layer all of it. With a time in ticks the one that begins
 *  nearest to it. */
function showEvent(one, wanted, level = "event", time = null) {
  for (const lane of one.every) {
    const event = firstEvent(lane, wanted, time);
    if (!event) continue;
    const found = { lane, event, level };
    const [from, to] = one.extent(found);
    // What is very short is shown with what is around it, a hundredth of the step at least.
    const air = Math.max((to - from) * (level === "event" ? 4 : 0.05), one.view.whole / one.tick / 200);
    one.view.set((from - air) * one.tick, (to + air) * one.tick);
    one.choose(found);
    return address.show("when");
  }
}

/** Timelines of all plans, one below the other, on one scale. */
function timelines(page) {
  const view = new View(Math.max(...page.plans.map((plan) => plan.summary.step_seconds)));
  const all = page.plans.map((plan) => new Timeline(plan, view));
  // One switch is for all of them, so all begin alike.
  if (all.some((one) => !one.nested)) all.forEach((one) => { one.nested = false; one.arrange(); });
  const button = (text, title, act) => el("button", { type: "button", title, "aria-label": title, on: { click: act } }, text);
  const doings = page.plans[0].timeline.doings;
  const folds = all.some((one) => [...one.folds.values()].some((rows) => rows.length > 1));
  const figures = all.map(timelineFigure);
  view.listeners.push(() => address.put("time", spanKey(view)));
  address.on("time", (keys) => readSpan(view, keys));
  const body = [
    el("div", { class: "controls" },
      button("+", "Zoom in", () => view.zoom(0.5)), button("−", "Zoom out", () => view.zoom(2)), button("◀", "Earlier", () => view.pan(-0.3)),
      button("▶", "Later", () => view.pan(0.3)), button("All", "The whole step", () => view.set(0, view.whole)),
      switchOf(all, "Layers", "Nest events in passes and layers", "nested"),
      folds && switchOf(all, "All ranks", "Show each kind of ranks of a stage, which differ in sizes and times alone", "unfolded"),
      el("span", { class: "how" }, "drag to move, Ctrl and wheel to zoom, click for more, double-click to fill the window; keys + − ← → 0 , .")),
    legend(doings.map((name) => [`var(--${name})`, name]).concat([["var(--idle)", "waiting"]])),
    figures,
  ];
  return { body, draw: () => all.forEach((one) => one.draw()), view, all };
}
