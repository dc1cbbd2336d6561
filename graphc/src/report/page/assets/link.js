// What is open, kept in the address behind `#`, so that a link opens the same: `#when?tensor=A:tok.weight&open=layer:A:blocks.0`.
// What a link of the page leads to is a step in the browser's history; all else changes the address of the step that it is in.

/** Text of an address as it was before it was escaped; nothing where it is none. */
function unescaped(text) {
  try {
    return decodeURIComponent(text.replaceAll("+", " "));
  } catch {
    return "";
  }
}

/** What steps of the history have that the page has kept, unlike those that the browser makes of a link of the menu. */
const KEPT = { kept: true };

const address = {
  section: "",
  values: new Map(),
  readers: new Map(),
  later: 0,
  /** Whether what is kept next is a new step of the history. */
  leaves: false,

  /** Has `apply` called with the values of a key whenever an address is read. */
  on(key, apply) {
    this.readers.set(key, [...(this.readers.get(key) || []), apply]);
  },

  all(key) {
    return this.values.get(key) || [];
  },

  has(key, value) {
    return this.all(key).includes(value);
  },

  /** Keeps the values of a key, none where the list is empty. */
  put(key, values) {
    if (values.length > 0) this.values.set(key, values.map(String));
    else this.values.delete(key);
    this.write();
  },

  /** Adds a value to a key, or takes it away. */
  toggle(key, value, there) {
    if (this.has(key, value) === there) return;
    this.put(key, there ? [...this.all(key), value] : this.all(key).filter((other) => other !== value));
  },

  text() {
    const pairs = [...this.values].flatMap(([key, values]) => values.map((value) => `${key}=${encodeURIComponent(value).replaceAll("%3A", ":")}`));
    return pairs.length > 0 ? `#${this.section}?${pairs.join("&")}` : this.section && `#${this.section}`;
  },

  /** Writes the address, soon, and once for many changes. */
  write() {
    clearTimeout(this.later);
    this.later = setTimeout(() => this.keep(), 120);
  },

  /** Puts into the address what is open. A page within another, in a notebook say, has no address of its own. */
  keep() {
    clearTimeout(this.later);
    if (location.protocol === "about:") return;
    const text = this.text() || location.href.replace(/#.*/, "");
    if (this.leaves) history.pushState(KEPT, "", text);
    else history.replaceState(KEPT, "", text);
    this.leaves = false;
  },

  /** Keeps what is open now as a step to come back to, before a link leads elsewhere. */
  leave() {
    this.keep();
    this.leaves = true;
  },

  /** The section in which something was clicked is the one that a link opens again. */
  enter(event) {
    const found = event.target.closest && event.target.closest("section[id]");
    if (found) this.section = found.id;
  },

  /** Opens what the address says, and goes to its section. An address without values, of the menu say, leaves open what is, but not where it
   * is a step of the history. */
  read(whole = false) {
    const [section, query] = location.hash.slice(1).split("?");
    this.section = unescaped(section);
    if (query === undefined && !whole) {
      if (this.values.size > 0) this.write();
      return;
    }
    const before = this.all("open");
    this.values.clear();
    for (const [key, value] of (query || "").split("&").map((pair) => pair.split("="))) {
      if (this.readers.has(key) && value !== undefined) this.values.set(key, [...this.all(key), unescaped(value)]);
    }
    close(before.filter((key) => !this.has("open", key)));
    for (const [key, readers] of this.readers) readers.forEach((apply) => apply(this.all(key)));
    this.show(this.section);
  },

  /** Scrolls to a section, and says so in the address. */
  show(section) {
    const found = document.getElementById(section);
    if (!found) return;
    this.section = section;
    this.write();
    found.scrollIntoView();
  },
};

/** Follows the page's own links where it is within another: there they would lead to that one. */
function followWithin(event) {
  const link = location.protocol === "about:" && event.target.closest && event.target.closest('a[href^="#"]');
  if (!link) return;
  event.preventDefault();
  document.getElementById(link.getAttribute("href").slice(1)).scrollIntoView();
}

/** What a plan calls something, in the address: `A:name`. */
const keyOf = (plan, name) => `${"AB"[page.plans.indexOf(plan)]}:${name}`;

/** The names that keys of a plan have. */
const namesOf = (plan, keys) => keys.filter((key) => key.startsWith(keyOf(plan, ""))).map((key) => key.slice(2));

/** A button that looks like a link. */
function jump(children, act, title = null) {
  const follow = () => {
    address.leave();
    act();
  };
  return el("button", { type: "button", class: "hit", title, on: { click: follow } }, children);
}

/** Closes what has keys. */
function close(keys) {
  for (const details of document.querySelectorAll("details[data-key]")) {
    if (keys.includes(details.dataset.key)) details.open = false;
  }
}

/** Opens and closes what has keys as the address says. */
function applyOpen(keys) {
  for (const details of document.querySelectorAll("details[data-key]")) {
    if (keys.includes(details.dataset.key)) details.open = true;
  }
}

/** Opens what has a key, and scrolls to it. */
function reveal(section, key) {
  address.show(section);
  address.toggle("open", key, true);
  applyOpen([key]);
  const found = [...document.querySelectorAll("details[data-key]")].find((one) => one.dataset.key === key);
  if (found) found.scrollIntoView({ block: "center" });
}
