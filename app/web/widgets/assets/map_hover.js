// Shows the thumbnail of the point under the pointer, without a name, because file names may reveal the class.

export default function (component) {
  const { parentElement, data } = component;
  const card = document.createElement("div");
  card.className = "winnow-hover";
  card.hidden = true;
  card.setAttribute("aria-hidden", "true");
  const picture = document.createElement("img");
  picture.alt = "";
  card.append(picture);
  document.body.append(card);
  let plot = null;
  let shown = null;

  const hide = () => {
    shown = null;
    card.hidden = true;
  };
  const show = (event) => {
    const point = event.points.find((one) => one.customdata !== undefined && one.customdata !== null);
    if (!point || !event.event) return;
    const item = Number(Array.isArray(point.customdata) ? point.customdata[0] : point.customdata);
    if (!Number.isSafeInteger(item)) return;
    if (item !== shown) {
      shown = item;
      card.hidden = true; // do not show the picture of another point while this one loads
      picture.onload = () => {
        if (shown === item) card.hidden = false;
      };
      picture.src = `/api/preview/${data.project}/${item}`;
    }
    const { clientX: x, clientY: y } = event.event;
    const [width, height] = [176, 136];
    card.style.left = `${x + width + 24 > innerWidth ? x - width - 16 : x + 16}px`;
    card.style.top = `${y + height + 40 > innerHeight ? y - height - 24 : y + 32}px`;
  };
  const release = () => {
    if (!plot || !plot.removeListener) return;
    plot.removeListener("plotly_hover", show);
    plot.removeListener("plotly_unhover", hide);
    plot = null;
  };
  const attach = () => {
    const found = document.querySelector(`.st-key-${data.plot} .js-plotly-plot`);
    if (found === plot || (found && !found.on)) return; // not drawn yet
    release();
    plot = found;
    if (!plot) return;
    plot.on("plotly_hover", show);
    plot.on("plotly_unhover", hide);
  };
  attach();
  const timer = setInterval(attach, 400); // the plot is replaced when the page redraws it
  const end = () => {
    clearInterval(timer);
    release();
    card.remove();
  };
  return remount(parentElement, end);
}
