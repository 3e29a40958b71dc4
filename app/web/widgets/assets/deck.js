// The next and previous cards. Media of the next cards are fetched and decoded in advance, so that the next card is shown
// in the frame after a key press, even if the server is slow.

const DEPTH = 20; // cards fetched in advance, enough for a fast annotator while the server is slow for a second
const KEEP_BEHIND = 20;
const LIVE_MS = 900;

// Each page load has its own name for leases. If the previous page of this tab is closed (its lock is free; in a duplicated
// tab it is still held), its name is sent too, so that a reload continues with the same cards.
async function holderNames() {
  const holder = makeUuid();
  let previous = null;
  try {
    previous = sessionStorage.getItem("winnow.holder");
    sessionStorage.setItem("winnow.holder", holder);
    if (!navigator.locks) return { holder, previous: null };
    const hold = (name) =>
      new Promise((decided) => {
        navigator.locks.request(`winnow.holder.${name}`, { ifAvailable: true }, (lock) => {
          decided(Boolean(lock));
          return lock ? new Promise(() => {}) : undefined; // held until the page is closed
        });
      });
    hold(holder);
    if (previous && !(await hold(previous))) previous = null;
  } catch (error) {
    previous = null;
  }
  return { holder, previous };
}

function pageHolder() {
  window.winnowHolder = window.winnowHolder || holderNames();
  return window.winnowHolder;
}

class Deck extends EventTarget {
  constructor(api, outbox, projectId) {
    super();
    this.api = api;
    this.outbox = outbox;
    this.path = `/api/projects/${projectId}`;
    this.ahead = [];
    this.behind = [];
    this.current = null;
    this.handled = new Set(); // items labeled or skipped here and not undone; the server may not have the event yet
    this.state = null;
    this.problem = "";
    this.preparing = 0;
    this.filling = false;
    this.again = false;
    this.closed = false;
  }

  async open() {
    const names = await pageHolder();
    this.holder = names.holder;
    this.previous = names.previous;
    await this.fill();
  }

  needs() {
    return this.ahead.length < DEPTH - 4;
  }

  async fill({ release = false } = {}) {
    if (this.filling) {
      this.again = this.again || release;
      return;
    }
    if (this.closed) return;
    this.filling = true;
    const asked = DEPTH + 1 + this.outbox.waiting.length;
    try {
      const answer = await this.api.post(`${this.path}/cards`, {
        holder: this.holder,
        previous: this.previous,
        limit: Math.min(asked, 60),
        release,
      });
      this.previous = null;
      this.problem = "";
      if (release) this.ahead = [];
      this.take(answer.cards);
      this.learn(answer.state);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.problem = error.status === 0 || error.status >= 500 ? "lost" : error.message;
      if (!this.closed) setTimeout(() => this.fill(), error.status === 0 ? 1000 : 3000);
    } finally {
      this.filling = false;
    }
    if (this.closed) return;
    this.advance();
    this.dispatchEvent(new Event("changed"));
    if (this.again) {
      this.again = false;
      this.fill({ release: true });
    }
  }

  take(cards) {
    const known = new Set(this.ahead.map((card) => card.item_id));
    if (this.current) known.add(this.current.item_id);
    for (const card of cards) {
      if (known.has(card.item_id) || this.handled.has(card.item_id)) continue;
      this.ahead.push(card);
      this.prepare(card);
    }
  }

  learn(state) {
    const before = this.state;
    this.state = state;
    this.dispatchEvent(new Event("state"));
    if (before && before.batch.round_id !== state.batch.round_id) this.fill({ release: true }); // a new batch comes first
    this.follow(before, state.live);
  }

  // Live predictions: fetch the suggestions of the next cards again. The current card is not changed. The event "followed"
  // is dispatched when the next cards have the new suggestions.
  async follow(before, live) {
    if (!live || !before || !before.live || live.revision === before.live.revision) return;
    const items = this.ahead.map((card) => card.item_id);
    try {
      const answer = items.length ? await this.api.post(`${this.path}/cards`, { items }) : { cards: [] };
      const fresh = new Map(answer.cards.map((card) => [card.item_id, card.suggestion]));
      for (const card of this.ahead) if (fresh.has(card.item_id)) card.suggestion = fresh.get(card.item_id);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error; // the older suggestions stay
    }
    if (!this.closed) this.dispatchEvent(new CustomEvent("followed", { detail: live }));
  }

  // Call this after a label was stored: its effect on the predictions is available within a second.
  followSoon() {
    clearTimeout(this.soon);
    if (this.state && this.state.live && !this.closed) this.soon = setTimeout(() => this.refreshState(), LIVE_MS);
  }

  prepare(card) {
    if (card.ready) return card.ready;
    this.preparing += 1;
    const pictures = this.api.media(card.media.picture, (r) => r.blob()).then(async (blob) => {
      const image = new Image();
      image.src = URL.createObjectURL(blob);
      image.draggable = false;
      await image.decode();
      card.image = image;
    });
    for (const near of card.nearest) new Image().src = near.thumb; // into the browser's cache
    const waits = [pictures];
    if (card.media.sound) {
      waits.push(this.api.media(card.media.sound, (r) => r.json()).then((sound) => (card.sound = sound)));
      waits.push(
        this.api.media(card.media.file, (r) => r.blob()).then((blob) => {
          card.audio = new Audio(URL.createObjectURL(blob));
          card.audio.preload = "auto";
        }),
      );
    }
    card.ready = Promise.all(waits).then(
      () => (card.failure = ""),
      (error) => {
        card.failure = error.status === 0 ? "" : error.message || "The media cannot be shown.";
        card.ready = null; // tried again when shown
        if (error.status === 0 && !this.closed) setTimeout(() => this.prepare(card).then(() => this.redraw(card)), 1000);
      },
    );
    card.ready.then(() => {
      this.preparing -= 1;
      this.redraw(card);
      this.dispatchEvent(new Event("prepared"));
    });
    return card.ready || Promise.resolve();
  }

  redraw(card) {
    if (card === this.current) this.dispatchEvent(new Event("media"));
  }

  // Show the next card, if none is shown.
  advance() {
    if (this.current || !this.ahead.length) return;
    this.current = this.ahead.shift();
    this.shown();
  }

  next() {
    if (this.current) this.behind.push(this.current);
    while (this.behind.length > KEEP_BEHIND && this.behind[this.behind.length - KEEP_BEHIND - 1].image) {
      this.unload(this.behind[this.behind.length - KEEP_BEHIND - 1]);
    }
    this.current = this.ahead.shift() || null;
    this.shown();
    if (this.needs()) this.fill();
  }

  // Put the current card back in front of the next cards and show `card` instead.
  show(card) {
    if (this.current && this.current !== card) this.ahead.unshift(this.current);
    this.ahead = this.ahead.filter((other) => other.item_id !== card.item_id);
    this.behind = this.behind.filter((other) => other.item_id !== card.item_id);
    this.current = card;
    if (!card.image) this.prepare(card);
    this.shown();
  }

  shown() {
    if (this.current && !this.current.ready) this.prepare(this.current);
    this.dispatchEvent(new Event("card"));
  }

  // The card of an item, from memory or from the server.
  async find(itemId) {
    const all = [this.current, ...this.behind, ...this.ahead];
    const known = all.find((card) => card && card.item_id === itemId && card.media);
    if (known) return known;
    const answer = await this.api.post(`${this.path}/cards`, { items: [itemId] });
    const card = answer.cards[0];
    if (card) this.prepare(card);
    return card || null;
  }

  unload(card) {
    if (card.image) URL.revokeObjectURL(card.image.src);
    if (card.audio) URL.revokeObjectURL(card.audio.src);
    card.image = card.audio = card.ready = null;
  }

  async refreshState() {
    try {
      this.learn(await this.api.post(`${this.path}/state`, {}));
      if (this.problem) this.problem = "";
      if (!this.current) this.fill();
    } catch (error) {
      // The next poll tries again.
    }
  }

  leave() {
    this.api.post(`${this.path}/release`, { holder: this.holder }, { keepalive: true }).catch(() => {});
  }

  close() {
    this.closed = true;
    clearTimeout(this.soon);
    [this.current, ...this.ahead, ...this.behind].forEach((card) => card && this.unload(card));
  }
}
