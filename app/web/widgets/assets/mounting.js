// What the labeling card and the grid share as mounted widgets: listeners that end with the widget, and one widget for each
// element, kept over Streamlit's reruns.

// Listeners and other work of a widget; `end` stops all of it.
class Listeners {
  constructor() {
    this.stops = [];
    this.on = (target, name, handler, options) => {
      target.addEventListener(name, handler, options);
      this.atEnd(() => target.removeEventListener(name, handler, options));
    };
  }

  atEnd(stop) {
    this.stops.push(stop);
  }

  every(milliseconds, work) {
    const timer = setInterval(() => document.visibilityState === "visible" && work(), milliseconds);
    this.atEnd(() => clearInterval(timer));
  }

  end() {
    this.stops.forEach((stop) => stop());
  }
}

const mountedWidgets = new WeakMap();

// Mount `new Widget(element, data, trigger)`. A rerun with data of the same `Widget.identity(data)` keeps the widget and
// calls its `update(data)`; other data replaces it. Returns the function that closes it with its element.
function mountWidget(Widget, { parentElement, data, setTriggerValue }) {
  winnowClient(data);
  const mounted = mountedWidgets.get(parentElement);
  const identity = JSON.stringify(Widget.identity(data));
  if (mounted && mounted.identity === identity) {
    mounted.widget.trigger = setTriggerValue;
    mounted.widget.update(data);
  } else {
    if (mounted) mounted.widget.close();
    mountedWidgets.set(parentElement, { identity, widget: new Widget(parentElement, data, setTriggerValue) });
  }
  return () => {
    const last = mountedWidgets.get(parentElement);
    if (last) last.widget.close();
    mountedWidgets.delete(parentElement);
  };
}
