// Mounting of the labeling card and the grid: listeners that are removed with the widget, and one widget per element, which
// is kept across Streamlit's reruns.

// The listeners and timers of a widget. `end` removes all of them.
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

// Mount `new Widget(element, data, trigger)`. A rerun whose data has the same `Widget.identity(data)` keeps the widget and
// calls its `update(data)`; other data replaces the widget. Returns the function that closes it with its element.
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
