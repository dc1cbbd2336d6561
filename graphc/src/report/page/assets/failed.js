// Why there is no plan: what is wrong, what was asked for that cannot be had together, and what to ask for instead.

/** Tensors of a pin that are named beside it. */
const MOST_DEMANDED = 200;

function demandCard(one, number, count) {
  const rows = one.tensors.slice(0, MOST_DEMANDED).map(([name, type, layout]) => [named(name), el("span", { class: "mono" }, visible(type)), el("span", null, chips(layout))]);
  const more = one.tensors.length > rows.length ? `, the first ${rows.length} are shown` : "";
  return el("li", { class: "demand" },
    el("h3", null, el("span", { class: "tag" }, `${number} of ${count}`), el("bdi", null, visible(one.what))),
    el("dl", { class: "facts" },
      el("dt", null, "demands"), el("dd", null, visible(one.demands)),
      el("dt", null, "instead"), el("dd", { class: "advice" }, visible(one.advice))),
    rows.length > 0 && opened(some(one.tensors.length, "tensor"), () => table(`Tensors that it lays${more}`, [["tensor"], ["type"], ["layout"]], rows), `demand:${number}`, rows.length <= 8));
}

function conflict(failed) {
  const number = failed.conflict.length;
  const proof = failed.smallest ? "no fewer conflict" : "there may be fewer that conflict";
  return el("section", { id: "conflict" }, el("h2", null, "What cannot be had together"),
    el("p", { class: "lead" }, `These ${number} things. Without any one of them there is a plan (${proof}), so change one.`),
    el("ol", { class: "demands" }, failed.conflict.map((one, at) => demandCard(one, at + 1, number))));
}

/** Bytes as a bar, beside the limit as a line. */
function needBar(label, size, most, limit) {
  const over = size > limit;
  return [el("span", null, label), el("div", { class: "need", role: "img", "aria-label": `${label}: ${bytes(size)}` },
    el("i", { style: { width: `${(size / most) * 100}%`, background: over ? "var(--limit)" : "var(--memory)" } }),
    el("b", { style: { left: `${(limit / most) * 100}%` } })), el("span", { class: "n" }, bytes(size))];
}

/** What the bound of memory is proven of. */
const LEAST_CONDITION = "The bound is proven for plans of these options in which each tensor has memory of its own. " +
  "Where tensors share memory, as the operand and the result of a chain of elementwise ops do, a plan may need less.";

function shortage(short) {
  const most = Math.max(short.needed, short.limit, short.least || 0);
  const bars = [["the leanest plan found", short.needed], ["no plan goes below", short.least], ["a rank may use", short.limit]];
  return el("section", { id: "short" }, el("h2", null, "How much memory is missing"),
    el("p", { class: "lead" }, `Rank ${short.rank} needs ${bytes(short.needed)} and may use ${bytes(short.limit)}: ${bytes(short.needed - short.limit)} too little.`),
    el("div", { class: "needs" }, bars.filter(([, size]) => size !== null).map(([label, size]) => needBar(label, size, most, short.limit))),
    short.least !== null && el("p", { class: "note least" }, LEAST_CONDITION),
    short.largest.length > 0 && table("The largest tensors of the rank at its peak", [["tensor"], ["bytes", true]],
      short.largest.map(([name, size]) => [named(name), inline(size / short.largest[0][1], bytes(size), "memory")]), { scroll: false }));
}

/** The sections of a page without a plan. */
function failure(failed) {
  return [
    el("section", { id: "failed" }, el("h2", null, "There is no plan"),
      el("p", { class: "error", role: "alert" }, visible(failed.error))),
    failed.conflict.length > 0 && conflict(failed),
    failed.shortage && shortage(failed.shortage),
    el("section", { id: "asked" }, el("h2", null, "What was asked for"),
      el("p", { class: "lead" }, "Options that are not the usual ones, and the machines."),
      table("Options", [["option"], ["value"]], [...failed.options.map(([name, value]) => [named(name), named(worded(value))]), [named("cluster"), named(failed.cluster)]], { scroll: false })),
  ].filter(Boolean);
}
