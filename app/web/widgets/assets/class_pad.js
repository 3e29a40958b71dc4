// The classes as buttons. Up to ten are in a row. More are in columns that fit their names, in groups ("animals/dog"), with
// a row of likely and recent classes above them and a field that filters by name.

const ONE_ROW = 10;
const QUICK = 5; // number of likely classes, and of recent classes
const LONG_LIST = 80; // more classes never fit into the window: the item keeps its height, and the classes scroll
const WIDEST = 212; // largest width of a column in pixels; longer names have two lines

function plainName(text) {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().replace(/[\s_\-/]+/g, " ").trim();
}

// The group is everything before the last slash. A name that starts or ends with a slash has no group.
function groupOf(name) {
  const at = name.lastIndexOf("/");
  return at > 0 && at < name.length - 1 ? [name.slice(0, at), name.slice(at + 1)] : ["", name];
}

// The rank of a match: 0 is the best, -1 is no match. `words` are the normalized words that were typed.
function matchRank(entry, words) {
  if (!words.every((word) => entry.plain.includes(word))) return -1;
  const typed = words.join(" ");
  if (entry.plainOwn === typed || entry.plain === typed) return 0;
  if (entry.plainOwn.startsWith(typed) || entry.plain.startsWith(typed)) return 1;
  return words.every((word) => ` ${entry.plain}`.includes(` ${word}`)) ? 2 : 3;
}

// A name that can be wrapped after underscores and slashes.
function breakable(name) {
  return name.split(/(?<=[_/])/).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
}

class ClassPad {
  constructor(root, onChoose) {
    const one = (selector) => root.querySelector(selector);
    this.parts = { screen: one(".screen"), finder: one(".finder"), search: one(".search"), found: one(".found"), quick: one(".quick"), list: one(".classes") };
    this.onChoose = onChoose;
    this.entries = [];
    this.buttons = new Map(); // class id -> its button
    this.marked = { suggested: null, given: null };
  }

  get many() {
    return this.entries.length > ONE_ROW;
  }

  get isFiltered() {
    return Boolean(this.parts.search.value.trim());
  }

  set(classes) {
    const sizes = groupedBy(classes, (entry) => groupOf(entry.name)[0]);
    this.entries = classes.map((entry) => {
      const [prefix, last] = groupOf(entry.name);
      const [group, own] = sizes.get(prefix).length > 1 ? [prefix, last] : ["", entry.name]; // a single name does not form a group
      return { ...entry, group, own, plain: plainName(entry.name), plainOwn: plainName(own) };
    });
    this.grouped = this.many && this.entries.some((entry) => entry.group);
    this.buttons = new Map(this.entries.map((entry) => [entry.id, this.button(entry)]));
    this.marked = { suggested: null, given: null };
    this.parts.screen.dataset.many = String(this.many);
    this.parts.screen.dataset.long = String(this.entries.length > LONG_LIST);
    this.parts.finder.hidden = !this.many;
    this.parts.list.style.setProperty("--column", `${this.columnWidth()}px`);
    this.filter(this.parts.search.value);
  }

  button(entry) {
    const made = element(
      "button",
      { type: "button", class: "class", "data-class": entry.id, title: entry.name, "aria-label": this.grouped ? entry.name : null, onclick: (e) => this.onChoose(entry, e) },
      element("kbd", { "data-empty": String(!entry.key) }, entry.key || "·"),
      element("span", { class: "name" }, ...breakable(this.grouped ? entry.own : entry.name)),
    );
    made.style.setProperty("--class-color", entry.color || "transparent");
    return made;
  }

  // The column width: enough for the longest word, and for half of the longest name.
  columnWidth() {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `500 ${this.many ? 13.5 : 14.5}px ${getComputedStyle(this.parts.list).fontFamily || "sans-serif"}`;
    const wide = (text) => pen.measureText(text).width;
    const needs = this.entries.map((entry) => {
      const name = this.grouped ? entry.own : entry.name;
      return Math.max(wide(name) * 0.56, ...name.split(/(?<=[\s\-/_])/).map(wide));
    });
    const room = this.many ? 54 : 22; // key, gap and padding
    return Math.round(Math.min(WIDEST, Math.max(this.many ? 116 : 92, Math.max(0, ...needs) + room)));
  }

  filter(text) {
    const words = plainName(text).split(" ").filter(Boolean);
    const ranked = words.length ? this.entries.map((entry) => [matchRank(entry, words), entry]).filter(([rank]) => rank >= 0) : [];
    this.matches = words.length ? ranked.sort((a, b) => a[0] - b[0]).map(([, entry]) => entry) : this.entries;
    this.parts.list.replaceChildren(...this.sorted(!words.length));
    for (const [id, button] of this.buttons) button.dataset.first = String(words.length > 0 && this.matches[0] && this.matches[0].id === id);
    this.parts.list.scrollTop = 0;
    this.parts.quick.hidden = !this.many || words.length > 0;
    this.parts.found.textContent = !words.length ? "" : this.matches.length ? `${whole(this.matches.length)} of ${whole(this.entries.length)} classes` : "No class has this in its name.";
  }

  sorted(withGroups) {
    if (!this.grouped || !withGroups) return this.matches.map((entry) => this.buttons.get(entry.id));
    const groups = Map.groupBy ? Map.groupBy(this.entries, (entry) => entry.group) : groupedBy(this.entries, (entry) => entry.group);
    const nodes = [];
    for (const [group, entries] of groups) {
      nodes.push(element("h3", { class: "group" }, group || "Other"), ...entries.map((entry) => this.buttons.get(entry.id)));
    }
    return nodes;
  }

  // The first match of the typed text, or null.
  first() {
    return (this.isFiltered && this.matches[0]) || null;
  }

  clear() {
    if (!this.parts.search.value) return;
    this.parts.search.value = "";
    this.filter("");
  }

  // `suggested` and `given` (the current label) are class ids or null. `likely` are class ids from the model, `recent` the
  // class ids used last.
  show({ suggested, given, likely, recent }) {
    for (const [name, id] of [["suggested", suggested], ["given", given]]) {
      const before = this.buttons.get(this.marked[name]);
      if (before) before.dataset[name] = "false";
      const now = this.buttons.get(id);
      if (now) now.dataset[name] = "true";
      this.marked[name] = id;
    }
    if (this.many) this.showQuick(likely.filter((id) => this.buttons.has(id)).slice(0, QUICK), recent);
  }

  showQuick(likely, recent) {
    const others = recent.filter((id) => this.buttons.has(id) && !likely.includes(id)).slice(0, QUICK);
    const chip = (id) => {
      const entry = this.entries.find((one) => one.id === id);
      const cap = entry.key ? element("kbd", {}, entry.key) : null;
      return element("button", { type: "button", class: "chip", title: entry.name, "data-suggested": String(id === this.marked.suggested), onclick: (e) => this.onChoose(entry, e) }, cap, element("span", { class: "name" }, this.grouped && this.entries.filter((one) => one.own === entry.own).length === 1 ? entry.own : entry.name));
    };
    const nodes = [];
    if (likely.length) nodes.push(element("span", { class: "term" }, "Likely"), ...likely.map(chip));
    if (others.length) nodes.push(element("span", { class: "term" }, "Recent"), ...others.map(chip));
    this.parts.quick.replaceChildren(...nodes);
    this.parts.quick.dataset.empty = String(!nodes.length);
    cancelAnimationFrame(this.trimming);
    this.trimming = requestAnimationFrame(() => this.trimQuick()); // deferred, because reading the layout would delay the card
  }

  // Classes that do not fit on the line are removed, also from keyboard navigation.
  trimQuick() {
    const { quick } = this.parts;
    const first = quick.firstElementChild;
    const below = first ? [...quick.children].filter((node) => node.offsetTop > first.offsetTop + 12) : [];
    for (const node of below) node.remove();
    if (quick.lastElementChild && quick.lastElementChild.matches(".term")) quick.lastElementChild.remove();
  }

  nameOf(classId) {
    const entry = this.entries.find((one) => one.id === classId);
    return entry ? entry.name : null;
  }
}

function groupedBy(entries, keyOf) {
  const groups = new Map();
  for (const entry of entries) groups.set(keyOf(entry), [...(groups.get(keyOf(entry)) || []), entry]);
  return groups;
}
