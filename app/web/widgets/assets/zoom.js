// Zoom of pictures: the wheel or Z zooms, dragging moves, a double click resets. Spectrograms do not zoom.

class Zoom {
  constructor(picture, note) {
    this.picture = picture;
    this.note = note;
    this.reset();
    this.drag = null;
    picture.addEventListener("wheel", (e) => this.wheel(e), { passive: false });
    picture.addEventListener("pointerdown", (e) => this.start(e));
    picture.addEventListener("pointermove", (e) => this.move(e));
    for (const end of ["pointerup", "pointercancel"]) picture.addEventListener(end, () => (this.drag = null));
    picture.addEventListener("dblclick", () => this.toggle());
    this.active = false;
  }

  reset() {
    Object.assign(this, { factor: 1, x: 0, y: 0 });
    this.apply();
  }

  toggle() {
    if (!this.active) return;
    this.factor = this.factor > 1 ? 1 : 3;
    this.x = this.y = 0;
    this.apply();
  }

  wheel(e) {
    if (!this.active) return;
    e.preventDefault();
    this.factor = Math.max(1, Math.min(12, this.factor * Math.exp(-e.deltaY / 400)));
    if (this.factor === 1) this.x = this.y = 0;
    this.apply();
  }

  start(e) {
    if (!this.active || this.factor === 1) return;
    this.drag = [e.clientX - this.x, e.clientY - this.y];
    this.picture.setPointerCapture(e.pointerId);
  }

  move(e) {
    if (!this.drag) return;
    [this.x, this.y] = [e.clientX - this.drag[0], e.clientY - this.drag[1]];
    this.apply();
  }

  apply() {
    this.picture.style.setProperty("--zoom", `translate(${this.x}px, ${this.y}px) scale(${this.factor})`);
    this.picture.dataset.zoomed = String(this.factor > 1);
    this.note.hidden = this.factor === 1;
    this.note.textContent = `${this.factor.toFixed(1)}× · drag to move, Z to reset`;
  }
}
