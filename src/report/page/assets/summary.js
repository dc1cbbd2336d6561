// The figures at the top.

function card(title, big, small, value, extra, wide) {
  return el("div", { class: wide ? "card wide" : "card" },
    el("dt", null, title),
    el("dd", { class: "big", data: { value: String(value) } }, big),
    extra && el("dd", null, extra),
    el("dd", { class: "small" }, small));
}

function bar(parts, title) {
  return el("div", { class: "bar", role: "img", "aria-label": title, title },
    parts.map(([share, background]) => el("i", { style: { width: `${share * 100}%`, background } })));
}

function strip(plan) {
  const s = plan.summary;
  const [compute, communication, waiting] = s.shares;
  const shares = `compute ${percent(compute)}, communication not hidden ${percent(communication)}, waiting ${percent(waiting)}`;
  const full = s.peak_memory_bytes / s.memory_bytes;
  const gap = s.planner.status === "optimal" ? "proven best" : `gap ${percent(s.planner.gap, 2)}`;
  const tied = s.planner.tied_axes ? `, axes ${s.planner.tied_axes.join(", ")} planned as one with those before` : "";
  const pace = s.samples && s.step_seconds > 0 ? `${rate(s.samples / s.step_seconds)} samples/s; ` : "";
  return el("dl", { class: "strip", "aria-label": `Figures of ${visible(plan.name)}` },
    card("Predicted step", seconds(s.step_seconds), pace + shares, s.step_seconds, bar([
      [compute, "var(--forward)"], [communication, "var(--communication)"], [waiting, "var(--b)"]], shares), true),
    card("Peak memory of a rank", bytes(s.peak_memory_bytes), `${percent(full)} of ${bytes(s.memory_bytes)}`, s.peak_memory_bytes,
      bar([[Math.min(1, full), full > 1 ? "var(--limit)" : "var(--parameter)"]], percent(full))),
    card("Planner", gap, `objective ${seconds(s.planner.objective_seconds)}, bound ${seconds(s.planner.bound_seconds)}${tied}`, s.planner.gap),
    card("Ranks", count(s.ranks), `${times(s.mesh)} on ${visible(s.cluster)}`, s.ranks),
    card("Pipeline", s.stages === 1 ? "1 stage" : `${s.stages} stages`,
      `${some(s.microbatches, "microbatch", "microbatches")}, ${s.stages > 1 ? s.schedule + ", " : ""}bubble ${percent(s.bubble_fraction)}`, s.stages),
    s.mfu !== null && card("Of the machines' peak", percent(s.mfu), "model FLOPs utilization", s.mfu));
}

function summary(page) {
  const two = page.plans.length > 1;
  return el("section", { id: "summary", "aria-label": "Summary" }, page.plans.map((plan, at) => [
    two && el("h3", null, el("span", { class: "tag" }, "AB"[at]), named(plan.name), " ", el("span", { class: "note" }, visible(plan.file))),
    strip(plan),
  ]));
}
