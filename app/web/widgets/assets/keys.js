// Keys of the labeling card and the grid: the key of a keyboard event, and the sheet that lists all keys.

// Ctrl, Cmd or Alt, but not AltGr: on many layouts "[" and "]" need it.
function hasModifier(e) {
  return (e.ctrlKey || e.metaKey || e.altKey) && !(e.getModifierState && e.getModifierState("AltGraph"));
}

function isUndo(e) {
  return (e.ctrlKey || e.metaKey) && !e.altKey && !e.shiftKey && e.key.toLowerCase() === "z";
}

// The key of an event in the form in which classes and commands are bound: letters in lower case. `isBound(key)` returns
// whether a class or command has it. An unbound key of the digit row counts as its digit, because digits need Shift on
// French and Czech keyboards.
function pressedKey(e, isBound) {
  const key = e.key.length === 1 ? e.key.toLowerCase() : e.key;
  const digit = /^Digit([0-9])$/.exec(e.code || "");
  if (digit && !e.shiftKey && !hasModifier(e) && key.length === 1 && !isBound(key)) return digit[1];
  return key;
}

const ALSO = { undo: ["Backspace", "Ctrl+Z"] }; // additional keys of a command

// The command that a key is bound to; `commands`: [name, key, cap, words].
function boundCommand(commands, key) {
  return commands.find(([name, own]) => own === key || (ALSO[name] || []).includes(key));
}

function capsOf(name, cap) {
  return [cap, ...(ALSO[name] || [])];
}

// The class that a key is bound to. Shift with a letter is not a class key.
function classOfKey(e, key, classes) {
  return e.shiftKey && /^[a-z]$/.test(key) ? null : classes.find((entry) => entry.key === key) || null;
}

// `rows`: [caps, words]. The sheet opens with the focus on its title, because a focus on the button below would scroll it.
function fillKeySheet(sheet, rows) {
  const cap = (text) => element("kbd", {}, text);
  sheet.querySelector("dl").replaceChildren(
    ...rows.flatMap(([caps, words]) => [element("dt", {}, ...[caps].flat().flatMap((text, i) => (i ? [" ", cap(text)] : [cap(text)]))), element("dd", {}, words)]),
  );
}

function openSheet(sheet) {
  sheet.showModal();
  sheet.querySelector("h2").focus({ preventScroll: true });
  sheet.scrollTop = 0;
}
