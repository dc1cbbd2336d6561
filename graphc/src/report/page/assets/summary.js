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

/** What the objective is, beside the seconds of a step, which it is not. */
const objectiveText = ({ stages, microbatches }) =>
  `the cost of ${microbatches > 1 ? "all microbatches" : "each op and boxing"}${stages > 1 ? ` on all ${stages} stages` : ""}, added up`;

/** The longer text: why objective and step are different numbers. */
function objectiveNote(plan) {
  const { stages, step_seconds: step, planner: { objective_seconds: objective } } = plan.summary;
  const beside = stages > 1 ? `the ${stages} stages work beside each other, ` : "";
  return `The objective, ${seconds(objective)}, is what the planner minimises: ${objectiveText(plan.summary)}. ` +
    `The step, ${seconds(step)}, is simulated: there ${beside}communication hides under kernels, elementwise chains are one kernel, and ranks wait for each other.`;
}

/** The measured seconds of a step, of a profile or else of the pace of a run; null where there are none. */
function measuredStep(page) {
  const { went } = page;
  if (went && went.measured) return went.measured.step[1];
  const samples = page.plans[0].summary.samples;
  return went && went.pace && samples ? samples / went.pace.measured : null;
}

/** What the measured step is of; beside a profile also what its run did, which need not be the same. */
function measuredSource({ went }) {
  if (!went || !went.measured) return "the mean of the run without its first step";
  return `the median of the profile${went.pace ? `; the run made ${rate(went.pace.measured)} samples/s` : ""}`;
}

function measuredCard(plan, measured) {
  const { samples, step_seconds: step } = plan.summary;
  const times = measured / step;
  const off = times >= 10 || times <= 0.1 ? `${times.toPrecision(2)} times the predicted step` : Math.abs(times - 1) < 5e-4 ? "as predicted"
    : `${percent(Math.abs(times - 1))} ${times > 1 ? "longer" : "shorter"} than predicted`;
  return card("Measured step", seconds(measured), `${samples ? `${rate(samples / measured)} samples/s; ` : ""}${off}: ${measuredSource(page)}`, measured);
}

/** A share of the machines' peak; more than all of it says that the cluster's figures are too low. */
function peakCard(mfu, measured, step) {
  const shares = [["predicted", mfu], ...(measured ? [["measured", (mfu * step) / measured]] : [])];
  const more = shares.some(([, share]) => share > 1) ? ": more than there is, so the cluster's figures are too low; `graphc calibrate` measures them" : "";
  const small = `model FLOPs utilization${measured ? `, predicted; ${percent(shares[1][1])} measured` : ""}${more}`;
  return card("Of the machines' peak", percent(mfu), prose(small), mfu);
}

function strip(plan, measured) {
  const s = plan.summary;
  const [compute, communication, waiting] = s.shares;
  const shares = `compute ${percent(compute)}, communication not hidden ${percent(communication)}, waiting ${percent(waiting)}`;
  const full = s.peak_memory_bytes / s.memory_bytes;
  const gap = s.planner.status === "optimal" ? "proven best" : `gap ${percent(s.planner.gap, 2)}`;
  const tied = s.planner.tied_axes ? `, axes ${s.planner.tied_axes.join(", ")} planned as one with those before` : "";
  const pace = s.samples && s.step_seconds > 0 ? `${rate(s.samples / s.step_seconds)} samples/s; ` : "";
  return el("dl", { class: "strip", "aria-label": `Figures of ${visible(plan.name)}` },
    card("Predicted step", seconds(s.step_seconds), pace + shares, s.step_seconds, bar([
      [compute, "var(--kernel)"], [communication, "var(--communication)"], [waiting, "var(--idle)"]], shares), true),
    measured && measuredCard(plan, measured),
    card("Peak memory of a rank", bytes(s.peak_memory_bytes), `${percent(full)} of ${bytes(s.memory_bytes)}`, s.peak_memory_bytes,
      bar([[Math.min(1, full), full > 1 ? "var(--limit)" : "var(--memory)"]], percent(full))),
    card("Planner", gap, `objective ${seconds(s.planner.objective_seconds)}, bound ${seconds(s.planner.bound_seconds)}: ${objectiveText(s)}${tied}`, s.planner.gap),
    card("Ranks", count(s.ranks), `${times(s.mesh)} on ${visible(s.cluster)}`, s.ranks),
    card("Pipeline", s.stages === 1 ? "1 stage" : `${s.stages} stages`,
      `${some(s.microbatches, "microbatch", "microbatches")}, ${s.stages > 1 ? s.schedule + ", " : ""}bubble ${percent(s.bubble_fraction)}`, s.stages),
    s.mfu !== null && peakCard(s.mfu, measured, s.step_seconds));
}

function summary(page) {
  const two = page.plans.length > 1;
  return el("section", { id: "summary", "aria-label": "Summary" }, page.plans.map((plan, at) => [
    two && el("h3", null, planTag(at), named(planName(plan)), planName(plan) === plan.file ? null : [" ", el("span", { class: "note" }, visible(plan.file))]),
    strip(plan, at === 0 ? measuredStep(page) : null),
  ]));
}
