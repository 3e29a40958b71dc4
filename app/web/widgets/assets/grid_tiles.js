// Many at once: tiles sorted by prediction; one key labels all selected tiles; undo restores them.

const PAGE = 60;
const GRID_POLL_MS = 6000;

class Grid {
  constructor(root, data, trigger) {
    this.root = root;
    this.data = data;
    this.trigger = trigger;
    const one = (selector) => root.querySelector(selector);
    this.parts = {
      screen: one(".screen"), filter: one(".filter"), lead: one(".lead"), filterList: one(".filterlist"), total: one(".total"),
      order: one(".order"), tiles: one(".tiles"), more: one(".more"), empty: one(".empty"), n: one(".n"), hint: one(".hint"),
      keys: one(".keys"), undo: one(".undo"), pick: one(".pick"), band: one(".band"), message: one(".message"),
    };
    this.parts.screen.dataset.kind = data.kind;
    const { api, outbox } = winnowClient(data);
    Object.assign(this, { api, outbox, tiles: [], total: 0, classes: [], classId: null, order: "sure", gone: new Set(), bulks: [] });
    this.path = `/api/projects/${data.project_id}`;
    this.gestured = Boolean(navigator.userActivation && navigator.userActivation.hasBeenActive);
    this.audio = new Audio();
    this.selection = new Selection(() => this.tiles.map((tile) => tile.item_id));
    this.band = new Band(this.parts.screen, this.parts.band, () => this.parts.tiles.children, (ids) => this.selection.set([...this.selection.chosen, ...ids]));
    this.listen();
    this.load(true);
  }

  listen() {
    this.stops = [];
    const on = (target, name, handler, options) => {
      target.addEventListener(name, handler, options);
      this.stops.push(() => target.removeEventListener(name, handler, options));
    };
    on(document, "keydown", (e) => this.key(e));
    for (const name of ["keydown", "pointerdown"]) on(document, name, () => (this.gestured = true), { capture: true });
    on(this.selection, "changed", () => this.showSelection());
    on(this.outbox, "refused", (e) => this.say(`Not saved: ${e.detail.reason}`));
    on(this.outbox, "changed", () => !this.outbox.waiting.length && this.tiles.length < PAGE / 2 && this.tiles.length < this.total && this.load());
    on(this.parts.tiles, "click", (e) => this.clickTile(e));
    for (const name of ["pointerover", "focusin"]) on(this.parts.tiles, name, (e) => this.play(e));
    for (const name of ["pointerleave", "focusout"]) on(this.parts.tiles, name, () => this.quiet());
    on(this.parts.order, "click", () => this.ask({ order: this.order === "sure" ? "unsure" : "sure" }));
    on(this.parts.filterList.querySelector("select"), "change", (e) => this.ask({ classId: Number(e.target.value) || null }));
    on(this.parts.pick.querySelector("select"), "change", (e) => {
      this.label(this.classes.find((entry) => entry.id === Number(e.target.value)));
      e.target.value = "";
    });
    on(this.parts.undo, "click", () => this.undo());
    on(this.root, "pointerdown", (e) => e.target.closest && e.target.closest(".tray button, .filter button") && e.preventDefault());
    this.watcher = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && this.load(), { rootMargin: "600px" });
    this.watcher.observe(this.parts.more);
    this.stops.push(() => this.watcher.disconnect());
    const poll = setInterval(() => document.visibilityState === "visible" && !this.tiles.length && this.load(true), GRID_POLL_MS);
    this.stops.push(() => clearInterval(poll));
  }

  ask({ classId = this.classId, order = this.order }) {
    this.classId = classId;
    this.order = order;
    this.selection.set([]);
    this.load(true);
  }

  // --- tiles from the server -----------------------------------------------------------------------------------------
  async load(fresh = false) {
    if (this.loading && !fresh) return;
    if (!fresh && (this.tiles.length >= this.total || this.outbox.waiting.length)) return;
    const turn = (this.turn = (this.turn || 0) + 1);
    this.loading = true;
    try {
      await this.api.openSession();
      const body = { class_id: this.classId, order: this.order, offset: fresh ? 0 : this.tiles.length, limit: PAGE };
      if (this.data.items) body.items = this.data.items;
      const answer = await this.api.post(`${this.path}/tiles`, body);
      if (turn !== this.turn) return;
      if (fresh) this.tiles = [];
      const known = new Set(this.tiles.map((tile) => tile.item_id));
      this.tiles.push(...answer.tiles.filter((tile) => !known.has(tile.item_id) && !this.gone.has(tile.item_id)));
      this.total = answer.total;
      this.learn(answer.state, answer.guessed);
      this.draw();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status && error.status < 500) this.say(error.message);
      setTimeout(() => this.loading === false && this.load(fresh), 1500);
    } finally {
      if (turn === this.turn) this.loading = false;
    }
  }

  learn(state, guessed) {
    this.state = state;
    this.guessed = guessed;
    const stamp = JSON.stringify([state.classes, guessed]);
    if (stamp === this.stamp) return this.showFilter();
    this.stamp = stamp;
    this.classes = state.classes;
    const many = this.classes.length > 12;
    const filters = [{ id: null, name: "all" }, ...this.classes];
    this.parts.filter.hidden = many || !guessed;
    this.parts.lead.hidden = many || !guessed;
    this.parts.filterList.hidden = !many || !guessed;
    this.parts.order.hidden = !guessed;
    this.parts.filter.replaceChildren(
      ...filters.map((entry) => element("button", { type: "button", title: entry.name, "data-class": entry.id || "", onclick: () => this.ask({ classId: entry.id }) }, entry.name)),
    );
    const options = () => this.classes.map((entry) => element("option", { value: entry.id }, entry.key ? `${entry.name} (${entry.key})` : entry.name));
    this.parts.filterList.querySelector("select").replaceChildren(element("option", { value: "" }, "all"), ...options());
    this.parts.pick.querySelector("select").replaceChildren(element("option", { value: "" }, "…"), ...options());
    this.parts.pick.hidden = !many;
    this.parts.keys.hidden = many;
    this.parts.keys.replaceChildren(
      ...this.classes.map((entry) =>
        element("button", { type: "button", title: entry.name, onclick: (e) => e.detail < 2 && this.label(entry) }, element("kbd", {}, entry.key || "·"), element("span", {}, entry.name)),
      ),
    );
    this.showFilter();
    this.showSelection();
  }

  showFilter() {
    for (const button of this.parts.filter.children) button.setAttribute("aria-pressed", String((Number(button.dataset.class) || null) === this.classId));
    this.parts.order.textContent = this.order === "sure" ? "Most confident first" : "Least confident first";
    this.parts.order.setAttribute("aria-pressed", String(this.order === "unsure"));
    this.parts.order.title = "Reverse the order";
  }

  draw() {
    const shown = new Map([...this.parts.tiles.children].map((node) => [Number(node.dataset.itemId), node]));
    this.parts.tiles.replaceChildren(...this.tiles.map((tile) => shown.get(tile.item_id) || this.tileNode(tile)));
    const first = this.parts.tiles.querySelector("[tabindex='0']") || this.parts.tiles.firstElementChild;
    if (first) first.tabIndex = 0;
    const noun = this.data.kind === "audio" ? "clip" : "picture";
    this.parts.total.textContent = `${this.total.toLocaleString("en-US")} ${noun}${this.total === 1 ? "" : "s"} unlabeled`;
    this.parts.empty.hidden = this.tiles.length > 0;
    this.parts.tiles.hidden = !this.tiles.length;
    if (!this.tiles.length) this.showEmpty();
    this.parts.screen.dataset.view = "ready";
    this.selection.keep(this.tiles.map((tile) => tile.item_id));
  }

  tileNode(tile) {
    const share = tile.confidence === null ? "" : `${Math.round(tile.confidence * 100)} %`;
    const words = tile.guess ? `${tile.guess}, ${share}` : "no prediction";
    return element(
      "div",
      { class: "tile", role: "option", tabindex: "-1", "aria-selected": "false", "aria-label": words, "data-item-id": tile.item_id },
      element("img", { src: tile.thumb, alt: "", loading: "lazy", draggable: "false", width: 240, height: 136 }),
      element("div", { class: "caption" }, element("span", { class: "guess" }, tile.guess || "no prediction"), element("span", { class: "share" }, share)),
    );
  }

  showEmpty() {
    const waiting = this.state ? this.state.counts.waiting : 0;
    const filtered = this.classId !== null || this.data.items;
    const words = filtered && waiting
      ? { title: "No items", text: "No unlabeled item matches the filter.", action: "Show all", screen: null }
      : this.state.empty;
    this.parts.empty.querySelector("h2").textContent = words.title;
    this.parts.empty.querySelector("p").textContent = words.text;
    const button = this.parts.empty.querySelector("button");
    button.textContent = words.action;
    button.onclick = () => (words.screen ? this.trigger("go", words.screen) : this.data.items ? this.trigger("go", "grid-all") : this.ask({ classId: null }));
  }

  showSelection() {
    const n = this.selection.chosen.size;
    for (const node of this.parts.tiles.children) node.setAttribute("aria-selected", String(this.selection.chosen.has(Number(node.dataset.itemId))));
    this.parts.screen.dataset.selected = String(n);
    this.parts.n.textContent = n ? `${n.toLocaleString("en-US")} selected` : "Nothing selected";
    this.parts.hint.textContent = n ? "Press a class key to label all selected items" : "Click, drag or press Space to select";
    for (const button of this.parts.keys.children) button.disabled = n === 0;
    this.parts.undo.hidden = !this.bulks.length;
  }

  // --- input ---------------------------------------------------------------------------------------------------------
  clickTile(e) {
    const node = e.target.closest(".tile");
    if (!node || this.band.moved) return;
    const id = Number(node.dataset.itemId);
    this.focus(node);
    if (e.shiftKey) this.selection.extend(id);
    else this.selection.toggle(id);
  }

  focus(node) {
    for (const other of this.parts.tiles.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
    node.tabIndex = 0;
    node.focus({ preventScroll: false });
  }

  key(e) {
    if (e.defaultPrevented || e.repeat && !e.key.startsWith("Arrow") || e.altKey || e.isComposing || typingSomewhere(e, this.root)) return;
    const pressed = e.key.length === 1 ? e.key.toLowerCase() : e.key;
    if ((e.ctrlKey || e.metaKey) && pressed === "a") {
      this.selection.set(this.tiles.map((tile) => tile.item_id));
    } else if (e.ctrlKey || e.metaKey) {
      return;
    } else if (pressed === "Escape") {
      this.selection.set([]);
    } else if (pressed.startsWith("Arrow")) {
      this.walk(pressed, e.shiftKey);
    } else if (pressed === " " && this.focused()) {
      this.selection.toggle(Number(this.focused().dataset.itemId));
    } else {
      const entry = e.shiftKey && /^[a-z]$/.test(pressed) ? null : this.classes.find((one) => one.key === pressed);
      if (pressed === "u") this.undo(); // the server gives no class the key of a command
      else if (entry) this.label(entry);
      else return;
    }
    e.preventDefault();
  }

  focused() {
    const active = this.root.activeElement;
    return active && active.classList.contains("tile") ? active : null;
  }

  walk(key, extend) {
    const nodes = [...this.parts.tiles.children];
    const now = nodes.indexOf(this.focused() || this.parts.tiles.querySelector("[tabindex='0']"));
    const columns = getComputedStyle(this.parts.tiles).gridTemplateColumns.split(" ").length;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
    const next = nodes[this.focused() ? Math.max(0, Math.min(nodes.length - 1, now + step)) : Math.max(0, now)];
    if (!next) return;
    if (extend && this.selection.anchor === null && now >= 0) this.selection.toggle(Number(nodes[now].dataset.itemId));
    this.focus(next);
    if (extend) this.selection.extend(Number(next.dataset.itemId));
    else this.selection.anchor = this.selection.anchor ?? Number(next.dataset.itemId);
  }

  // --- sound ---------------------------------------------------------------------------------------------------------
  play(e) {
    const node = e.target.closest(".tile");
    const tile = node && this.tiles.find((one) => one.item_id === Number(node.dataset.itemId));
    if (!tile || !tile.audio || !this.gestured || this.band.start || this.playing === node) return;
    this.quiet();
    this.playing = node;
    node.dataset.playing = "true";
    this.audio.src = tile.audio;
    this.audio.onended = () => this.quiet();
    this.audio.play().catch(() => this.quiet());
  }

  quiet() {
    if (this.playing) this.playing.dataset.playing = "false";
    this.playing = null;
    this.audio.pause();
  }

  // --- verbs ---------------------------------------------------------------------------------------------------------
  label(entry) {
    const chosen = this.tiles.filter((tile) => this.selection.chosen.has(tile.item_id));
    if (!entry || !chosen.length) return;
    this.quiet();
    const bulk = chosen.map((tile) => {
      const shown = tile.guess ? "shown" : "none";
      const event = this.outbox.add({ item_id: tile.item_id, kind: "label", class_id: entry.id, suggestion: shown, suggested_class_id: tile.class_id, suggested_confidence: tile.confidence });
      this.gone.add(tile.item_id);
      return { tile, uuid: event.uuid };
    });
    this.bulks.push(bulk);
    const removed = new Set(chosen);
    this.tiles = this.tiles.filter((tile) => !removed.has(tile));
    this.total -= chosen.length;
    this.draw();
    this.say("");
    this.parts.hint.textContent = `${bulk.length.toLocaleString("en-US")} labeled ${entry.name}`;
  }

  undo() {
    const bulk = this.bulks.pop();
    if (!bulk) return;
    for (const { tile, uuid } of bulk) {
      this.outbox.add({ item_id: tile.item_id, kind: "undo", undoes: uuid });
      this.gone.delete(tile.item_id);
    }
    const back = bulk.map(({ tile }) => tile);
    const ids = new Set(back.map((tile) => tile.item_id));
    this.tiles = [...back, ...this.tiles.filter((tile) => !ids.has(tile.item_id))];
    this.total += back.length;
    this.draw();
    this.selection.set([...ids]);
  }

  say(text) {
    this.parts.message.hidden = !text;
    this.parts.message.querySelector(".words").textContent = text;
    this.parts.message.querySelector(".dismiss").onclick = () => (this.parts.message.hidden = true);
  }

  close() {
    this.stops.forEach((stop) => stop());
    this.quiet();
  }
}

const openGrids = new WeakMap();

export default function (component) {
  const { parentElement, data, setTriggerValue } = component;
  winnowClient(data);
  const open = openGrids.get(parentElement);
  const name = JSON.stringify([data.project_id, data.annotator_id, data.items]);
  if (open && open.name === name) {
    open.trigger = setTriggerValue;
  } else {
    if (open) open.close();
    const grid = new Grid(parentElement, data, setTriggerValue);
    grid.name = name;
    openGrids.set(parentElement, grid);
  }
  return () => {
    const grid = openGrids.get(parentElement);
    if (grid) grid.close();
    openGrids.delete(parentElement);
  };
}
