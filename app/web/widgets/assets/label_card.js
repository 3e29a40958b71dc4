// The labeling card: one key labels the item and shows the next one. Streamlit reruns do not affect its cards and queue.

const COMMANDS = [
  ["accept", "Enter", "Enter", "Accept the suggestion"],
  ["back", "ArrowLeft", "←", "Previous item"],
  ["forward", "ArrowRight", "→", "Next item, after going back"],
  ["undo", "u", "U", "Undo the last label, skip or flag"],
  ["skip", "s", "S", "Skip this item"],
  ["flag", "f", "F", "Set or remove the flag"],
  ["note", "n", "N", "Write a note"],
  ["replay", " ", "Space", "Play from the start"],
  ["slower", "[", "[", "Slower"],
  ["faster", "]", "]", "Faster"],
  ["loop", "l", "L", "Loop"],
  ["autoplay", "a", "A", "Play each clip automatically"],
  ["zoom", "z", "Z", "Zoom the picture"],
  ["context", "x", "X", "Hear and see the seconds before and after a window"],
  ["find", "/", "/", "Find a class by name"],
  ["guidelines", "g", "G", "Guidelines of this project"],
  ["keys", "?", "?", "All keys"],
];
const RECENT = 60; // number of latest actions from which the recent classes are taken
const CLICK_GUARD_MS = 250;
const POLL_MS = 4000;

class LabelCard {
  static identity(data) {
    return [data.project_id, data.annotator_id];
  }

  constructor(root, data, trigger) {
    this.root = root;
    this.data = data;
    this.trigger = trigger;
    this.pad = new ClassPad(root, (entry, e) => this.clickClass(entry, e));
    this.view = new LabelView(root, this.pad);
    this.notes = new NoteSheet(root);
    this.names = new FullNames(root, root.querySelector(".tip"));
    this.player = new Player(this.view.parts);
    this.zoom = new Zoom(this.view.parts.picture, this.view.parts.zoomed);
    this.strip = new RecordingStrip(this);
    this.actions = []; // actions that can be undone, oldest first
    this.shownAt = performance.now();
    this.lastClick = 0;
    this.classes = [];
    const { api, outbox } = winnowClient(data);
    this.outbox = outbox;
    this.deck = new Deck(api, outbox, data.project_id);
    this.listen();
    this.view.parts.why.open = !window.matchMedia("(max-width: 900px)").matches;
    this.view.view("loading");
    this.deck.open().then(() => this.openItem(data.open_item));
    this.recent = this.loadRecent(api).finally(() => (this.recent = null));
  }

  update(data) {
    this.openItem(data.open_item);
  }

  // Show an item that another screen opens.
  openItem(itemId) {
    if (itemId && itemId !== this.opened) this.reveal((this.opened = itemId));
  }

  listen() {
    this.listeners = new Listeners();
    const { on } = this.listeners;
    on(document, "keydown", (e) => this.key(e));
    for (const name of ["keydown", "pointerdown"]) on(document, name, () => (this.player.gestured = true), { capture: true });
    on(window, "pagehide", () => this.deck.leave());
    on(this.outbox, "state", (e) => {
      this.deck.learn(e.detail);
      this.deck.followSoon();
    });
    on(this.deck, "followed", (e) => this.showEffect(e.detail));
    on(this.outbox, "refused", (e) => this.refused(e.detail));
    on(this.outbox, "changed", () => this.outbox.waiting.length === 0 && !this.deck.current && this.deck.fill());
    on(this.outbox, "changed", () => this.strip.labelsChanged());
    on(this.deck, "card", () => this.showCard());
    on(this.deck, "media", () => this.showMedia());
    on(this.deck, "state", () => this.showState());
    on(this.deck, "changed", () => this.showEmpty());
    for (const name of ["prepared", "card", "changed"]) on(this.deck, name, () => this.showReadiness());
    on(this.root, "pointerdown", (e) => {
      if (e.target.closest && e.target.closest("button")) e.preventDefault(); // a click must not focus the button, or Space would press it
    });
    on(this.root, "click", (e) => this.click(e));
    on(this.view.parts.search, "input", () => this.pad.filter(this.view.parts.search.value));
    on(this.view.parts.search, "keydown", (e) => this.searchKey(e));
    on(this.view.parts.wave, "click", (e) => this.player.seek(e.offsetX / this.view.parts.wave.clientWidth));
    on(window, "resize", () => this.view.fit());
    this.listeners.every(POLL_MS, () => this.deck.refreshState());
  }

  async loadRecent(api) {
    try {
      const answer = await api.post(`${this.deck.path}/recent`, { limit: 50 });
      const known = new Set(this.actions.map((action) => action.uuid));
      const sent = answer.actions.filter((action) => !known.has(action.uuid)).reverse();
      const unsent = this.outbox.waiting.filter((event) => event.kind !== "undo" && !known.has(event.uuid));
      this.actions = [...sent, ...unsent.filter((event) => !sent.some((action) => action.uuid === event.uuid)), ...this.actions];
    } catch (error) {
      // Undo still works for the actions on this page.
    }
  }

  // --- drawing -------------------------------------------------------------------------------------------------------
  showState() {
    const { state } = this.deck;
    const stamp = JSON.stringify(state.classes);
    if (stamp !== this.stamp) {
      this.stamp = stamp;
      this.classes = state.classes;
      this.pad.set(state.classes);
      this.view.fit();
      if (this.deck.current) this.drawCard();
      this.showKeys();
    }
    this.view.progress(state, this.data.kind);
    this.root.querySelector("[data-action='guidelines']").hidden = !state.guidelines;
    this.root.querySelector(".guidelines").textContent = state.guidelines;
    this.showEmpty();
  }

  showCard() {
    const { current } = this.deck;
    this.shownAt = performance.now();
    this.zoom.reset();
    this.zoom.active = this.data.kind === "image";
    if (current) this.view.view("card");
    this.drawCard();
    this.player.load(current && current.audio, current && current.sound ? current.sound.seconds : 0);
    this.strip.show(current);
    this.showEmpty();
  }

  drawCard() {
    const recent = this.actions.slice(-RECENT).filter((action) => action.kind === "label" && action.class_id).map((action) => action.class_id);
    this.view.card(this.deck.current, this.data.kind, [...new Set(recent.reverse())]);
  }

  showMedia() {
    const { current } = this.deck;
    if (this.strip.on) return;
    this.view.media(current, this.data.kind);
    if (current.audio && this.player.audio !== current.audio) this.player.load(current.audio, current.sound ? current.sound.seconds : 0);
  }

  // For tests: how many cards are ahead, and how many of them still load their media.
  showReadiness() {
    this.view.screen.dataset.ahead = String(this.deck.ahead.length);
    this.view.screen.dataset.preparing = String(this.deck.preparing);
  }

  // Show how many predictions the last labels changed, after the predictions of the next cards have been updated.
  showEffect({ n_new, n_changed }) {
    if (!n_changed) return;
    const labels = n_new === 1 ? "This label" : `The last ${whole(n_new)} labels`;
    this.view.parts.given.textContent = `${labels} changed ${whole(n_changed)} ${n_changed === 1 ? "prediction" : "predictions"}`;
  }

  showEmpty() {
    const { current, state, problem, filling } = this.deck;
    if (current) return;
    if (problem === "lost") return this.view.empty("No connection", "The server does not respond. Retrying every second. No labels are lost.");
    if (problem) return this.view.empty("Nothing to label", problem, "Open another project", () => this.trigger("go", "data"));
    if (!state || filling || this.outbox.waiting.length) return this.view.view("loading");
    const next = state.empty;
    this.view.empty(next.title, next.text, next.action, () => this.trigger("go", next.screen));
  }

  showKeys() {
    const commands = COMMANDS.filter(([name]) => name !== "find" || this.pad.many);
    const rows = commands.map(([name, , cap, words]) => [capsOf(name, cap), words]);
    const classes = this.classes.filter((entry) => entry.key).map((entry) => [entry.key, entry.name]);
    fillKeySheet(this.root.querySelector("dialog.keys"), [...rows, ...classes]);
  }

  // --- input ---------------------------------------------------------------------------------------------------------
  key(e) {
    if (e.defaultPrevented || e.repeat || e.isComposing) return;
    if (typingSomewhere(e, this.root) || this.root.querySelector("dialog[open]")) return;
    if (isUndo(e)) {
      e.preventDefault();
      return this.undo();
    }
    if (hasModifier(e)) return;
    const target = e.composedPath()[0];
    const onButton = target instanceof Element && target.closest("button, a, summary, [role='button'], [role='tab']");
    if (onButton && (e.key === " " || e.key === "Enter")) return; // the focused control handles it
    const commandOf = (key) => boundCommand(COMMANDS, key);
    const pressed = pressedKey(e, (key) => commandOf(key) || this.classes.some((entry) => entry.key === key));
    const command = commandOf(pressed); // the server never assigns the key of a command to a class
    const chosen = classOfKey(e, pressed, this.classes);
    if (chosen && command && command[0] === "context") this.label(chosen); // in an older project, a class may have this key
    else if (command) this.run(command[0]);
    else if (chosen) this.label(chosen);
    else return;
    e.preventDefault();
  }

  click(e) {
    const button = e.target.closest && e.target.closest("button");
    if (!button) return;
    const classed = ["replay", "slower", "faster", "loop", "autoplay", "zoom"].find((name) => button.classList.contains(name));
    if (button.dataset.action) this.run(button.dataset.action);
    else if (button.classList.contains("toggle")) this.player.toggle();
    else if (classed) this.run(classed);
  }

  clickClass(entry, e) {
    const now = performance.now();
    if (e.detail > 1 || now - this.lastClick < CLICK_GUARD_MS) return; // the second half of a double click
    this.lastClick = now;
    this.label(entry);
  }

  searchKey(e) {
    if (e.key === "Escape") {
      this.pad.clear();
      e.target.blur();
    }
    if (e.key !== "Enter" || e.repeat || e.isComposing) return;
    e.preventDefault();
    if (!this.pad.isFiltered) return this.accept();
    const entry = this.pad.first();
    if (!entry) return;
    this.pad.clear();
    if (this.classes.every((one) => one.key)) e.target.blur(); // otherwise the name of the next class can be typed at once
    this.label(entry);
  }

  run(name) {
    const { player } = this;
    if (name === "slower" || name === "faster") player.changeSpeed(name === "slower" ? -1 : 1);
    else if (name === "replay") player.replay();
    else if (name === "loop") player.toggleLoop();
    else if (name === "autoplay") player.toggleAutoplay();
    else if (name === "zoom") this.zoom.toggle();
    else if (name === "context") this.strip.toggle();
    else if (name === "find" && !this.view.parts.finder.hidden) this.view.parts.search.focus();
    else if (name === "keys") openSheet(this.root.querySelector("dialog.keys"));
    else if (name === "guidelines" && this.deck.state && this.deck.state.guidelines) openSheet(this.root.querySelector("dialog.guide"));
    else if (name === "like" && this.deck.current) this.trigger("go", `like:${this.deck.current.item_id}`);
    else if (["accept", "back", "forward", "undo", "skip", "flag", "note"].includes(name)) this[name]();
  }

  // --- actions -------------------------------------------------------------------------------------------------------
  record(kind, extra = {}) {
    const event = this.outbox.add({ item_id: this.deck.current.item_id, kind, seconds: this.secondsHere(), ...extra });
    this.actions.push({ uuid: event.uuid, item_id: event.item_id, kind, class_id: event.class_id ?? null });
    return event;
  }

  secondsHere() {
    return Math.round(performance.now() - this.shownAt) / 1000;
  }

  label(entry) {
    const { current } = this.deck;
    if (!current) return;
    const { state, class_id, confidence, item_id, round_id } = current.suggestion;
    if (state !== "none" && item_id !== current.item_id) throw new Error("a suggestion of another item");
    const hidden = state === "hidden" ? { suggestion_round: round_id } : {}; // the server knows the hidden suggestion
    this.record("label", { class_id: entry.id, suggestion: state, suggested_class_id: class_id, suggested_confidence: confidence, ...hidden });
    current.mine = entry.id;
    current.skipped = false;
    this.done();
  }

  accept() {
    const { current } = this.deck;
    if (!current) return;
    const entry = current.suggestion.state === "shown" && this.classes.find((one) => one.id === current.suggestion.class_id);
    if (entry) this.label(entry);
    else this.view.parts.given.textContent = current.suggestion.state === "hidden" ? "The suggestion is hidden for this item." : "There is no suggestion to accept.";
  }

  skip() {
    if (!this.deck.current) return;
    this.record("skip");
    this.deck.current.skipped = true;
    this.done();
  }

  done() {
    this.deck.handled.add(this.deck.current.item_id);
    this.view.notify("");
    this.deck.next();
  }

  flag() {
    const { current } = this.deck;
    if (!current) return;
    current.flagged = !current.flagged;
    this.record(current.flagged ? "flag" : "unflag");
    this.drawCard();
  }

  back() {
    const { behind } = this.deck;
    if (behind.length) this.deck.show(behind.pop());
    else this.earlier();
  }

  // Undo actions from before this page was opened, newest first.
  async earlier() {
    const seen = new Set([this.deck.current, ...this.deck.ahead].filter(Boolean).map((card) => card.item_id));
    const action = [...this.actions].reverse().find((a) => a.kind !== "note" && !seen.has(a.item_id));
    if (!action || this.looking) return;
    await this.reveal(action.item_id);
  }

  forward() {
    const { current } = this.deck;
    if (current && this.deck.ahead.length && (current.mine !== null || current.skipped)) this.deck.next();
  }

  undo() {
    const action = this.actions.pop();
    if (!action && this.recent) return this.recent.then(() => this.undo()); // earlier actions are still being requested
    if (!action) return this.view.notify("You have nothing to undo.");
    this.outbox.add({ item_id: action.item_id, kind: "undo", undoes: action.uuid });
    this.deck.handled.delete(action.item_id);
    this.reveal(action.item_id, (card) => this.takeBack(card, action));
  }

  takeBack(card, action) {
    const earlier = [...this.actions].reverse().find((a) => a.item_id === action.item_id && a.kind === "label");
    if (action.kind === "label") card.mine = earlier ? earlier.class_id ?? null : null;
    if (action.kind === "skip") card.skipped = false;
    if (action.kind === "flag" || action.kind === "unflag") card.flagged = action.kind === "unflag";
  }

  async reveal(itemId, change = () => {}) {
    this.looking = true;
    try {
      const card = await this.deck.find(itemId);
      if (!card) return this.view.notify("That item is no longer in this project.");
      change(card);
      this.deck.show(card);
    } catch (error) {
      this.view.notify(error.status === 0 ? "No connection. Try again when the server responds." : error.message);
    } finally {
      this.looking = false;
    }
  }

  note() {
    const { current } = this.deck;
    if (!current) return;
    this.notes.open(current.note || "", (note) => {
      this.record("note", { note });
      current.note = note;
    });
  }

  refused({ event, reason }) {
    this.actions = this.actions.filter((action) => action.uuid !== event.uuid);
    this.deck.handled.delete(event.item_id);
    const card = [this.deck.current, ...this.deck.behind].find((c) => c && c.item_id === event.item_id);
    if (card && event.kind === "label" && card.mine === event.class_id) card.mine = null;
    this.view.notify(`Not saved: ${reason}`, () => this.reveal(event.item_id));
    this.deck.refreshState();
  }

  close() {
    this.listeners.end();
    this.player.stop();
    this.deck.leave();
    this.deck.close();
  }
}

export default (component) => mountWidget(LabelCard, component);
