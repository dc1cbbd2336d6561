// What is open, kept in the address behind `#`, so that a link opens the same: `#when?tensor=A:tok.weight&open=layer:A:blocks.0`.

/** Text of an address as it was before it was escaped; nothing where it is none. */
function unescaped(text) {
  try {
    return decodeURIComponent(text.replaceAll("+", " "));
  } catch {
    return "";
  }
}

const address = {
  section: "",
  values: new Map(),
  readers: new Map(),
  later: 0,

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

  /** Puts into the address what is open, and beside it how far the page is scrolled. */
  keep(put = "replaceState") {
    clearTimeout(this.later);
    if (isEmbedded()) return;
    history[put]({ y: scrollY }, "", this.text() || location.href.replace(/#.*/, ""));
  },

  /** Follows a link of the page, by what it does: the browser's Back comes back to what was seen before. */
  go(act) {
    this.keep();
    act();
    this.keep("pushState");
  },

  /** Opens what the address says, and goes to its section, or back to where the page was. An address without values that the page has not
   *  written itself leaves open what is. */
  read(state = history.state) {
    const [section, query] = location.hash.slice(1).split("?");
    this.section = unescaped(section);
    if (query === undefined && !state) return this.show(this.section);
    this.values.clear();
    for (const [key, value] of (query || "").split("&").map((pair) => pair.split("="))) {
      if (this.readers.has(key) && value !== undefined) this.values.set(key, [...this.all(key), unescaped(value)]);
    }
    for (const [key, readers] of this.readers) readers.forEach((apply) => apply(this.all(key)));
    if (!state) return this.show(this.section);
    // What is opened is filled a little later, and has its height then.
    for (const later of [0, 60]) setTimeout(() => scrollTo(0, state.y), later);
  },

  /** Notes the section in which something was done. */
  visit(target) {
    const found = target.closest && target.closest("section[id]");
    if (!found) return;
    this.section = found.id;
    this.write();
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

/** Whether the page is within another, in a notebook say: it has no address of its own then. */
const isEmbedded = () => location.protocol === "about:";

/** Follows the page's own anchors, those of the menu: they leave open what is. */
function followAnchor(event) {
  const link = event.target.closest && event.target.closest('a[href^="#"]');
  if (!link || event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  address.go(() => address.show(link.getAttribute("href").slice(1)));
}

/** What a plan calls something, in the address: `A:name`. */
const keyOf = (plan, name) => `${"AB"[page.plans.indexOf(plan)]}:${name}`;

/** The names that keys of a plan have. */
const namesOf = (plan, keys) => keys.filter((key) => key.startsWith(keyOf(plan, ""))).map((key) => key.slice(2));

/** A link within the page: the browser's Back leads back from it. */
const jump = (children, act, title = null) => el("a", { href: "#", class: "hit", title, on: { click: (event) => { event.preventDefault(); address.go(act); } } }, children);

/** Opens and closes what has keys as the address says. What is open at first is in the address where it is shut. */
function applyOpen() {
  for (const details of document.querySelectorAll("details[data-key]")) details.open = isOpen(details.dataset.key, details.dataset.first !== undefined);
}

/** Whether the address says that something is open, which is so at first or is not. */
const isOpen = (key, first) => (first ? !address.has("shut", key) : address.has("open", key));

/** Opens what has a key, and scrolls to it. */
function reveal(section, key) {
  address.show(section);
  address.toggle("open", key, true);
  applyOpen();
  const found = [...document.querySelectorAll("details[data-key]")].find((one) => one.dataset.key === key);
  if (found) found.scrollIntoView({ block: "center" });
}
