// The saved state in the header. It also sends what an earlier page had not sent, on every screen.

// Pictures and sounds that were requested before there was a session were refused. They are requested once more.
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
