// The save state in the header. On every screen, it also sends events that an earlier page could not send.

// Pictures and sounds that were requested before the session existed were refused. Request them again.
function loadRefusedMedia() {
  const ours = [...document.querySelectorAll("img, audio")].filter((one) => new URL(one.src || "/", location).pathname.startsWith("/api/"));
  for (const one of ours) {
    if (one.tagName === "IMG") {
      if (one.complete && !one.naturalWidth) one.src = one.src;
    } else if (one.error) one.load();
  }
}

export default function (component) {
  const { parentElement, data, setTriggerValue } = component;
  const badge = parentElement.querySelector(".saved");
  const { api, outbox } = winnowClient(data);
  api.openSession().then(loadRefusedMedia, () => {});

  const show = () => {
    const n = outbox ? outbox.waiting.length : 0;
    const lost = n > 0 && outbox.connection !== "ok";
    badge.dataset.state = n === 0 ? "saved" : lost ? "lost" : "sending";
    const why = !lost ? "" : outbox.connection === "signed-out" ? " — sign in again" : " — reconnecting";
    badge.querySelector(".words").textContent = n === 0 ? "All saved" : `${n} unsaved${why}`;
  };
  const renew = () => setTriggerValue("renew", Date.now());
  show();
  const detach = remount(parentElement, () => {
    if (!outbox) return;
    outbox.removeEventListener("changed", show);
    outbox.removeEventListener("signed-out", renew);
  });
  if (outbox) {
    outbox.addEventListener("changed", show);
    outbox.addEventListener("signed-out", renew);
  }
  return detach;
}
