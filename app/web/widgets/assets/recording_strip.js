// Windows of recordings: a strip of the entire recording with labels, predictions and the current position; and the
// context, which is the seconds before and after a window. It is shown and played on request, with the window marked.

function clockText(seconds) {
  const whole = Math.floor(seconds + 0.0005);
  const two = (n) => String(n).padStart(2, "0");
  const rest = seconds - whole >= 0.05 ? (seconds - whole).toFixed(1).slice(1) : "";
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}${rest}`;
}

const STRIP_DELAY_MS = 120;

class RecordingStrip {
  // `card` is the LabelCard of this strip, which is placed below the controls of the card.
  constructor(card) {
    this.card = card;
    this.shown = null; // the displayed card, if it is that of a window
    this.on = false; // whether the context is shown
    this.data = null;
    this.place = element("p", { class: "place" });
    this.track = element("div", { class: "track", role: "img" });
    this.toggler = element("button", { type: "button", class: "pill context", "data-action": "context", "aria-pressed": "false" }, "Context ", element("kbd", {}, "X"));
    this.root = element("div", { class: "recording", hidden: "" }, this.track, element("div", { class: "row" }, this.place, element("span", { class: "spacer" }), this.toggler));
    this.mark = element("div", { class: "window", hidden: "", "aria-hidden": "true" });
    card.root.querySelector(".controls").after(this.root);
    card.view.parts.picture.append(this.mark);
  }

  show(current) {
    const window = current && current.window;
    this.on = false;
    this.mark.hidden = true;
    this.toggler.setAttribute("aria-pressed", "false");
    this.root.hidden = !window;
    this.shown = window ? current : null;
    this.audio = null;
    clearTimeout(this.timer);
    this.late = false;
    if (!window) return;
    this.place.textContent = "";
    this.timer = setTimeout(() => this.refresh(), STRIP_DELAY_MS); // no strip is requested during fast labeling
  }

  // Load the strip of the current card. If labels are being sent, load it after they are saved.
  refresh() {
    this.late = this.card.outbox.waiting.length > 0;
    if (this.shown && !this.late) this.load(this.shown);
  }

  // Called when the queue of labels has changed.
  labelsChanged() {
    if (this.late) this.refresh();
  }

  async load(current) {
    try {
      const answer = await fetch(`${current.window}/strip.json`, { credentials: "same-origin" });
      if (!answer.ok) throw new Error(String(answer.status));
      const data = await answer.json();
      if (this.shown === current) this.draw(data);
    } catch (error) {
      if (this.shown === current) this.place.textContent = "The strip of the recording cannot be loaded.";
    }
  }

  draw(data) {
    const share = (seconds) => `${(100 * seconds) / data.seconds}%`;
    const part = (kind, span) => {
      const mark = element("span", { class: kind, title: span.title || "" });
      mark.style.left = share(span.start);
      mark.style.width = share(span.end - span.start);
      if (span.color) mark.style.setProperty("--class-color", span.color);
      return mark;
    };
    const label = (span) => ({ ...span, title: `${span.name}, ${clockText(span.start)} to ${clockText(span.end)}` });
    this.track.replaceChildren(
      ...data.predictions.map((span) => part("predicted", { ...label(span), title: `Predicted ${label(span).title}` })),
      ...data.labels.map((span) => part("labeled", label(span))),
      part("here", data),
    );
    const words = `Window ${whole(data.number)} of ${whole(data.of)}, ${clockText(data.start)} to ${clockText(data.end)} of ${clockText(data.seconds)}`;
    this.track.setAttribute("aria-label", `${words}. ${whole(data.labels.length)} labeled stretches.`);
    this.place.textContent = `${words} · label the most prominent class`;
  }

  async toggle() {
    const current = this.shown;
    if (!current) return;
    this.on = !this.on;
    this.toggler.setAttribute("aria-pressed", String(this.on));
    if (!this.on) return this.back();
    try {
      const answer = await fetch(`${current.window}/context.json`, { credentials: "same-origin" });
      if (!answer.ok) throw new Error((await answer.json()).error || "The context cannot be loaded.");
      const data = await answer.json();
      if (this.shown === current && this.on) this.showContext(current, data);
    } catch (error) {
      this.on = false;
      this.toggler.setAttribute("aria-pressed", "false");
      this.card.view.notify(error.message);
    }
  }

  showContext(current, data) {
    const image = element("img", { src: `${current.window}/context.png`, alt: "Spectrogram of the window with the seconds before and after it" });
    this.card.view.media({ ...current, image, sound: data }, "audio");
    this.mark.style.left = `${100 * data.start}%`;
    this.mark.style.width = `${100 * (data.end - data.start)}%`;
    this.mark.hidden = false;
    this.audio = new Audio(`${current.window}/context.wav`);
    this.card.player.load(this.audio, data.seconds);
  }

  back() {
    const { current } = this.card.deck;
    this.mark.hidden = true;
    this.card.view.media(current, "audio");
    this.card.player.load(current.audio, current.sound ? current.sound.seconds : 0);
  }
}
