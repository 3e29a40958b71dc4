// All items as tiles that can be filtered, sorted and selected. One key labels the selection; undo reverts it.

const COMMANDS = [
  ["select", " ", "Space", "Select or deselect the tile"],
  ["preview", "e", "E", "Large preview (also a double click)"],
  ["like", "l", "L", "Select all like this tile"],
  ["skip", "s", "S", "Skip the selected items"],
  ["flag", "f", "F", "Set or remove the flag of the selected items"],
  ["undo", "u", "U", "Undo the last action"],
  ["find", "/", "/", "Search names"],
  ["smaller", "[", "[", "Smaller tiles"],
  ["larger", "]", "]", "Larger tiles"],
  ["keys", "?", "?", "All keys"],
];
const MOVING = [
  [["←", "→", "↑", "↓"], "Move between tiles"],
  [["Shift+→", "Shift+click"], "Select all tiles up to this one"],
  ["Ctrl+A", "Select all tiles that are loaded"],
  ["Esc", "Select nothing"],
];
const PAGE = 60;
const SIMILAR = 240; // number of similar items that are shown
const GRID_POLL_MS = 6000;
const FEW_CLASSES = 12; // up to this number, each class has a button

function tileMarks(tile) {
  const marks = [];
  if (tile.flagged) marks.push("Flagged");
  if (tile.skipped) marks.push("Skipped");
  if (tile.notes && tile.notes.length) marks.push("Note");
  if (tile.test) marks.push("Test");
  if (tile.unreadable) marks.push("Unreadable");
  return marks;
}

class Grid {
  static identity(data) {
    return [data.project_id, data.annotator_id, data.items];
  }

  constructor(root, data, trigger) {
    this.root = root;
    this.data = data;
    this.trigger = trigger;
    const one = (selector) => root.querySelector(selector);
    this.parts = {
      screen: one(".screen"), dashes: one(".dashes"), batch: one(".batch"), project: one(".project"), total: one(".total"), tiles: one(".tiles"), more: one(".more"), empty: one(".empty"),
      n: one(".n"), hint: one(".hint"), keys: one(".keys"), undo: one(".undo"), pick: one(".pick"), band: one(".band"), message: one(".message"), similar: one(".similar"), keySheet: one("dialog.keysheet"),
    };
    this.parts.screen.dataset.kind = data.kind;
    const { api, outbox } = winnowClient(data);
    Object.assign(this, { api, outbox, tiles: [], total: 0, classes: [], gone: new Set(), bulks: [], last: null, ended: false, like: data.like || null });
    if (this.like) this.showSimilar("");
    this.path = `/api/projects/${data.project_id}`;
    this.gestured = Boolean(navigator.userActivation && navigator.userActivation.hasBeenActive);
    this.audio = new Audio();
    this.filters = new GridFilters(root, data.items);
    this.selection = new Selection(() => this.tiles.map((tile) => tile.item_id));
    this.preview = new GridPreview(root, this);
    this.actions = new GridActions(root, this);
    this.names = new FullNames(root, one(".tip"));
    this.band = new Band(this.parts.screen, this.parts.band, () => this.parts.tiles.children, (ids) => this.selection.set([...this.selection.chosen, ...ids]));
    this.listen();
    this.showSelection();
    this.load(true);
  }

  update() {}

  listen() {
    this.listeners = new Listeners();
    const { on } = this.listeners;
    on(document, "keydown", (e) => this.key(e));
    for (const name of ["keydown", "pointerdown"]) on(document, name, () => (this.gestured = true), { capture: true });
    on(this.selection, "changed", () => this.showSelection());
    on(this.filters, "changed", () => this.ask());
    on(this.filters, "choices", () => this.loadChoices());
    on(this.outbox, "state", (e) => this.showProgress(e.detail));
    on(this.outbox, "refused", (e) => this.refused(e.detail));
    on(this.outbox, "changed", () => !this.outbox.waiting.length && this.tiles.length < PAGE / 2 && this.load());
    on(this.parts.tiles, "click", (e) => this.clickTile(e));
    on(this.parts.tiles, "dblclick", (e) => this.openPreview(e.target.closest(".tile")));
    for (const name of ["pointerover", "focusin"]) on(this.parts.tiles, name, (e) => this.play(e));
    for (const name of ["pointerleave", "focusout"]) on(this.parts.tiles, name, () => this.quiet());
    const field = this.parts.pick.querySelector("input");
    on(field, "input", () => this.showMatch());
    on(field, "keydown", (e) => this.pickKey(e));
    on(this.parts.undo, "click", () => this.undo());
    on(this.root.querySelector(".help-keys"), "click", () => openSheet(this.parts.keySheet));
    on(this.parts.similar.querySelector("button"), "click", () => this.showAll());
    on(this.root, "pointerdown", (e) => e.target.closest && e.target.closest(".tray button, .filter button") && e.preventDefault());
    this.watcher = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && this.load(), { rootMargin: "600px" });
    this.watcher.observe(this.parts.more);
    this.listeners.atEnd(() => this.watcher.disconnect());
    this.listeners.every(GRID_POLL_MS, () => !this.tiles.length && this.load(true));
  }

  ask() {
    this.like = null;
    this.selection.set([]);
    return this.load(true);
  }

  // --- tiles from the server -----------------------------------------------------------------------------------------
  body() {
    return this.like ? { ...this.filters.query(), like: this.like.item_id } : this.filters.query();
  }

  async load(fresh = false) {
    if (this.loading && !fresh) return;
    if (!fresh && (this.ended || this.outbox.waiting.length)) return;
    const turn = (this.turn = (this.turn || 0) + 1);
    this.loading = true;
    try {
      await this.api.openSession();
      const limit = this.like ? SIMILAR : PAGE;
      const answer = await this.api.post(`${this.path}/tiles`, { ...this.body(), limit, ...(fresh || !this.last ? {} : { after: this.last }) });
      if (turn !== this.turn) return;
      if (fresh) this.tiles = [];
      this.take(answer, limit);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status && error.status < 500) this.notify(error.message);
      else setTimeout(() => this.loading === false && this.load(fresh), 1500);
    } finally {
      if (turn === this.turn) this.loading = false;
    }
  }

  take(answer, limit) {
    const known = new Set(this.tiles.map((tile) => tile.item_id));
    const hides = this.filters.query().show === "waiting"; // hide items labeled here, because the server may not have the event yet
    this.tiles.push(...answer.tiles.filter((tile) => !known.has(tile.item_id) && !(hides && this.gone.has(tile.item_id))));
    if (answer.tiles.length) this.last = answer.tiles[answer.tiles.length - 1].item_id;
    if (this.like && !answer.guessed) {
      this.like = null;
      this.notify("Items can be compared after the first round.");
    }
    this.ended = answer.tiles.length < limit || Boolean(this.like);
    this.total = answer.total;
    this.note = answer.note || "";
    this.learn(answer.state, answer.guessed);
    this.draw();
  }

  async loadChoices() {
    try {
      this.filters.setChoices(await this.api.post(`${this.path}/items/choices`, {}));
    } catch (error) {
      // The filters keep their current choices.
    }
  }

  learn(state, guessed) {
    this.guessed = guessed;
    this.showProgress(state);
    const stamp = JSON.stringify([state.classes, guessed]);
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    this.classes = state.classes;
    const many = this.classes.length > FEW_CLASSES;
    this.filters.learn(this.classes, guessed);
    this.entries = this.classes.map((entry) => ({ ...entry, plain: plainName(entry.name), plainOwn: plainName(groupOf(entry.name)[1]) }));
    this.parts.pick.hidden = !many;
    this.parts.keys.hidden = many;
    this.parts.keys.replaceChildren(
      ...this.classes.map((entry) =>
        element("button", { type: "button", title: entry.name, onclick: (e) => e.detail < 2 && this.label(entry) }, element("kbd", {}, entry.key || "·"), element("span", { class: "name" }, entry.name)),
      ),
    );
    const caps = COMMANDS.map(([name, , cap, words]) => [capsOf(name, cap), words]);
    fillKeySheet(this.parts.keySheet, [...caps, ...MOVING, ...this.classes.filter((entry) => entry.key).map((entry) => [entry.key, entry.name])]);
    this.showSelection();
  }

  showProgress(state) {
    this.state = state;
    drawProgress(this.parts, state, this.data.kind);
  }

  draw() {
    const shown = new Map([...this.parts.tiles.children].map((node) => [node.tile, node]));
    this.parts.tiles.replaceChildren(...this.tiles.map((tile) => shown.get(tile) || this.tileNode(tile)));
    const first = this.parts.tiles.querySelector("[tabindex='0']") || this.parts.tiles.firstElementChild;
    if (first) first.tabIndex = 0;
    const what = this.filters.query().show === "waiting" && !this.filters.isFiltered ? " to label" : "";
    this.parts.total.textContent = `${whole(this.total)} ${noun(this.data.kind, this.total)}${what}${this.note ? `. ${this.note}` : ""}`;
    this.parts.similar.hidden = !this.like;
    this.parts.empty.hidden = this.tiles.length > 0;
    this.parts.tiles.hidden = !this.tiles.length;
    if (!this.tiles.length) this.showEmpty();
    this.parts.screen.dataset.view = "ready";
    this.selection.keep(this.tiles.map((tile) => tile.item_id));
    this.actions.showTarget();
  }

  tileNode(tile) {
    const share = tile.confidence === null ? "" : percent(tile.confidence);
    const name = tile.label || tile.guess || "no prediction";
    const aside = tile.label ? tile.labeled_by || "labeled" : share;
    const marks = tileMarks(tile);
    const words = [tile.label ? `labeled ${tile.label}` : tile.guess ? `${tile.guess}, ${share}` : "no prediction", ...marks].join(", ");
    const node = element(
      "div",
      { class: "tile", role: "option", tabindex: "-1", title: name, "aria-selected": "false", "aria-label": words, "data-item-id": tile.item_id, "data-labeled": String(Boolean(tile.label)) },
      element("div", { class: "thumb" }, element("img", { src: tile.thumb, alt: "", loading: "lazy", draggable: "false", width: 240, height: 136, onload: (e) => e.target.setAttribute("data-loaded", "") }), marks.length ? element("div", { class: "flags" }, ...marks.map((mark) => element("span", { "data-mark": mark }, mark))) : null),
      element("div", { class: "caption" }, element("span", { class: `name ${tile.label ? "label" : tile.guess ? "guess" : "none"}` }, name), element("span", { class: "share" }, aside)),
    );
    node.tile = tile;
    return node;
  }

  nodeOf(itemId) {
    return this.parts.tiles.querySelector(`[data-item-id='${itemId}']`);
  }

  redraw(tiles) {
    for (const tile of tiles) {
      const node = this.nodeOf(tile.item_id);
      if (!node) continue;
      const made = this.tileNode(tile);
      made.tabIndex = node.tabIndex;
      const focused = this.root.activeElement === node;
      node.replaceWith(made);
      if (focused) made.focus({ preventScroll: true });
    }
    this.showSelection();
  }

  showEmpty() {
    const narrowed = this.filters.isFiltered || this.like;
    const inShow = this.filters.query().show !== "waiting";
    const none = { title: "No items", text: "No item matches the filters.", action: "Show all", screen: null };
    const words = narrowed || inShow ? none : this.state.empty;
    this.parts.empty.querySelector("h2").textContent = words.title;
    this.parts.empty.querySelector("p").textContent = words.text;
    const button = this.parts.empty.querySelector("button");
    button.textContent = words.action;
    button.onclick = () => (words.screen ? this.trigger("go", words.screen) : this.data.items ? this.trigger("go", "grid-all") : this.showEverything());
  }

  showEverything() {
    this.filters.parts.show.value = "all";
    this.filters.clear();
  }

  showSelection() {
    const n = this.selection.chosen.size;
    for (const node of this.parts.tiles.children) node.setAttribute("aria-selected", String(this.selection.chosen.has(Number(node.dataset.itemId))));
    this.parts.screen.dataset.selected = String(n);
    this.parts.n.textContent = n ? `${whole(n)} selected` : "Nothing selected";
    const how = this.parts.pick.hidden ? "Press a class key to label all selected items" : "Press a class key, or type a name, to label all selected items";
    this.parts.hint.textContent = n ? how : "Click, drag or press Space to select";
    for (const button of this.parts.keys.children) button.disabled = n === 0;
    this.parts.undo.hidden = !this.bulks.length;
    this.actions.showTarget();
  }

  chosenTiles() {
    return this.tiles.filter((tile) => this.selection.chosen.has(tile.item_id));
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
    if (e.defaultPrevented || (e.repeat && !e.key.startsWith("Arrow")) || e.isComposing || typingSomewhere(e, this.root)) return;
    if (this.root.querySelector("dialog[open]")) return;
    const target = e.composedPath()[0];
    const onButton = target instanceof Element && target.closest("button, a, summary, [role='button'], [role='tab']");
    if (onButton && (e.key === " " || e.key === "Enter")) return; // the focused control handles it
    if (isUndo(e)) this.undo();
    else if ((e.ctrlKey || e.metaKey) && !e.altKey && e.key.toLowerCase() === "a") this.selection.set(this.tiles.map((tile) => tile.item_id));
    else if (hasModifier(e) || !this.command(e)) return;
    e.preventDefault();
  }

  // Whether the key is bound to an action.
  command(e) {
    const commandOf = (key) => boundCommand(COMMANDS, key);
    const pressed = pressedKey(e, (key) => commandOf(key) || this.classes.some((entry) => entry.key === key));
    const command = commandOf(pressed); // the server never assigns the key of a command to a class
    const entry = classOfKey(e, pressed, this.classes);
    if (pressed === "Escape") this.escape();
    else if (pressed.startsWith("Arrow")) this.walk(pressed, e.shiftKey);
    else if (command) return this.run(command[0]);
    else if (entry) this.label(entry);
    else return false;
    return true;
  }

  escape() {
    if (this.selection.chosen.size || !this.like) this.selection.set([]);
    else this.showAll();
  }

  run(name) {
    const focused = this.focused();
    if (name === "select" && focused) this.selection.toggle(Number(focused.dataset.itemId));
    else if (name === "preview") this.openPreview(focused || this.nodeOf(this.selection.anchor) || this.parts.tiles.firstElementChild);
    else if (name === "like") this.selectLike();
    else if (name === "skip" || name === "flag") this.mark(name, this.chosenTiles());
    else if (name === "undo") this.undo();
    else if (name === "find") this.filters.parts.search.focus();
    else if (name === "smaller" || name === "larger") this.filters.resize(name === "larger" ? 1 : -1);
    else if (name === "keys") openSheet(this.parts.keySheet);
    else return false;
    return true;
  }

  openPreview(node) {
    if (!node || !node.tile) return;
    this.quiet();
    this.preview.show(node.tile);
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

  // --- a class by its name, when there are many ----------------------------------------------------------------------
  bestMatch() {
    const words = plainName(this.parts.pick.querySelector("input").value).split(" ").filter(Boolean);
    const ranked = words.length ? this.entries.map((entry) => [matchRank(entry, words), entry]).filter(([rank]) => rank >= 0) : [];
    return ranked.length ? ranked.sort((a, b) => a[0] - b[0])[0][1] : null;
  }

  showMatch() {
    const field = this.parts.pick.querySelector("input");
    const best = this.bestMatch();
    this.parts.pick.querySelector(".match").textContent = best ? best.name : field.value.trim() ? "No class has this in its name" : "";
  }

  pickKey(e) {
    if (e.key === "Escape") e.target.value = "";
    if (e.key === "Enter" && !e.isComposing && !e.repeat) {
      const best = this.bestMatch();
      if (!best) return;
      e.target.value = "";
      this.label(best);
    }
    if (e.key === "Enter" || e.key === "Escape") {
      e.target.blur();
      this.showMatch();
    }
  }

  // --- all like this -------------------------------------------------------------------------------------------------
  // Show the items most similar to one tile, nearest first. Those with the same prediction are selected, up to the first
  // item with another prediction.
  async selectLike() {
    const node = this.focused() || this.nodeOf([...this.selection.chosen].pop());
    if (!node) return this.notify("Select or focus one tile first.");
    const { tile } = node;
    if (!tile.guess) return this.notify(this.guessed ? "There is no prediction for this item." : "This is available after the first round.");
    this.like = tile;
    await this.load(true);
    const other = this.tiles.findIndex((one) => one.guess !== tile.guess);
    const same = this.tiles.slice(0, other < 0 ? this.tiles.length : other);
    this.selection.set(same.map((one) => one.item_id));
    this.showSimilar(` ${whole(same.length)} with the same prediction ${same.length === 1 ? "is" : "are"} selected.`);
    if (this.parts.tiles.firstElementChild) this.focus(this.parts.tiles.firstElementChild);
  }

  showSimilar(more) {
    this.parts.similar.querySelector(".words").textContent = `Most similar to ${this.like.name} first.${more}`;
  }

  showAll() {
    this.like = null;
    this.selection.set([]);
    this.load(true);
  }

  // --- sound ---------------------------------------------------------------------------------------------------------
  play(e) {
    const node = e.target.closest(".tile");
    const tile = node && node.tile;
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

  // --- actions -------------------------------------------------------------------------------------------------------
  label(entry, chosen = this.chosenTiles()) {
    if (!entry || !chosen.length) return;
    const bulk = chosen.map((tile) => {
      const shown = tile.guess ? "shown" : "none";
      const event = this.outbox.add({ item_id: tile.item_id, kind: "label", class_id: entry.id, suggestion: shown, suggested_class_id: tile.class_id, suggested_confidence: tile.confidence });
      const before = { ...tile };
      Object.assign(tile, { label: entry.name, label_id: entry.id, labeled_by: null, skipped: false });
      return { tile, before, uuid: event.uuid };
    });
    this.done(bulk, `${whole(bulk.length)} labeled ${entry.name}`, true);
  }

  // `kind` is skip or flag. If all items are flagged, the flags are removed.
  mark(kind, chosen) {
    if (!chosen.length) return;
    const removes = kind === "flag" && chosen.every((tile) => tile.flagged);
    const bulk = chosen.map((tile) => {
      const event = this.outbox.add({ item_id: tile.item_id, kind: removes ? "unflag" : kind });
      const before = { ...tile };
      Object.assign(tile, kind === "flag" ? { flagged: !removes } : { skipped: true, label: null, label_id: null });
      return { tile, before, uuid: event.uuid };
    });
    this.done(bulk, `${whole(bulk.length)} ${kind === "skip" ? "skipped" : removes ? "without a flag" : "flagged"}`, kind === "skip");
  }

  // In the list of items to label, items that no longer wait are removed. In other lists their tiles are updated.
  done(bulk, words, settles) {
    this.quiet();
    this.bulks.push(bulk);
    const tiles = bulk.map(({ tile }) => tile);
    if (settles && this.filters.query().show === "waiting") {
      const removed = new Set(tiles);
      const places = new Map(this.tiles.map((tile, at) => [tile, at]));
      for (const one of bulk) one.at = places.get(one.tile) ?? 0;
      for (const tile of tiles) this.gone.add(tile.item_id);
      this.tiles = this.tiles.filter((tile) => !removed.has(tile));
      this.total -= tiles.length;
      this.draw();
    } else {
      this.redraw(tiles);
      if (settles) this.selection.set([]);
    }
    this.notify("");
    this.showSelection();
    this.parts.hint.textContent = words;
  }

  undo() {
    const bulk = this.bulks.pop();
    if (!bulk) return this.undoEarlier();
    if (bulk.undo) return this.actions.post({ action: "take-back", ...bulk.undo });
    for (const { tile, before, uuid } of bulk) {
      this.outbox.add({ item_id: tile.item_id, kind: "undo", undoes: uuid });
      Object.assign(tile, before);
      this.gone.delete(tile.item_id);
    }
    const back = bulk.map(({ tile }) => tile);
    const shown = new Set(this.tiles);
    const missing = bulk.filter(({ tile }) => !shown.has(tile)).sort((a, b) => a.at - b.at);
    const ids = new Set(missing.map(({ tile }) => tile.item_id));
    this.tiles = this.tiles.filter((tile) => !ids.has(tile.item_id));
    for (const { tile, at } of missing) this.tiles.splice(at, 0, tile); // at their previous positions
    this.total += missing.length;
    this.draw();
    this.redraw(back);
    this.selection.set(back.map((tile) => tile.item_id));
  }

  // Undo actions from before this page was opened, one at a time, newest first.
  async undoEarlier() {
    try {
      const answer = await this.api.post(`${this.path}/recent`, { limit: 1 });
      const [action] = answer.actions;
      if (!action) return this.notify("You have nothing to undo.");
      this.outbox.add({ item_id: action.item_id, kind: "undo", undoes: action.uuid });
      this.notify(`Undone: ${action.kind === "unflag" ? "removed flag" : action.kind} on item ${action.item_id}.`);
      this.gone.delete(action.item_id);
      const sent = () => {
        if (this.outbox.waiting.length) return;
        this.outbox.removeEventListener("changed", sent);
        this.load(true);
      };
      this.outbox.addEventListener("changed", sent);
    } catch (error) {
      this.notify(error.status === 0 ? "No connection. Try again when the server responds." : error.message);
    }
  }

  refused({ event, reason }) {
    this.gone.delete(event.item_id);
    this.notify(`Not saved: ${reason}`);
  }

  notify(text, action = null) {
    const { message } = this.parts;
    message.hidden = !text;
    message.querySelector(".words").textContent = text;
    message.querySelector(".act")?.remove();
    if (action) message.querySelector(".dismiss").before(element("button", { type: "button", class: "plain act", onclick: action.go }, action.words));
    message.querySelector(".dismiss").onclick = () => (message.hidden = true);
  }

  close() {
    this.listeners.end();
    this.quiet();
  }
}

export default (component) => mountWidget(Grid, component);
