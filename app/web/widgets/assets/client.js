// Shared by all widgets: requests to our own routes, and the outbox, which sends every label at least once.

const RETRY_MS = [400, 800, 1500, 3000, 5000];
const TIMEOUT_MS = 20000;
const CHUNK = 200;
const KEEPALIVE_LIMIT = 15000; // characters; up to four bytes each

function makeUuid() {
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // randomUUID needs https beyond loopback
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined)); // strings become text, never markup
  return made;
}

class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status; // HTTP status; 0 without a response
  }
}

// Requests have the tab's own ticket, so two tabs of one browser can work under two names.
class Api {
  constructor(ticket) {
    this.ticket = ticket;
    this.cookieFor = null;
  }

  async post(path, body, { keepalive = false } = {}) {
    const stop = new AbortController();
    const timer = setTimeout(() => stop.abort(), TIMEOUT_MS);
    const text = JSON.stringify(body);
    let response;
    try {
      response = await fetch(path, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Winnow-Ticket": this.ticket },
        body: text,
        credentials: "same-origin",
        cache: "no-store",
        signal: stop.signal,
        keepalive: keepalive && text.length < KEEPALIVE_LIMIT, // browsers refuse more than 64 KiB in flight
      });
    } catch (error) {
      throw new ApiError(0, "No connection.");
    } finally {
      clearTimeout(timer);
    }
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) throw new ApiError(response.status, answer.error || `The server returned status ${response.status}.`);
    return answer;
  }

  // Set the session cookie, which <img> and <audio> need, once per ticket.
  async openSession() {
    if (this.cookieFor !== this.ticket) {
      const ticket = this.ticket;
      await this.post("/api/session", {});
      this.cookieFor = ticket;
    }
  }

  async media(path, read) {
    await this.openSession();
    let response = await fetch(path, { credentials: "same-origin" }).catch(() => null);
    if (response && response.status === 401) {
      this.cookieFor = null;
      await this.openSession();
      response = await fetch(path, { credentials: "same-origin" }).catch(() => null);
    }
    if (!response) throw new ApiError(0, "No connection.");
    if (!response.ok) throw new ApiError(response.status, (await response.json().catch(() => ({}))).error || "The media cannot be shown.");
    return read(response);
  }
}

// Every event is first written to localStorage under its own key, so tabs cannot overwrite each other's events. After a
// browser crash, the next page finds the unsent events and sends them. The server applies each event id only once.
class Outbox extends EventTarget {
  constructor(api, projectId, annotatorId) {
    super();
    this.api = api;
    this.path = `/api/projects/${projectId}/labels`;
    this.prefix = `winnow.event.${projectId}.${annotatorId}.`;
    this.waiting = [];
    this.connection = "ok"; // ok | lost | signed-out
    this.failures = 0;
    this.sending = false;
    this.timer = null;
    this.counter = 0;
    this.adopt();
    this.kick = () => this.send();
    window.addEventListener("online", this.kick);
    document.addEventListener("visibilitychange", this.kick);
    window.addEventListener("beforeunload", (e) => {
      if (this.waiting.length) e.preventDefault();
    });
  }

  adopt() {
    const known = new Set(this.waiting.map((event) => event.uuid));
    try {
      for (let i = 0; i < localStorage.length; i += 1) {
        const key = localStorage.key(i);
        if (!key || !key.startsWith(this.prefix)) continue;
        const event = JSON.parse(localStorage.getItem(key) || "null");
        if (event && event.uuid && !known.has(event.uuid)) this.waiting.push(event);
      }
    } catch (error) {
      // Without storage, events are still sent, but unsent events are lost in a crash.
    }
    this.waiting.sort((a, b) => (a.at < b.at ? -1 : a.at > b.at ? 1 : (a.order || 0) - (b.order || 0)));
    if (this.waiting.length) queueMicrotask(() => this.send());
  }

  add(event) {
    const full = { uuid: makeUuid(), at: new Date().toISOString(), order: (this.counter += 1), ...event };
    try {
      localStorage.setItem(this.prefix + full.uuid, JSON.stringify(full));
    } catch (error) {
      // As above: the queue in memory is still sent.
    }
    this.waiting.push(full);
    this.changed();
    this.send();
    return full;
  }

  forget(event) {
    try {
      localStorage.removeItem(this.prefix + event.uuid);
    } catch (error) {
      // Without storage there is nothing to remove.
    }
  }

  async send() {
    if (this.sending || !this.waiting.length) return;
    clearTimeout(this.timer);
    this.sending = true;
    const batch = this.waiting.slice(0, CHUNK);
    try {
      const answer = await this.api.post(this.path, { events: batch }, { keepalive: true });
      this.settle(batch, answer);
    } catch (error) {
      this.failed(batch, error);
    } finally {
      this.sending = false;
    }
    this.changed();
    if (this.waiting.length && this.connection === "ok") this.send();
  }

  settle(batch, answer) {
    const verdicts = new Map(answer.applied.map((verdict) => [verdict.uuid, verdict]));
    const answered = batch.filter((event) => verdicts.has(event.uuid));
    this.waiting = this.waiting.filter((event) => !verdicts.has(event.uuid));
    this.failures = 0;
    this.connection = answered.length ? "ok" : "lost";
    for (const event of answered) {
      this.forget(event);
      const verdict = verdicts.get(event.uuid);
      if (!verdict.accepted) this.dispatchEvent(new CustomEvent("refused", { detail: { event, reason: verdict.reason } }));
    }
    if (answer.state) this.dispatchEvent(new CustomEvent("state", { detail: answer.state }));
  }

  failed(batch, error) {
    if (error.status >= 400 && error.status < 500 && ![401, 408, 421, 429].includes(error.status)) {
      const ids = new Set(batch.map((event) => event.uuid));
      this.waiting = this.waiting.filter((event) => !ids.has(event.uuid)); // the server will never accept them
      for (const event of batch) {
        this.forget(event);
        this.dispatchEvent(new CustomEvent("refused", { detail: { event, reason: error.message } }));
      }
      return;
    }
    this.connection = error.status === 401 ? "signed-out" : "lost";
    const wait = RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)];
    this.failures += 1;
    this.timer = setTimeout(this.kick, wait);
    if (error.status === 401) this.dispatchEvent(new Event("signed-out"));
  }

  changed() {
    this.dispatchEvent(new Event("changed"));
  }
}

// One client per page, created by the first widget. It is kept across reruns and screens.
function winnowClient(data) {
  if (!window.winnowClient) window.winnowClient = { api: new Api(data.ticket), outboxes: new Map() };
  const client = window.winnowClient;
  client.api.ticket = data.ticket;
  const name = `${data.project_id}.${data.annotator_id}`;
  if (data.project_id && !client.outboxes.has(name)) {
    client.outboxes.set(name, new Outbox(client.api, data.project_id, data.annotator_id));
  }
  const outbox = client.outboxes.get(name) || null;
  if (outbox && outbox.connection === "signed-out") outbox.send(); // there may be a new ticket
  return { api: client.api, outbox };
}

// Streamlit calls a widget's function again on every change of data without calling its clean-up function. The previous
// clean-up must run first; otherwise handlers would accumulate and one key press would count twice.
const cleanUps = new WeakMap();

function remount(parentElement, cleanUp) {
  const previous = cleanUps.get(parentElement);
  if (previous) previous();
  const once = () => {
    if (cleanUps.get(parentElement) === once) cleanUps.delete(parentElement);
    cleanUp();
  };
  cleanUps.set(parentElement, once);
  return once;
}

// The keys that a control without text input handles itself. A control with text input handles all keys.
const CONTROL_KEYS = { range: /^(Arrow|Home|End|Page)/, checkbox: /^ $/ };

function usesKey(target, key) {
  if (!(target instanceof Element)) return false;
  const own = target.matches("input") && CONTROL_KEYS[target.type];
  return own ? own.test(key) : target.matches("input, textarea, select, [contenteditable=''], [contenteditable='true']");
}

// Whether another element handles a key: a field, a dialog, or a list outside of `root`.
function typingSomewhere(event, root) {
  const path = event.composedPath();
  if (path.some((node) => usesKey(node, event.key))) return true;
  let active = document.activeElement;
  while (active && active.shadowRoot && active.shadowRoot.activeElement) active = active.shadowRoot.activeElement;
  const foreign = (node) => node instanceof Element && node.matches("[role='dialog'], [role='listbox']") && !root.contains(node);
  return usesKey(active, event.key) || path.some(foreign);
}
