// The note on an item: Enter saves, Ctrl+Enter or Shift+Enter is a new line, Escape asks for confirmation before it discards the text.

class NoteSheet {
  constructor(root) {
    this.sheet = root.querySelector("dialog.note");
    this.text = this.sheet.querySelector("textarea");
    this.ask = this.sheet.querySelector(".ask");
    this.row = this.sheet.querySelector(".row");
    this.sheet.onkeydown = (e) => this.key(e);
    this.sheet.oncancel = (e) => {
      e.preventDefault();
      this.leave();
    };
    this.sheet.querySelector(".save").onclick = () => this.finish(true);
    this.sheet.querySelector(".cancel").onclick = () => this.finish(false);
    this.ask.querySelector(".discard").onclick = () => this.finish(false);
    this.ask.querySelector(".keep").onclick = () => this.asking(false);
  }

  open(note, onSave) {
    this.before = this.text.value = note;
    this.onSave = onSave;
    this.asking(false);
    this.sheet.showModal();
    this.text.focus();
  }

  key(e) {
    if (e.isComposing) return;
    if (e.key === "Escape") {
      e.preventDefault(); // a second Escape would close the dialog regardless of `cancel`
      if (this.ask.hidden) this.leave();
      else this.asking(false);
    } else if (e.key === "Enter" && e.target === this.text) {
      if (e.shiftKey && !e.ctrlKey && !e.metaKey) return; // the field's own new line
      e.preventDefault();
      if (e.ctrlKey || e.metaKey) this.text.setRangeText("\n", this.text.selectionStart, this.text.selectionEnd, "end");
      else if (!e.repeat) this.finish(true);
    }
  }

  leave() {
    if (this.text.value === this.before) this.finish(false);
    else this.asking(true);
  }

  asking(now) {
    this.ask.hidden = !now;
    this.row.hidden = now;
    (now ? this.ask.querySelector(".keep") : this.text).focus();
  }

  finish(save) {
    if (!this.sheet.open) return;
    const { value } = this.text;
    this.text.blur(); // browsers unfocus a closed field one frame later; a key pressed before that would go to the field
    this.sheet.close();
    if (save && value !== this.before) this.onSave(value);
  }
}
