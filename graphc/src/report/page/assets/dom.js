// Elements, made without markup, so that names stay text.

/** An element. Attributes: `class`, `on` (listeners by event), `style` (properties by name), `data` (by name), all else as it is. */
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "style") for (const [property, to] of Object.entries(value)) node.style.setProperty(property, to);
    else if (name === "data") for (const [key, to] of Object.entries(value)) node.dataset[key] = to;
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/** A name from a model: isolated, and with what cannot be seen, or turns text around, written out. */
const visible = (text) =>
  String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
    (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

const named = (text) => el("bdi", { class: "name" }, visible(text));

/** Text in which commands stand between backticks. */
const prose = (text) => text.split("`").map((part, at) => (at % 2 ? el("code", null, part) : part));

/** Rows of a table that are printed; of more it is said how many the screen has. */
const MOST_PRINTED = 24;

/** A table. Columns: [title, numeric]; cells: text or elements. */
function table(caption, columns, rows, options = {}) {
  const head = columns.map(([title, numeric]) => el("th", { scope: "col", class: numeric ? "n" : null }, title));
  const body = rows.map((row, at) => el("tr", { class: row.chosen ? "chosen" : at >= MOST_PRINTED ? "more" : null },
    (row.cells || row).map((cell, at) => el("td", { class: columns[at][1] ? "n" : null }, cell))));
  const made = el("table", null, el("caption", null, caption), el("thead", null, el("tr", null, head)), el("tbody", null, body));
  const more = rows.length - MOST_PRINTED;
  return el("div", { class: `${options.scroll === false ? "across" : "scroll"} ${options.name || ""}`.trim() }, made,
    more > 0 && el("p", { class: "note printed" }, `The page has ${some(more, "more row")}.`));
}

/** What is made when it is opened first. The address says by its key whether it is open. */
function opened(title, make, key, first = false) {
  const details = el("details", { data: { key, ...(first ? { first: "" } : {}) } }, el("summary", null, title));
  const fillOnce = () => {
    if (details.open && !details.dataset.made) {
      details.dataset.made = "1";
      details.append(...[make()].flat());
    }
  };
  details.addEventListener("toggle", () => {
    fillOnce();
    address.toggle(first ? "shut" : "open", key, details.open !== first);
  });
  if (isOpen(key, first)) {
    details.open = true;
    fillOnce();
  }
  return details;
}

/** A legend: [colour property, text]. */
const legend = (entries) =>
  el("ul", { class: "legend" }, entries.map(([color, text]) => el("li", null, el("i", { style: { background: color } }), text)));

const tip = {
  show(event, text) {
    const box = document.getElementById("tip");
    box.textContent = text;
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - width - 8);
    const below = event.clientY + 18;
    box.style.left = Math.max(8, left) + "px";
    box.style.top = (below + height > innerHeight ? Math.max(8, event.clientY - height - 12) : below) + "px";
  },
  hide() {
    document.getElementById("tip").hidden = true;
  },
};

/** A function of a plan that is computed once for each. */
function remembered(compute) {
  const known = new Map();
  return (plan) => {
    if (!known.has(plan)) known.set(plan, compute(plan));
    return known.get(plan);
  };
}

/** A colour of the theme. */
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
