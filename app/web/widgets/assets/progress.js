// Progress: the batch as dashes, the next step, and the labeled share of the project.

function percent(share) {
  const value = share * 100;
  return `${value < 1 && value > 0 ? "< 1" : Math.round(value)} %`;
}

function noun(kind, n) {
  return kind === "audio" ? (n === 1 ? "clip" : "clips") : n === 1 ? "picture" : "pictures";
}

function whole(n) {
  return n.toLocaleString("en-US");
}

function drawProgress(parts, state, kind) {
  const { batch, counts } = state;
  const n = batch.total;
  const dashes = [];
  for (let i = 0; n <= 40 && i < n; i += 1) {
    dashes.push(element("span", { "data-done": i < batch.done ? "yes" : i === batch.done ? "now" : "no" }));
  }
  if (n > 40) dashes.push(element("progress", { max: n, value: batch.done, "aria-label": "Batch" }));
  parts.dashes.replaceChildren(...dashes);
  parts.dashes.setAttribute("aria-label", n ? `${batch.done} of ${n} labeled in this batch` : "No batch");
  const at = Math.min(batch.done + 1, n);
  const words = n && batch.done < n ? [element("strong", {}, `${at} of ${n}`), ` in this batch · ${batch.then}`] : [batch.then];
  parts.batch.replaceChildren(...words);
  const pace = state.pace_seconds ? ` · ${state.pace_seconds.toFixed(1)} s per ${noun(kind, 1)}` : "";
  parts.project.textContent = `${whole(counts.labeled)} of ${whole(counts.total)} labeled${pace}`;
}
