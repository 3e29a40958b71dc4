// A large preview of one item: the picture, or spectrogram and sound, with its label, prediction and notes.

class GridPreview {
  constructor(root, grid) {
    this.grid = grid;
    this.sheet = root.querySelector("dialog.preview");
    const one = (selector) => this.sheet.querySelector(selector);
    this.parts = { big: one(".big"), facts: one(".facts") };
    one(".previous").onclick = () => this.step(-1);
    one(".next").onclick = () => this.step(1);
    one(".open").onclick = () => this.tile && this.grid.trigger("go", `label:${this.tile.item_id}`);
    one(".shut").onclick = () => this.sheet.close();
    this.sheet.onkeydown = (e) => this.key(e);
    this.sheet.onclose = () => this.closed();
  }

  get isOpen() {
    return this.sheet.open;
  }

  async show(tile) {
    this.tile = tile;
    this.parts.big.replaceChildren(element("div", { class: "skeleton" }));
    this.showFacts();
    if (!this.sheet.open) this.sheet.showModal();
    this.sheet.querySelector(".shut").focus({ preventScroll: true });
    try {
      const answer = await this.grid.api.post(`${this.grid.path}/cards`, { items: [tile.item_id] });
      if (this.tile !== tile || !this.sheet.open) return;
      this.showMedia(answer.cards[0], tile);
    } catch (error) {
      this.parts.big.replaceChildren(element("p", { class: "trouble" }, error.message || "The item cannot be shown."));
    }
  }

  showMedia(card, tile) {
    if (!card) return;
    const image = element("img", { src: card.media.picture, alt: tile.audio ? "Spectrogram of the clip" : "The picture, large", draggable: "false" });
    image.onerror = () => image.replaceWith(element("p", { class: "trouble" }, tile.unreadable || "The media cannot be shown."));
    const sound = tile.audio ? element("audio", { src: tile.audio, controls: true, autoplay: true }) : null;
    this.parts.big.replaceChildren(...[image, sound].filter(Boolean));
  }

  showFacts() {
    const { tile } = this;
    const line = (term, ...words) => element("div", {}, element("span", { class: "term" }, term), element("span", {}, ...words));
    const rows = [];
    if (tile.label) rows.push(line("Label", tile.label + (tile.labeled_by ? `, by ${tile.labeled_by}` : "")));
    if (tile.guess) rows.push(line("Prediction", `${tile.guess}, ${percent(tile.confidence)}`));
    const marks = tileMarks(tile);
    if (marks.length) rows.push(line("Marks", marks.join(", ")));
    for (const note of tile.notes || []) rows.push(line(note.by ? `Note by ${note.by}` : "Note", note.text));
    if (tile.unreadable) rows.push(line("Unreadable", tile.unreadable));
    rows.push(line("Name", tile.name));
    this.parts.facts.replaceChildren(...rows);
  }

  step(by) {
    const { tiles } = this.grid;
    const at = tiles.findIndex((tile) => tile.item_id === this.tile.item_id);
    const next = tiles[Math.max(0, Math.min(tiles.length - 1, (at < 0 ? this.at || 0 : at + by)))];
    this.at = Math.max(0, at);
    if (next && next !== this.tile) this.show(next);
  }

  // Class keys label the item in the preview, then the next item is shown.
  key(e) {
    if (e.defaultPrevented || e.repeat || e.isComposing) return;
    if (isUndo(e)) return this.undo(e);
    if (hasModifier(e)) return;
    const { classes, tiles } = this.grid;
    const pressed = pressedKey(e, (key) => classes.some((entry) => entry.key === key));
    const entry = classOfKey(e, pressed, classes);
    const steps = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };
    if (e.target.matches && e.target.matches("audio") && steps[pressed]) return; // the player's own keys
    if (steps[pressed]) this.step(steps[pressed]);
    else if (pressed === "e") this.sheet.close();
    else if (pressed === "f") this.grid.mark("flag", [this.tile]);
    else if (pressed === "u" || pressed === "Backspace") return this.undo(e);
    else if (entry) {
      const at = tiles.indexOf(this.tile);
      this.grid.label(entry, [this.tile]);
      const next = this.grid.tiles[this.grid.tiles[at] === this.tile ? at + 1 : at];
      if (next) this.show(next);
      else this.sheet.close();
    } else return;
    e.preventDefault();
    if (this.sheet.open) this.showFacts();
  }

  // Undo the last action and show its item.
  undo(e) {
    e.preventDefault();
    const last = this.grid.bulks[this.grid.bulks.length - 1];
    this.grid.undo();
    if (last && last.length === 1) this.show(last[0].tile);
    else this.showFacts();
  }

  closed() {
    this.parts.big.replaceChildren(); // stops the sound
    const node = this.tile && this.grid.nodeOf(this.tile.item_id);
    if (node) this.grid.focus(node);
  }
}
