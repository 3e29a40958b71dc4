// The actions on the selected items or on all items found, other than labeling.

const ACTIONS = [
  ["skip", "Skip", "S", true], // name, words, key, only for selected items
  ["flag", "Set or remove the flag", "F", true],
  ["queue", "Send to the front of the queue", "", false],
  ["test", "Use as test items…", "", false],
  ["pool", "Return to the pool…", "", false],
  ["export", "Export…", "", false],
  ["delete", "Delete…", "", false],
];

class GridActions {
  constructor(root, grid) {
    this.grid = grid;
    this.menu = root.querySelector(".menu");
    this.sheet = root.querySelector("dialog.confirm");
    const one = (selector) => this.sheet.querySelector(selector);
    this.parts = { title: one("h2"), words: one(".words"), fields: one(".fields"), trouble: one(".trouble"), button: one(".do"), target: this.menu.querySelector(".target") };
    this.buttons = ACTIONS.map(([name, words, cap]) => element("button", { type: "button", "data-act": name, onclick: () => this.run(name) }, words, cap ? element("kbd", {}, cap) : null));
    this.menu.querySelector(".list").append(...this.buttons);
    this.menu.onkeydown = (e) => {
      if (e.key !== "Escape" || !this.menu.open) return;
      e.stopPropagation();
      this.menu.open = false;
      this.menu.querySelector("summary").focus();
    };
    one(".cancel").onclick = () => this.sheet.close();
  }

  showTarget() {
    const { selection, total } = this.grid;
    const n = selection.chosen.size;
    this.parts.target.textContent = n ? `With ${whole(n)} selected` : `With all ${whole(total)} found`;
    this.buttons.forEach((button, i) => (button.disabled = n ? false : ACTIONS[i][3] || !total));
  }

  get count() {
    return this.grid.selection.chosen.size || this.grid.total;
  }

  // The items of an action: the selected ones or, without a selection, the query.
  target() {
    const chosen = [...this.grid.selection.chosen];
    return chosen.length ? { items: chosen } : { query: this.grid.body() };
  }

  run(name) {
    this.menu.open = false;
    if (name === "skip" || name === "flag") return this.grid.mark(name, this.grid.chosenTiles());
    if (name === "queue") return this.post({ action: "queue", ...this.target() });
    if (name === "test") return this.ask("Use as test items", `${this.items()} will be used for evaluation only. Labels of test items train no later round.`, "Use as test items", () => ({ action: "test" }));
    if (name === "pool") return this.ask("Return to the pool", `${this.items()} can be labeled and used for training again. A model cannot be measured on items that it was trained on.`, "Return to the pool", () => ({ action: "pool" }));
    if (name === "export") return this.askExport();
    return this.askDelete();
  }

  items() {
    return `${whole(this.count)} ${this.count === 1 ? "item" : "items"}`;
  }

  askExport() {
    const format = element("select", { "aria-label": "Format" }, ...[["csv", "CSV"], ["jsonl", "JSON Lines"], ["parquet", "Parquet"]].map(([value, words]) => element("option", { value }, words)));
    const tests = element("input", { type: "checkbox" });
    const words = `One row for each item (${whole(this.count)}), with label, annotator, flag and notes. Items without a label are included.`;
    this.ask("Export", words, "Create export", () => ({ action: "export", format: format.value, test_labels: tests.checked }), [
      element("label", {}, "Format ", format),
      element("label", {}, tests, " Include labels of test items"),
    ]);
  }

  async askDelete() {
    const target = this.target();
    const plan = await this.post({ action: "plan-delete", ...target }, { quiet: true });
    if (!plan) return;
    const name = element("input", { type: "text", autocomplete: "off", "aria-label": "Name of the project" });
    this.ask("Delete for good", plan.message, "Delete", () => ({ action: "delete", confirm: name.value }), [element("label", {}, `To confirm, type the name of the project: ${plan.confirm} `, name)], target);
  }

  ask(title, words, button, action, fields = [], target = this.target()) {
    this.parts.title.textContent = title;
    this.parts.words.textContent = words;
    this.parts.fields.replaceChildren(...fields);
    this.parts.trouble.textContent = "";
    this.parts.button.textContent = button;
    this.parts.button.onclick = async () => {
      this.parts.button.disabled = true;
      const done = await this.post({ ...action(), ...target }, { trouble: this.parts.trouble });
      this.parts.button.disabled = false;
      if (done) this.sheet.close();
    };
    openSheet(this.sheet);
  }

  // The button of the message: open the result, or undo.
  offer(answer) {
    if (answer.go) return { words: "Open Export", go: () => this.grid.trigger("go", answer.go) };
    return answer.undo ? { words: "Undo", go: () => this.grid.undo() } : null;
  }

  async post(body, { quiet = false, trouble = null } = {}) {
    try {
      const answer = await this.grid.api.post(`${this.grid.path}/items/act`, body);
      if (quiet) return answer;
      if (answer.undo) this.grid.bulks.push({ undo: answer.undo });
      this.grid.selection.set([]);
      this.grid.notify(answer.message, this.offer(answer));
      this.grid.load(true);
      return answer;
    } catch (error) {
      const words = error.status === 0 ? "No connection. Nothing was changed." : error.message;
      if (trouble) trouble.textContent = words;
      else this.grid.notify(words);
      return null;
    }
  }
}
