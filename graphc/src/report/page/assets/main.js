// The page: sections in order, and what they share: the theme, the chosen tensor, the search.

const page = JSON.parse(document.getElementById("data").textContent);
const two = page.plans.length > 1;

/** What tells a plan from the other: its name, or its file where both have one name. */
const planName = (plan) => (two && page.plans[0].name === page.plans[1].name && page.plans[0].file !== page.plans[1].file ? plan.file : plan.name);

const planTag = (at) => el("span", { class: "tag" }, "AB"[at]);

function section(id, title, lead, make) {
  return el("section", { id }, el("h2", null, title), el("p", { class: "lead" }, prose(lead)),
    el("div", { class: two ? "columns two" : "columns" }, page.plans.map((plan, at) =>
      el("div", { class: "plan" }, two && el("h3", null, planTag(at), named(planName(plan))), make(plan, at)))));
}

/** What goes where: ranks, layers, the chosen tensor. */
function where(plan) {
  const ranks = mesh(plan);
  const panel = el("div", { class: "chosen" });
  const show = (tensor) => {
    ranks.show(tensor);
    panel.replaceChildren(...(tensor ? [tensorPanel(plan, tensor, () => select(null))] : []));
  };
  const select = (tensor) => {
    const others = address.all("tensor").filter((key) => !key.startsWith(keyOf(plan, "")));
    address.put("tensor", tensor ? [...others, keyOf(plan, tensor[0])] : others);
    show(tensor);
  };
  address.on("tensor", (keys) => {
    const [name] = namesOf(plan, keys);
    show(plan.places.tensors.find((tensor) => tensor[0] === name));
  });
  const model = layers(plan, select);
  const axes = plan.places.mesh.map((extent, axis) => `axis ${axis}`).join(" above ");
  return el("div", { class: "where" },
    el("div", null, ranks.figure, panel),
    el("div", null, el("div", { class: "search" }, searchBox(plan, model)), layoutLegend(plan),
      el("p", { class: "note" }, `A bar is a tensor, cut into ${plan.places.mesh.length === 1 ? "its layout" : axes}; gaps part inputs, parameters, activations, gradients and states.`),
      model.found, model.list));
}

/** The box for names of tensors; the address keeps what is in it. */
function searchBox(plan, model) {
  const look = (text) => {
    model.look(text);
    const others = address.all("search").filter((key) => !key.startsWith(keyOf(plan, "")));
    address.put("search", text.trim() ? [...others, keyOf(plan, text)] : others);
  };
  const box = el("input", { type: "search", placeholder: "Search tensors by name ( / )", "aria-label": "Search tensors by name", on: { input: (event) => look(event.target.value) } });
  address.on("search", (keys) => {
    [box.value = ""] = namesOf(plan, keys);
    model.look(box.value);
  });
  return box;
}

const step = page.failed ? { draw() {}, all: [] } : timelines(page);
const scale = memoryScale(page.plans);

const sections = page.failed ? failure(page.failed) : [
  summary(page),
  two && difference(page),
  section("where", "What goes where", "Ranks by stage, and the model's tensors by layer in the colour of their layout. Click a bar or a name to see which rank holds which part.", where),
  section("graph", "The graph", "The ops of the forward pass, folded by layer; the colour is the layout of what an op makes, one part for each axis. What is brought to another layout on the way says by which boxing. Click an op for its tensor.", graph),
  section("costs", "What it costs", "Seconds of a step as the cost model has them: what computes, what is communicated, and what of that is not hidden under kernels.", costs),
  el("section", { id: "when" }, el("h2", null, "When"), el("p", { class: "lead" }, prose("One step on the null device: the same events that `graphc simulate --trace` writes, by stage, stream, pass and layer. Ranks that behave alike are drawn once.")), step.body),
  section("memory", "How much memory", "Bytes that are alive while the simulated step goes on; hover to see what fills a moment. The arena, which a rank takes, is what these bytes are packed into for every order that its streams may take.", (plan) => memory(plan, scale, !two)),
  section("why", "Why", "What the planner proves, and what the heaviest tensors would cost in other layouts, all else planned anew.", why),
  page.went && went(page),
].filter(Boolean);

const TITLES = { differs: "Differs", where: "Where", graph: "Graph", costs: "Costs", when: "When", memory: "Memory", why: "Why", went: "Run", failed: "Why", conflict: "Conflict", short: "Memory", asked: "Asked" };

function subtitle() {
  if (page.failed) return `${visible(page.failed.file)} · not compiled · ${visible(page.failed.cluster)}`;
  const [{ file, summary }] = page.plans;
  return two ? `two plans${planName(page.plans[0]) === page.plans[0].name ? "" : ` of ${visible(page.plans[0].name)}`} side by side`
    : `${visible(file)} · ${summary.training ? "training" : "inference"} · strategy ${summary.strategy} · ${visible(summary.cluster)}, ${visible(summary.framework)}`;
}

function start() {
  const shown = page.failed ? [page.failed] : page.plans;
  document.getElementById("title").replaceChildren(...shown.flatMap((one, at) => [at ? " and " : "", named(page.failed ? one.name : planName(one))]));
  document.getElementById("subtitle").textContent = subtitle();
  document.getElementById("content").replaceChildren(...sections);
  document.getElementById("sections").append(...sections.filter((one) => TITLES[one.id]).map((one) => el("a", { href: `#${one.id}` }, TITLES[one.id])));
  measureHead();
  step.draw();
  address.on("open", applyOpen);
  address.on("shut", applyOpen);
  address.on("theme", ([name]) => { theme(name ? name === "dark" : prefers.matches); step.draw(); });
  address.read();
  if (!isEmbedded()) history.scrollRestoration = "manual";
  window.addEventListener("popstate", (event) => address.read(event.state));
  window.addEventListener("scroll", () => history.state && address.write());
  for (const done of ["click", "keydown"]) document.addEventListener(done, (event) => address.visit(event.target), true);
  document.addEventListener("click", followAnchor);
}

/** Tells the style how high the head is, so that it hides nothing that is scrolled to. */
function measureHead() {
  document.documentElement.style.setProperty("--head", `${document.querySelector(".top").offsetHeight}px`);
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  button.textContent = dark ? "Light" : "Dark";
  button.setAttribute("aria-pressed", String(dark));
}

const prefers = matchMedia("(prefers-color-scheme: dark)");
theme(prefers.matches);
start();
prefers.addEventListener("change", (event) => { if (address.all("theme").length === 0) { theme(event.matches); step.draw(); } });
document.getElementById("theme").addEventListener("click", () => {
  theme(document.documentElement.dataset.theme !== "dark");
  address.put("theme", [document.documentElement.dataset.theme]);
  step.draw();
});
window.addEventListener("resize", () => { measureHead(); step.all.forEach((one) => one.later()); });
let before = "light";
window.addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; theme(false); step.draw(); });
window.addEventListener("afterprint", () => { theme(before === "dark"); step.draw(); });
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    const box = document.querySelector('input[type="search"]');
    if (box) {
      box.focus();
      event.preventDefault();
    }
  }
});
// When all of it stands, in milliseconds from the page's start.
document.documentElement.dataset.drawn = performance.now().toFixed(0);
