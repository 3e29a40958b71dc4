// Which tiles are selected: click, shift-click, drag, and keys, over an ordered list of ids.

class Selection extends EventTarget {
  constructor(order) {
    super();
    this.order = order; // () => ids in the displayed order
    this.chosen = new Set();
    this.anchor = null;
  }

  set(ids) {
    this.chosen = new Set(ids);
    this.dispatchEvent(new Event("changed"));
  }

  toggle(id) {
    const chosen = new Set(this.chosen);
    if (!chosen.delete(id)) chosen.add(id);
    this.anchor = id;
    this.set(chosen);
  }

  // Select all tiles from the last one clicked to this one.
  extend(id) {
    const ids = this.order();
    const from = Math.max(0, ids.indexOf(this.anchor));
    const to = ids.indexOf(id);
    this.set([...this.chosen, ...ids.slice(Math.min(from, to), Math.max(from, to) + 1)]);
  }

  keep(ids) {
    const known = new Set(ids);
    this.set([...this.chosen].filter((id) => known.has(id)));
  }
}

// A rectangle drawn with the mouse adds the tiles that it touches to the selection.
class Band {
  constructor(screen, band, tilesOf, onSelect) {
    Object.assign(this, { screen, band, tilesOf, onSelect, start: null, moved: false });
    screen.addEventListener("pointerdown", (e) => this.down(e));
    screen.addEventListener("pointermove", (e) => this.move(e));
    screen.addEventListener("pointerup", (e) => this.up(e));
    screen.addEventListener("pointercancel", (e) => this.up(e));
  }

  down(e) {
    const inTiles = e.target.closest && e.target.closest(".tiles");
    if (e.pointerType !== "mouse" || e.button !== 0 || !inTiles) return;
    this.start = [e.clientX, e.clientY];
    this.moved = false;
  }

  rectangle(e) {
    const [x, y] = this.start;
    return {
      left: Math.min(x, e.clientX), right: Math.max(x, e.clientX),
      top: Math.min(y, e.clientY), bottom: Math.max(y, e.clientY),
    };
  }

  move(e) {
    if (!this.start) return;
    const r = this.rectangle(e);
    if (!this.moved && r.right - r.left < 6 && r.bottom - r.top < 6) return;
    if (!this.moved) this.screen.setPointerCapture(e.pointerId);
    this.moved = true;
    const home = this.screen.getBoundingClientRect();
    this.band.hidden = false;
    this.band.style.setProperty("left", `${r.left - home.left}px`);
    this.band.style.setProperty("top", `${r.top - home.top}px`);
    this.band.style.setProperty("width", `${r.right - r.left}px`);
    this.band.style.setProperty("height", `${r.bottom - r.top}px`);
  }

  up(e) {
    if (!this.start) return;
    if (this.moved && e.type === "pointerup") {
      const r = this.rectangle(e);
      const touched = [...this.tilesOf()].filter((tile) => {
        const t = tile.getBoundingClientRect();
        return t.left < r.right && t.right > r.left && t.top < r.bottom && t.bottom > r.top;
      });
      this.onSelect(touched.map((tile) => Number(tile.dataset.itemId)));
    }
    this.start = null;
    this.band.hidden = true;
    setTimeout(() => (this.moved = false)); // the click event after a drag must be ignored
  }
}
