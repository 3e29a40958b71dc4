// The view of a card: fills the parts of label_card.html. All text from users is set as text, never as HTML.

class LabelView {
  constructor(root, pad) {
    this.root = root;
    this.pad = pad;
    const one = (selector) => root.querySelector(selector);
    this.screen = one(".screen");
    this.parts = {
      dashes: one(".dashes"), batch: one(".batch"), project: one(".project"), frame: one(".frame"), ticks: one(".ticks"),
      head: one(".head"), trouble: one(".trouble"), wave: one(".wave"), reasons: one(".reasons"), classes: one(".classes"),
      finder: one(".finder"), search: one(".search"), given: one(".given"), empty: one(".empty"), message: one(".message"),
      why: one(".why"), toggle: one(".toggle"), clock: one(".clock"), played: one(".clip"), speed: one(".speed"),
      loop: one(".loop"), autoplay: one(".autoplay"), picture: one(".picture"), zoomed: one(".zoomed"),
    };
  }

  view(name) {
    this.screen.dataset.view = name; // loading | card | empty
    this.parts.empty.hidden = name !== "empty";
  }

  progress(state, kind) {
    drawProgress(this.parts, state, kind);
  }

  // The screen fills the window below the header. The picture gets the height that the classes do not need.
  fit() {
    const main = document.querySelector(".stMain");
    const above = this.screen.getBoundingClientRect().top + (main ? main.scrollTop - main.getBoundingClientRect().top : 0);
    this.screen.style.setProperty("--above", `${Math.max(0, Math.round(above))}px`);
  }

  card(card, kind, recent = []) {
    this.screen.dataset.itemId = card ? String(card.item_id) : "";
    this.screen.dataset.kind = kind;
    this.media(card, kind);
    if (!card) return;
    const suggested = card.suggestion.state === "shown" ? card.suggestion.class_id : null;
    const likely = suggested === null ? [] : card.suggestion.guesses.map((guess) => guess.class_id);
    this.pad.show({ suggested, given: card.mine, likely, recent });
    this.why(card, kind);
    this.root.querySelector("[data-action='flag']").setAttribute("aria-pressed", String(Boolean(card.flagged)));
    const given = card.mine !== null ? this.pad.nameOf(card.mine) : null;
    this.parts.given.textContent = given ? `Labeled ${given}. Press a key to change it, → for the next item.` : card.skipped ? "Skipped" : "";
  }

  media(card, kind) {
    const { frame, ticks, trouble, wave } = this.parts;
    trouble.hidden = !(card && card.failure);
    trouble.textContent = card && card.failure ? card.failure : "";
    if (card && card.image) {
      card.image.alt = kind === "audio" ? "Spectrogram of the clip" : "The picture to label";
      frame.replaceChildren(card.image);
    } else {
      frame.replaceChildren(element("div", { class: "skeleton" }));
    }
    if (kind !== "audio") return;
    const sound = card && card.sound;
    const marks = sound ? sound.ticks : [];
    ticks.replaceChildren(
      ...marks.map((mark) => {
        const label = element("span", {}, mark.text);
        label.style.setProperty("--height", String(mark.height));
        return label;
      }),
    );
    const path = sound ? barsPath(sound.peaks) : "";
    for (const bars of wave.querySelectorAll("path")) bars.setAttribute("d", path);
  }

  why(card, kind) {
    const rows = [];
    const term = (name) => element("div", { class: "term" }, name);
    const pick = card.pick;
    this.parts.why.querySelector("summary").textContent = `Why this ${noun(kind, 1)}`;
    rows.push(element("p", { class: "sentence" }, card.why));
    if (card.suggestion.state === "shown") {
      rows.push(term("Suggestion"));
      for (const guess of card.suggestion.guesses.slice(0, 3)) {
        const bar = element("div", { class: "guess" }, element("span", {}, guess.name), element("span", { class: "share" }, percent(guess.share)));
        bar.style.setProperty("--share", String(guess.share));
        rows.push(bar);
      }
    } else if (card.suggestion.state === "hidden") {
      rows.push(term("Suggestion"), element("div", { class: "value quiet" }, card.suggestion.blind ? "Hidden until you have labeled this item" : "Hidden for this item (bias check)"));
    }
    if (card.nearest.length) {
      rows.push(term("Nearest labeled items"));
      const thumbs = card.nearest.map((near) =>
        element("figure", {}, element("img", { src: near.thumb, alt: "" }), element("figcaption", { title: near.name }, near.name)),
      );
      rows.push(element("div", { class: "nearest" }, ...thumbs));
    }
    if (pick) rows.push(this.numbers(pick));
    // Collapsed, because a name such as "nine_07.wav" would reveal the class.
    rows.push(element("details", { class: "file" }, element("summary", {}, "File name"), element("div", { class: "filename" }, card.name)));
    this.parts.reasons.replaceChildren(...rows);
  }

  // The numbers that the selection method computed, collapsed.
  numbers(pick) {
    const rows = [
      ["Pick", `${pick.position} of ${pick.of} in round ${pick.round}`],
      ["Strategy", pick.strategy_title],
    ];
    if (pick.outer_before !== null && pick.outer_after !== null) rows.push(["Loss on the pool", `${pick.outer_before.toFixed(3)} → ${pick.outer_after.toFixed(3)}`]);
    if (pick.stands_for !== null) rows.push(["Represents", whole(pick.stands_for)]);
    if (typeof pick.nearest_distance === "number") rows.push(["Distance to the nearest label", pick.nearest_distance.toFixed(2)]);
    const list = element("dl", {}, ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
    return element("details", { class: "file numbers" }, element("summary", {}, "Numbers"), list);
  }

  empty(title, text, action, onClick) {
    const { empty } = this.parts;
    empty.querySelector("h2").textContent = title;
    empty.querySelector("p").textContent = text;
    const button = empty.querySelector("button");
    button.hidden = !action;
    button.textContent = action || "";
    button.onclick = onClick;
    this.view("empty");
  }

  notify(text, onShow) {
    const { message } = this.parts;
    message.hidden = !text;
    message.querySelector(".words").textContent = text || "";
    const show = message.querySelector(".show");
    show.hidden = !onShow;
    show.onclick = onShow || null;
    message.querySelector(".dismiss").onclick = () => (message.hidden = true);
  }
}
