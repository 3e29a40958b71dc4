// The controls of the grid: filters, search, order and tile size. They determine the query for the server.

const SORTS = [
  ["sure", "Most confident first"],
  ["unsure", "Least confident first"],
  ["queue", "Order of the queue"],
  ["labeled", "Newest label first"],
  ["name", "Name"],
  ["newest", "Newest import first"],
  ["oldest", "Oldest import first"],
  ["outliers", "Most unusual first"],
  ["duplicates", "Near-duplicates first"],
];
const BY_MODEL = ["sure", "unsure", "outliers", "duplicates"]; // orders that need a round
const SIZE_KEY = "winnow.tile-size";
const ONE_LINE = 44; // total characters of class names that fit as buttons
const SEARCH_DELAY_MS = 250;

class GridFilters extends EventTarget {
  constructor(root, items) {
    super();
    const one = (selector) => root.querySelector(selector);
    this.parts = {
      screen: one(".screen"), show: one(".show select"), filter: one(".filter"), lead: one(".lead"), list: one(".filterlist"), search: one(".search"), toggle: one(".toggle"),
      active: one(".toggle .active"), panel: one(".panel"), sort: one(".sort"), size: one(".size input"), clear: one(".clear"), confidence: one(".confidence"),
    };
    this.items = items; // show only these items; null: all
    this.classId = null; // show only items predicted as this class
    this.sort = null; // null: the default order
    this.guessed = false;
    this.listen();
    this.showSize(Number(this.stored(SIZE_KEY)) || 188);
  }

  listen() {
    const { parts } = this;
    const changed = () => this.changed();
    parts.show.onchange = changed;
    parts.sort.onchange = () => {
      this.sort = parts.sort.value;
      this.changed();
    };
    parts.list.querySelector("select").onchange = (e) => this.predictedAs(Number(e.target.value) || null);
    parts.search.oninput = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(changed, SEARCH_DELAY_MS);
    };
    parts.search.onkeydown = (e) => {
      if (e.key !== "Enter" && e.key !== "Escape") return;
      if (e.key === "Escape") parts.search.value = "";
      clearTimeout(this.timer);
      this.changed();
      e.target.blur();
    };
    parts.toggle.onclick = () => this.open(parts.panel.hidden);
    parts.panel.onchange = changed;
    parts.clear.onclick = () => this.clear();
    parts.size.oninput = () => this.showSize(Number(parts.size.value));
  }

  open(now) {
    this.parts.panel.hidden = !now;
    this.parts.toggle.setAttribute("aria-expanded", String(now));
    if (now) this.dispatchEvent(new Event("choices"));
  }

  changed() {
    this.showState();
    this.dispatchEvent(new Event("changed"));
  }

  predictedAs(classId) {
    this.classId = classId;
    this.changed();
  }

  clear() {
    for (const field of this.parts.panel.querySelectorAll("[data-field]")) field.value = "";
    for (const box of this.parts.panel.querySelectorAll("[type=checkbox]")) box.checked = false;
    this.parts.search.value = "";
    this.classId = null;
    this.changed();
  }

  field(name) {
    return this.parts.panel.querySelector(`[data-field='${name}']`).value;
  }

  get marks() {
    return [...this.parts.panel.querySelectorAll("[type=checkbox]:checked")].map((box) => box.value);
  }

  get order() {
    return this.sort || (this.parts.show.value === "labeled" ? "labeled" : "sure"); // without predictions, "sure" is the order of the queue
  }

  get isFiltered() {
    const { show, order, ...rest } = this.query();
    return Object.keys(rest).length > 0;
  }

  // The body of a request, without the fields that are not set.
  query() {
    const number = (name) => (this.field(name) === "" ? null : Number(this.field(name)));
    const share = (name) => (number(name) === null ? null : Math.max(0, Math.min(1, number(name) / 100)));
    const day = (name, days) => {
      if (!this.field(name)) return null;
      const [y, m, d] = this.field(name).split("-").map(Number);
      return new Date(y, m - 1, d + days).toISOString(); // the start of the day in the browser's time zone
    };
    const all = {
      show: this.parts.show.value,
      order: this.order,
      items: this.items,
      class_id: this.classId,
      search: this.parts.search.value.trim() || null,
      label_id: number("label_id"),
      annotator_id: number("annotator_id"),
      round_id: number("round_id"),
      split: this.field("split") || null,
      since: day("since", 0),
      until: day("until", 1),
      least: share("least"),
      most: share("most"),
      marks: this.marks.length ? this.marks : null,
    };
    return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== null && value !== undefined));
  }

  // Redraw the filters if the classes or the existence of predictions have changed.
  learn(classes, guessed) {
    this.classes = classes;
    this.guessed = guessed;
    const many = classes.reduce((n, entry) => n + entry.name.length + 3, 0) > ONE_LINE;
    const { parts } = this;
    parts.filter.hidden = parts.lead.hidden = many || !guessed;
    parts.list.hidden = !many || !guessed;
    parts.confidence.hidden = !guessed;
    const button = (entry) => element("button", { type: "button", title: entry.name, "data-class": entry.id || "", onclick: () => this.predictedAs(entry.id) }, element("span", { class: "name" }, entry.name));
    parts.filter.replaceChildren(...[{ id: null, name: "all" }, ...classes].map(button));
    const options = (first) => [element("option", { value: "" }, first), ...classes.map((entry) => element("option", { value: entry.id }, entry.name))];
    parts.list.querySelector("select").replaceChildren(...options("all"));
    this.fill("label_id", classes.map((entry) => [entry.id, entry.name]));
    parts.sort.replaceChildren(...SORTS.filter(([name]) => guessed || !BY_MODEL.includes(name)).map(([name, words]) => element("option", { value: name }, words)));
    this.showState();
  }

  fill(name, choices) {
    const select = this.parts.panel.querySelector(`[data-field='${name}']`);
    const chosen = select.value;
    select.replaceChildren(element("option", { value: "" }, "any"), ...choices.map(([value, words]) => element("option", { value }, words)));
    select.value = chosen;
    select.parentElement.hidden = !choices.length;
  }

  setChoices({ annotators, rounds, splits, blind }) {
    this.fill("annotator_id", annotators.map((one) => [one.id, one.name]));
    this.fill("round_id", rounds.map((one) => [one.id, one.number]));
    this.fill("split", splits.map((name) => [name, name]));
    this.parts.panel.querySelector("[value='contested']").parentElement.hidden = blind;
  }

  showState() {
    const { parts } = this;
    for (const button of parts.filter.children) button.setAttribute("aria-pressed", String((Number(button.dataset.class) || null) === this.classId));
    parts.list.querySelector("select").value = this.classId || "";
    parts.sort.value = this.guessed || !["sure", "unsure"].includes(this.order) ? this.order : "queue";
    const set = [...parts.panel.querySelectorAll("[data-field]")].filter((field) => field.value !== "").length + this.marks.length;
    parts.active.textContent = set ? ` (${set})` : "";
  }

  showSize(pixels) {
    const size = Math.max(120, Math.min(360, pixels));
    this.parts.size.value = String(size);
    this.parts.screen.style.setProperty("--tile", `${size}px`);
    try {
      localStorage.setItem(SIZE_KEY, String(size));
    } catch (error) {
      // Without storage, the default size is used.
    }
  }

  resize(step) {
    this.showSize(Number(this.parts.size.value) + step * 40);
  }

  stored(key) {
    try {
      return localStorage.getItem(key);
    } catch (error) {
      return null;
    }
  }
}
