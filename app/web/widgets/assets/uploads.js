// Files are sent one by one to our own route. The screen is notified when all of them are on the server's disk.

async function droppedFiles(transfer) {
  const entries = Array.from(transfer.items || [], (item) => item.webkitGetAsEntry && item.webkitGetAsEntry()).filter(Boolean);
  if (!entries.length) return Array.from(transfer.files, (file) => ({ file, name: file.name }));
  const found = [];
  const walk = async (entry, path) => {
    if (entry.isFile) {
      const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
      found.push({ file, name: path + entry.name });
      return;
    }
    const reader = entry.createReader();
    for (;;) {
      const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (!some.length) break;
      for (const one of some) await walk(one, `${path}${entry.name}/`);
    }
  };
  for (const entry of entries) await walk(entry, "");
  return found;
}

// Send one request of an upload. With the numbers in its headers, the server detects that it has lost a part of the archive.
async function request(api, method, path, headers, body) {
  const response = await fetch(path, { method, headers: { "X-Winnow-Ticket": api.ticket, ...headers }, body, credentials: "same-origin" });
  if (!response.ok) throw new ApiError(response.status, (await response.json().catch(() => ({}))).error || `The server returned status ${response.status}.`);
}

export default function (component) {
  const { parentElement, data, setStateValue } = component;
  const { api } = winnowClient(data);
  const drop = parentElement.querySelector(".drop");
  const bar = parentElement.querySelector(".bar");
  const state = parentElement.querySelector(".state");

  const take = async (chosen) => {
    const files = chosen.filter((one) => one.name);
    if (!files.length || drop.dataset.busy) return;
    drop.dataset.busy = "yes";
    const upload = makeUuid().replaceAll("-", "");
    const alone = files.length === 1 && files[0].name.toLowerCase().endsWith(".zip");
    bar.hidden = false;
    try {
      for (let i = 0; i < files.length; i += 1) {
        state.textContent = `${(i + 1).toLocaleString("en")} of ${files.length.toLocaleString("en")} files`;
        bar.value = i / files.length;
        const headers = { "X-Winnow-Name": encodeURIComponent(files[i].name), "X-Winnow-Alone": alone ? "yes" : "no", "X-Winnow-Position": String(i) };
        await request(api, "PUT", `/api/uploads/${upload}`, headers, files[i].file);
      }
      await request(api, "POST", `/api/uploads/${upload}/done`, { "X-Winnow-Files": String(files.length) }, "{}");
      bar.value = 1;
      state.textContent = `${files.length.toLocaleString("en")} ${files.length === 1 ? "file" : "files"} uploaded. Nothing is imported yet.`;
      setStateValue("upload", upload);
    } catch (error) {
      state.textContent = error.status === 0 || !error.status ? "The connection was lost. Choose the files again." : error.message;
      bar.hidden = true;
    } finally {
      delete drop.dataset.busy;
    }
  };
  const picked = (event) => {
    take(Array.from(event.target.files, (file) => ({ file, name: file.webkitRelativePath || file.name })));
    event.target.value = "";
  };
  const over = (event) => {
    event.preventDefault();
    drop.dataset.over = "yes";
  };
  const away = () => delete drop.dataset.over;
  const dropped = async (event) => {
    event.preventDefault();
    away();
    take(await droppedFiles(event.dataTransfer));
  };
  const inputs = parentElement.querySelectorAll("input");
  inputs.forEach((input) => input.addEventListener("change", picked));
  drop.addEventListener("dragover", over);
  drop.addEventListener("dragleave", away);
  drop.addEventListener("drop", dropped);
  drop.dataset.ready = "yes"; // for tests: files chosen from now on are uploaded
  return remount(parentElement, () => {
    inputs.forEach((input) => input.removeEventListener("change", picked));
    drop.removeEventListener("dragover", over);
    drop.removeEventListener("dragleave", away);
    drop.removeEventListener("drop", dropped);
  });
}
