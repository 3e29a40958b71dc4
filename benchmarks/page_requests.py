"""Whole requests of the Label, Grid and Map screens on a large pool, measured in CPU time.

`make_pool` writes a store once for several runs: items without files, one label for every tenth item, flags, skips,
notes and labels of a second annotator for one in a thousand, a finished round with probabilities (n, 10), embeddings
(n, 64), a map and ten picks. `measure` runs in a separate process, so that its peak memory is that of a page process.
Each repetition stores one label first, so every other request is the first one after a label. `warm_start` is what a
server does in the background when it starts; `cold_*` is the first request of its kind in the process, after that. For
the map, the time up to the JSON for the browser is measured.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import text

from core.config import RoundConfig
from core.types import Selection
from storage.database.bulk import insert_rows
from storage.database.schema import NOT_QUEUED, CurrentLabel, Item, ItemState, LabelEvent
from storage.database.store import Store, now
from storage.exporting.rows import ExportOptions
from storage.exporting.run import export_project
from storage.labeling.pool import ItemFilter, Pool
from storage.labeling.projections import shuffle_of
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import create_project
from storage.rounds.log import RoundLog

CLASSES, DIMENSIONS, PICKS, EVERY = 10, 64, 10, 10
CHUNK = 50_000
RARE = 1_000  # of this number of items, one is flagged, one skipped, one noted, and one has labels of two annotators
FLAGGED, SKIPPED, NOTED, SHARED = 3, 5, 7, 10  # which ones


def make_pool(home: Path, n_items: int) -> None:
    """Write a store with one project of `n_items` items into `home`, unless there is a complete one."""
    if (home / "complete").exists():
        return
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    with Store.open(home=home) as store:
        project = create_project(store, "many", "image", [f"class {k}" for k in range(CLASSES)])
        classes = [row.id for row in list_classes(store, project.id)]
        people = [annotator_named(store, name).id for name in ("Ann", "Bob")]
        for start in range(1, n_items + 1, CHUNK):
            _add_items(store, project.id, classes, people, range(start, min(start + CHUNK, n_items + 1)))
        _finish_round(store, project.id)
        with store.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("ANALYZE"))
    (home / "complete").touch()


def _add_items(store: Store, project: int, classes: list[int], people: list[int], ids: range) -> None:
    at = now()
    hashes = [hashlib.sha256(str(one).encode()).hexdigest() for one in ids]
    items = [
        (one, project, name, f"folder/picture {one}.png", "image/png", 16_044, 64, 64, one % 100 == 1,
         ("", "val")[one % 100 == 1], "ok", "", at)
        for one, name in zip(ids, hashes, strict=True)
    ]  # fmt: skip
    states = [_state(one, project, classes, name) for one, name in zip(ids, hashes, strict=True)]
    labels = [(one // EVERY, one, people[0], "label", classes[one % 7], "") for one in ids if one % EVERY == 0]
    shared = [(10**8 + one, one, people[1], "label", classes[9], "") for one in ids if one % RARE == SHARED]
    notes = [(2 * 10**8 + one, one, people[0], "note", None, "noise") for one in ids if one % RARE == NOTED]
    events = [
        (sequence, str(uuid.UUID(int=sequence)), project, item, who, kind, label, "none", 1.5, note, at, at)
        for sequence, item, who, kind, label, note in [*labels, *shared, *notes]
    ]
    current = [(item, who, project, label, sequence) for sequence, item, who, _, label, _ in [*labels, *shared]]
    with store.write() as connection:
        insert_rows(
            connection, Item,
            ("id", "project_id", "sha256", "name", "media_type", "n_bytes", "width", "height", "held_out", "split_name",
             "condition", "condition_note", "imported_at"), items,
        )  # fmt: skip
        insert_rows(
            connection, LabelEvent,
            ("sequence", "uuid", "project_id", "item_id", "annotator_id", "kind", "class_id", "suggestion", "seconds",
             "note", "at", "stored_at"), events,
        )  # fmt: skip
        insert_rows(
            connection, ItemState,
            ("item_id", "project_id", "waiting", "n_labels", "decided", "skipped", "flagged", "class_id", "sequence",
             "queue_rank", "shuffle"), states,
        )  # fmt: skip
        names = ("item_id", "annotator_id", "project_id", "class_id", "sequence")
        insert_rows(connection, CurrentLabel, names, current)


def _state(one: int, project: int, classes: list[int], sha256: str) -> tuple[Any, ...]:
    labeled, skipped = one % EVERY == 0, one % RARE == SKIPPED
    waiting = not (labeled or skipped or one % 100 == 1)
    n_labels = int(labeled) + (one % RARE == SHARED)
    label = (classes[one % 7], one // EVERY) if labeled else (None, None)
    return (
        one,
        project,
        waiting,
        n_labels,
        False,
        skipped,
        one % RARE == FLAGGED,
        *label,
        NOT_QUEUED,
        shuffle_of(sha256),
    )


def _finish_round(store: Store, project: int) -> None:
    """A finished round whose embeddings are clusters in a space of few dimensions, like those of trained networks."""
    log = RoundLog(store, project)
    row = log.request(RoundConfig())
    log.start(row.id)
    with store.read() as connection:
        ids = np.fromiter(connection.exec_driver_sql("SELECT id FROM items ORDER BY id").scalars(), np.int64)
    embeddings, probabilities = made_predictions(len(ids))
    points = (embeddings[:, :2] / 8).astype(np.float32)
    picks = ids[2 : 2 + 10 * PICKS : 10]
    selection = Selection(item_ids=picks, scores=np.ones(len(picks), np.float32), strategy="bico")
    arrays = {"item_ids": ids, "probabilities": probabilities, "embeddings": embeddings, "map": points}
    names = [row.name for row in list_classes(store, project)]
    log.finish(row.id, arrays=arrays, selection=selection, metrics={"has_model": True, "class_names": names})


def made_predictions(n: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(n, DIMENSIONS) embeddings and (n, CLASSES) probabilities of a linear classifier on them."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(CLASSES, DIMENSIONS)).astype(np.float32) * 2
    mixing = rng.normal(size=(16, DIMENSIONS)).astype(np.float32)
    embeddings = np.empty((n, DIMENSIONS), np.float32)
    probabilities = np.empty((n, CLASSES), np.float32)
    for start in range(0, n, CHUNK):
        size = min(CHUNK, n - start)
        noise = rng.normal(size=(size, 16)).astype(np.float32) @ mixing * 0.5
        block = centers[rng.integers(0, CLASSES, size)] + noise
        block += rng.normal(size=block.shape).astype(np.float32) * 0.2
        logits = block @ centers.T / 30
        exponents = np.exp(logits - logits.max(1, keepdims=True))
        embeddings[start : start + size] = block
        probabilities[start : start + size] = exponents / exponents.sum(1, keepdims=True)
    return embeddings, probabilities


def peak_mb() -> float:
    """Peak memory of this program. `ru_maxrss` is not used, because a new process inherits that of its parent."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


class Requests:
    """The routes of the page in this process, with requests of the annotator Ann."""

    def __init__(self, home: Path) -> None:
        os.environ["WINNOW_HOME"] = str(home)
        import streamlit  # noqa: F401 (part of the memory of the page process)
        from starlette.applications import Starlette

        from app.web import allocator, matrix_threads, resources, tickets
        from app.web.routes.api import api_routes

        allocator.limit_heaps()  # as the server does
        matrix_threads.limit_threads()
        self.app = Starlette(routes=api_routes())
        self.store = resources.store()
        self.project = 1
        self.annotator = annotator_named(self.store, "Ann").id
        self.pool = Pool(self.store, self.project)
        self.classes = [row.id for row in list_classes(self.store, self.project)]
        self.ticket = tickets.issue(resources.key(), self.annotator, 36_000)
        self.loop = asyncio.new_event_loop()
        self.far = self.pool.items(limit=1, offset=self.pool.counts().total // 2)[0].id

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": f"/api/projects/{self.project}/{path}", "raw_path": b"", "query_string": b"", "root_path": "",
            "headers": [(b"host", b"127.0.0.1"), (b"x-winnow-ticket", self.ticket.encode())],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        self.loop.run_until_complete(self.app(scope, receive, send))
        content = b"".join(message.get("body", b"") for message in sent[1:])
        if sent[0]["status"] != 200:
            raise RuntimeError(content.decode())
        return dict(json.loads(content))

    def label_one(self) -> None:
        """Store one label, as the card does."""
        event = {"uuid": str(uuid.uuid4()), "item_id": self.next_item, "kind": "label", "class_id": self.classes[0]}
        answer = self.ask("labels", {"events": [event | {"seconds": 1.0}]})
        if not answer["applied"][0]["accepted"]:
            raise RuntimeError(answer["applied"][0]["reason"])

    def calls(self) -> dict[str, Callable[[], Any]]:
        from app.views.figures.map import map_figure
        from app.views.learning_progress import learning_progress
        from app.views.map_layers import map_layers
        from app.views.warnings import label_warnings

        found = RoundLog(self.store, self.project).latest("finished")
        assert found is not None

        def layers() -> Any:
            return map_layers(self.store, self.project, found.id)

        def drawn() -> Any:
            made = layers()
            assert made is not None
            return map_figure(made, "Prediction", (), dark=False).to_json()

        def tiles(**query: Any) -> Callable[[], Any]:
            return lambda: self.ask("tiles", {"limit": 60} | query)

        return {
            "cards_30": lambda: self.ask("cards", {"holder": "bench", "limit": 30}),
            "label": self.label_one,
            "state": lambda: self.ask("state", {}),
            "recent": lambda: self.ask("recent", {"limit": 50}),
            "tiles_sure": tiles(order="sure"),
            "tiles_unsure": tiles(order="unsure"),
            "tiles_class": tiles(order="sure", class_id=self.classes[3]),
            "tiles_page_100": tiles(order="sure", offset=6_000),
            "browse_labeled": tiles(show="labeled", order="labeled"),
            "browse_all_newest": tiles(show="all", order="newest"),
            "browse_page_far": tiles(show="all", order="sure", after=self.far),
            "browse_label": tiles(show="all", label_id=self.classes[3], order="oldest"),
            "browse_annotator": tiles(show="all", annotator_id=self.annotator, order="oldest"),
            "browse_confidence": tiles(show="all", least=0.4, most=0.6, order="unsure"),
            "browse_flagged": tiles(show="all", marks=["flagged"]),
            "browse_skipped": tiles(show="all", marks=["skipped"]),
            "browse_noted": tiles(show="all", marks=["noted"]),
            "browse_contested": tiles(show="all", marks=["contested"]),
            "browse_unreadable": tiles(show="all", marks=["unreadable"]),
            "browse_round": tiles(show="all", round_id=found.id),
            "browse_split": tiles(show="all", split="val"),
            "browse_date": tiles(show="labeled", since="2026-01-01T00:00:00+00:00", order="labeled"),
            "browse_name_rare": tiles(show="all", search="picture 77777"),
            "browse_name_common": tiles(show="all", search="PICTURE", order="name"),
            "browse_choices": lambda: self.ask("items/choices", {}),
            "browse_like": tiles(like=self.far),
            "waiting_count": lambda: self.pool.count_items(ItemFilter(state="waiting")),
            "map_layers": layers,
            "map_layers_and_figure": drawn,
            "train_warnings": lambda: label_warnings(self.store, self.project),
            "train_learning_progress": lambda: learning_progress(self.store, self.project),
        }

    def warm_start(self) -> float:
        """CPU milliseconds of the loading that the server does in the background when it starts."""
        from app.web.warm_start import read_last_labeled

        start = time.process_time()
        read_last_labeled(self.store)
        return round(1e3 * (time.process_time() - start), 2)

    def run(self, repeats: int) -> dict[str, Any]:
        times: dict[str, list[float]] = {}
        for turn in range(repeats + 1):
            for name, call in self.calls().items():
                if turn > 3 and name.startswith(("map", "train")):
                    continue
                if name != "label":
                    self.next_item = self.pool.next_to_label(annotator=self.annotator, holder="other")[0].id
                    self.label_one()
                start = time.process_time()
                call()
                times.setdefault(name, []).append(1e3 * (time.process_time() - start))
                if name == "cards_30":
                    self.next_item = self.pool.next_to_label(annotator=self.annotator, holder="other")[0].id
        result = {name: round(statistics.median(values[1:]), 2) for name, values in times.items()}
        return result | {f"cold_{name}": round(values[0], 2) for name, values in times.items()}


def measure(home: Path, repeats: int) -> dict[str, Any]:
    """CPU milliseconds of each request and the peak memory of the process; then the export, which is a job."""
    requests = Requests(home)
    warm_start = {"warm_start": requests.warm_start()}
    result: dict[str, Any] = {"cpu_ms": requests.run(repeats) | warm_start, "peak_mb": round(peak_mb(), 1)}
    for name, options in (
        ("labels", ExportOptions(format="parquet")),
        ("pseudo", ExportOptions(format="parquet", pseudo_above=0.0)),
    ):
        target = Path(tempfile.mkdtemp(prefix="winnow-bench-")) / "export"
        start = time.process_time()
        done = export_project(requests.store, requests.project, target, options)
        result[f"export_{name}_rows"] = done.rows
        result[f"export_{name}_rows_per_cpu_second"] = round(done.rows / (time.process_time() - start))
        shutil.rmtree(target.parent)
    result["export_peak_mb"] = round(peak_mb(), 1)
    return result


def compare(folder: Path, sizes: tuple[int, int], repeats: int) -> dict[str, Any]:
    """`measure` at both sizes, and the ratio of the CPU times."""
    found: dict[int, dict[str, Any]] = {}
    for size in sizes:
        home = folder / f"pool-{size}"
        make_pool(home, size)
        command = [sys.executable, "-m", "benchmarks.page_requests", str(home), str(repeats)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[size] = json.loads(done.stdout.splitlines()[-1])
    small, large = (found[size]["cpu_ms"] for size in sizes)
    ratios = {name: round(large[name] / max(small[name], 0.01), 2) for name in small}
    return {"sizes": list(sizes), "small": found[sizes[0]], "large": found[sizes[1]], "ratio": ratios}


def table(result: dict[str, Any]) -> str:
    """The result as text: one line per request."""
    small, large = result["small"]["cpu_ms"], result["large"]["cpu_ms"]
    lines = [f"{'CPU ms':<32}{result['sizes'][0]:>12,}{result['sizes'][1]:>12,}{'ratio':>8}"]
    lines += [f"{name:<32}{small[name]:>12.1f}{large[name]:>12.1f}{result['ratio'][name]:>8.2f}" for name in small]
    return "\n".join(lines)


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))
