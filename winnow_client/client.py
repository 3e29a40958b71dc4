"""A client of the API: projects and their items, labels, rounds, predictions and exports.

client = Client("http://127.0.0.1:8501", token)
digits = client.project("Spoken digits")
for one in digits.next_to_label(limit=10):
    digits.label(one.item.id, "three")
"""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from winnow_client.connection import Connection
from winnow_client.errors import ApiError, NotFinished
from winnow_client.records import (
    Applied,
    Item,
    Job,
    LabelClass,
    LeasedItem,
    Member,
    Prediction,
    Project,
    Round,
    record,
)

PAGE = 1_000
EVENTS_AT_ONCE = 5_000
FILES_AT_ONCE = 200
ITEMS_AT_ONCE = 10_000
Seen = TypeVar("Seen")


class Client:
    """A connection to one server with one token. Use it as a context manager, or call `close`."""

    def __init__(self, address: str, token: str, *, timeout_seconds: float = 60.0) -> None:
        self._connection = Connection(address, token, timeout_seconds)

    def me(self) -> dict[str, Any]:
        """The name and role of the token, and the annotator of its labels."""
        return dict(self._connection.get("/me"))

    def projects(self) -> list[Project]:
        return [record(Project, row) for row in self._connection.get("/projects")]

    def project(self, name_or_id: str | int) -> ProjectClient:
        found = [row for row in self.projects() if name_or_id in (row.id, row.name)]
        if not found:
            raise ApiError(404, "not_found", f"There is no project {name_or_id!r} that this token can see.")
        return ProjectClient(self._connection, found[0])

    def create_project(self, name: str, kind: str, classes: Iterable[str] = (), **settings: Any) -> ProjectClient:
        """Create a project. `kind` is audio or image; `settings` are fields such as batch_size=20."""
        body = {"name": name, "kind": kind, "classes": list(classes), "settings": settings}
        return ProjectClient(self._connection, record(Project, self._connection.post("/projects", body)))

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ProjectClient:
    """One project: its classes, items, labels, rounds, predictions and exports."""

    def __init__(self, connection: Connection, project: Project) -> None:
        self.project = project
        self._connection = connection
        self._path = f"/projects/{project.id}"

    # Members

    def members(self) -> list[Member]:
        """The members with their roles, owners first. Empty for a project that is open to everyone."""
        return [record(Member, row) for row in self._connection.get(f"{self._path}/members")]

    def set_role(self, person: str, role: str | None) -> None:
        """Give a person a role (viewer, annotator, editor, owner). None removes the person from the members."""
        if role is not None:
            self._connection.put(f"{self._path}/members", {"person": person, "role": role})
        for member in self.members() if role is None else ():
            if member.name == person:
                self._connection.delete(f"{self._path}/members/{member.annotator_id}")

    # Classes and items

    def classes(self) -> list[LabelClass]:
        """The active classes, in their order."""
        return [record(LabelClass, row) for row in self._connection.get(f"{self._path}/classes")]

    def add_class(self, name: str) -> LabelClass:
        return record(LabelClass, self._connection.post(f"{self._path}/classes", {"name": name}))

    def items(self, state: str = "all", **conditions: Any) -> Iterator[Item]:
        """Yield all items with a state (all, waiting, labeled, …) that meet the conditions, such as search="dog"."""
        for row in self._pages("items", "items", state=state, **conditions):
            yield record(Item, row)

    def items_frame(self, state: str = "all", **conditions: Any) -> pd.DataFrame:
        """`items` as a DataFrame with the item id as index."""
        rows = list(self._pages("items", "items", state=state, **conditions))
        columns = list(Item.__dataclass_fields__)
        return pd.DataFrame(rows, columns=columns).set_index("id")

    def media(self, item_id: int) -> bytes:
        """The bytes of an item as imported."""
        return self._connection.get_bytes(f"{self._path}/items/{item_id}/media")

    def history(self, item_id: int) -> list[dict[str, Any]]:
        """All events of an item, oldest first."""
        return list(self._connection.get(f"{self._path}/items/{item_id}/history"))

    def add_files(
        self,
        paths: Iterable[Path | str],
        *,
        labels: str = "ignore",
        window_seconds: float | None = None,
        hop_seconds: float | None = None,
        wait_seconds: float = 600,
    ) -> Job:
        """Upload files and wait until they are imported. Files that are in the project are not added again.

        With `window_seconds`, longer recordings are cut into items of this length, one every `hop_seconds`.
        """
        given = {"labels": labels, "window_seconds": window_seconds, "hop_seconds": hop_seconds}
        data = {name: value for name, value in given.items() if value is not None}
        with ExitStack() as opened:  # files are sent as they are read: a recording may be larger than the memory
            streams = [opened.enter_context(Path(path).open("rb")) for path in paths]
            files = [("files", (Path(stream.name).name, stream)) for stream in streams]
            job = self._connection.post(f"{self._path}/items", files=files, data=data)
        return self.wait_for_job(record(Job, job), wait_seconds)

    def add_embeddings(
        self, hashes: Iterable[str], vectors: Any, name: str, *, wait_seconds: float = 3_600
    ) -> dict[str, Any]:
        """Add vectors (n, d) of your own network as an encoder with this name. `hashes` are the `sha256` of the items.

        Returns the number of items with a vector, and the names of the first items without one.
        """
        rows = pd.DataFrame({"sha256": list(hashes), "embedding": [[float(x) for x in row] for row in vectors]})
        buffer = io.BytesIO()
        rows.to_parquet(buffer)
        files = [("file", ("embeddings.parquet", buffer.getvalue()))]
        job = self._connection.post(f"{self._path}/embeddings", files=files, data={"name": name})
        return dict(self.wait_for_job(record(Job, job), wait_seconds).result or {})

    # Labels

    def next_to_label(self, limit: int = 1, *, holder: str = "client") -> list[LeasedItem]:
        """Lease the next items to `holder`. Other holders do not get them until the lease ends."""
        rows = self._connection.post(f"{self._path}/next", {"limit": limit, "holder": holder}, repeatable=True)["items"]
        return [
            LeasedItem(
                item=record(Item, row["item"]),
                predictions=tuple(record(Prediction, one) for one in row["predictions"]),
            )
            for row in rows
        ]

    def release(self, *, holder: str = "client") -> None:
        """Release leased items."""
        self._connection.post(f"{self._path}/release", {"holder": holder}, repeatable=True)

    def label(self, item_id: int, name: str, **more: Any) -> Applied:
        """Label an item with a class name. `more` are fields of the event, such as seconds=1.5 or note="quiet"."""
        event = {"item_id": item_id, "kind": "label", "class_id": self._class_ids()[name], **more}
        return self.apply([event])[0]

    def apply(self, events: Iterable[Mapping[str, Any]]) -> list[Applied]:
        """Store events. Events without a uuid get one, so that a repeated request stores nothing twice."""
        wanted = [{"uuid": str(uuid.uuid4()), **event} for event in events]
        answers: list[Applied] = []
        for start in range(0, len(wanted), EVENTS_AT_ONCE):
            body = {"events": wanted[start : start + EVENTS_AT_ONCE]}
            answer = self._connection.post(f"{self._path}/labels", body, repeatable=True)
            answers += [record(Applied, one) for one in answer["applied"]]
        return answers

    def label_frame(self, frame: pd.DataFrame, column: str = "label") -> pd.DataFrame:
        """Label the items in the index of `frame` with the class names in `column`. Rows without a name are skipped.

        Returns `accepted` and `reason` for each of the other rows.
        """
        given = frame[column].dropna()
        known = self._class_ids()
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ApiError(404, "not_found", f"The project has no classes {unknown}. Nothing was labeled.")
        pairs = [(int(item_id), known[name]) for item_id, name in given.items()]
        events = [{"item_id": item_id, "kind": "label", "class_id": class_id} for item_id, class_id in pairs]
        applied = self.apply(events)
        rows = {"accepted": [one.accepted for one in applied], "reason": [one.reason for one in applied]}
        return pd.DataFrame(rows, index=pd.Index([item_id for item_id, _ in pairs], name="id"))

    # Rounds and predictions

    def rounds(self) -> list[Round]:
        """The rounds of the project, newest first."""
        return [record(Round, row) for row in self._connection.get(f"{self._path}/rounds")]

    def start_round(self) -> Round:
        """Request the next round. If a round waits or runs already, it is returned instead."""
        return record(Round, self._connection.post(f"{self._path}/rounds", repeatable=True))

    def wait_for_round(
        self, round_: Round, seconds: float = 3_600, *, report: Callable[[Mapping[str, Any]], None] = lambda _: None
    ) -> Round:
        """Wait until a round has finished and return it. `report` is called with its progress.

        Raises NotFinished if the round fails, is cancelled, or does not end in time.
        """

        def look() -> tuple[Round, bool]:
            row = self._connection.get(f"{self._path}/rounds/{round_.id}")
            report(row["progress"])
            found = record(Round, row)
            return found, found.ended

        ended = _follow(look, seconds, f"Round {round_.number}")
        if ended.status != "finished":
            raise NotFinished(f"Round {ended.number} was {ended.status}. {ended.error}".strip())
        return ended

    def cancel_round(self, round_: Round) -> Round:
        return record(Round, self._connection.post(f"{self._path}/rounds/{round_.id}/cancel", repeatable=True))

    def picks_frame(self, round_: Round) -> pd.DataFrame:
        """The picks of a round in order, with a column for each part of their reasons."""
        rows = self._connection.get(f"{self._path}/rounds/{round_.id}/picks")
        flat = [{k: v for k, v in row.items() if k != "reason"} | row["reason"] for row in rows]
        return pd.DataFrame(flat, columns=None if flat else ["order", "item_id", "name"]).set_index("order")

    def predictions_frame(self, round_: Round | None = None) -> pd.DataFrame:
        """The probabilities of a round (default: the newest finished one): one row per item, one column per class."""
        path = "predictions" if round_ is None else f"rounds/{round_.id}/predictions"
        names = [row.name for row in self.classes()]
        rows = {row["item_id"]: row["probabilities"] for row in self._pages(path, "predictions")}
        return pd.DataFrame.from_dict(rows, orient="index", columns=names).rename_axis("id")

    def predict_files(
        self, paths: Iterable[Path | str], *, round: int | str | None = None, wait_seconds: float = 3_600
    ) -> pd.DataFrame:
        """Predict files with the model of a round (default: the newest), `FILES_AT_ONCE` per request.

        Returns one row per file, in order, with a column for each class (`p_` and its name). Unreadable files have an
        `error`.
        """
        given, parts = [Path(path) for path in paths], []
        for start in range(0, len(given), FILES_AT_ONCE):
            files = [("files", (path.name, path.read_bytes())) for path in given[start : start + FILES_AT_ONCE]]
            data = {"round": "" if round is None else str(round), "all_probabilities": "true"}
            job = self._connection.post(f"{self._path}/predictions/files", files=files, data=data)
            parts += self._predicted(record(Job, job), wait_seconds)
        return _predictions_frame(parts)

    def predict_items(
        self, item_ids: Iterable[int], *, round: int | str | None = None, wait_seconds: float = 3_600
    ) -> pd.DataFrame:
        """Predict items of the project from their files, like `predict_files`. The index is the item id."""
        wanted, parts = [int(one) for one in item_ids], []
        for start in range(0, len(wanted), ITEMS_AT_ONCE):
            body = {"item_ids": wanted[start : start + ITEMS_AT_ONCE], "all_probabilities": True}
            body |= {} if round is None else {"round": str(round)}
            job = self._connection.post(f"{self._path}/predictions/items", body)
            parts += self._predicted(record(Job, job), wait_seconds)
        return _predictions_frame(parts).set_index("item_id")

    def _predicted(self, job: Job, wait_seconds: float) -> list[dict[str, Any]]:
        self.wait_for_job(job, wait_seconds)
        return list(self._pages(f"jobs/{job.id}/predictions", "predictions"))

    # Exports

    def download_model(
        self, target: Path | str, *, round: int | str | None = None, wait_seconds: float = 3_600
    ) -> Path:
        """Export the model of a round (default: the newest) and download the zip file to `target`.

        It contains model.onnx, preprocess.json and predict.py, which needs neither Winnow nor torch.
        """
        body = {} if round is None else {"round": str(round)}
        return self._download(record(Job, self._connection.post(f"{self._path}/models", body)), target, wait_seconds)

    def export(self, target: Path | str, format: str = "csv", *, wait_seconds: float = 3_600, **options: Any) -> Path:
        """Export labels and download the zip file to `target`.

        `format` is csv, jsonl, parquet, folders, label-studio, hugging-face, audacity or raven.
        """
        job = record(Job, self._connection.post(f"{self._path}/exports", {"format": format, **options}))
        return self._download(job, target, wait_seconds)

    def _download(self, job: Job, target: Path | str, wait_seconds: float) -> Path:
        self.wait_for_job(job, wait_seconds)
        Path(target).write_bytes(self._connection.get_bytes(f"{self._path}/exports/{job.id}/file"))
        return Path(target)

    def wait_for_job(self, job: Job, seconds: float) -> Job:
        """Poll a background job until it has finished. Raises NotFinished if it fails or does not end in time."""

        def look() -> tuple[Job, bool]:
            found = record(Job, self._connection.get(f"{self._path}/jobs/{job.id}"))
            return found, found.status != "running"

        ended = _follow(look, seconds, job.title)
        if ended.status != "finished":
            raise NotFinished(f"{ended.title}: {ended.status}. {ended.error}".strip())
        return ended

    def _class_ids(self) -> dict[str, int]:
        return {row.name: row.id for row in self.classes()}

    def _pages(self, path: str, rows: str, **query: Any) -> Iterator[dict[str, Any]]:
        cursor: int | None = 0
        while cursor is not None:
            page = self._connection.get(f"{self._path}/{path}", cursor=cursor, limit=PAGE, **query)
            yield from page[rows]
            cursor = page["next_cursor"]


def _predictions_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A DataFrame with one row per prediction and one column per class."""
    flat = [
        {name: value for name, value in row.items() if name != "probabilities"}
        | {f"p_{name}": value for name, value in (row["probabilities"] or {}).items()}
        for row in rows
    ]
    return pd.DataFrame(flat, columns=None if flat else ["file", "item_id", "class_name", "confidence", "error"])


def _follow(look: Callable[[], tuple[Seen, bool]], seconds: float, what: str) -> Seen:
    """Poll `look` with growing intervals until the job or round has ended."""
    started, pause = time.monotonic(), 0.2
    while True:
        seen, ended = look()
        if ended:
            return seen
        if time.monotonic() - started > seconds:
            raise NotFinished(f"{what} did not end within {seconds:,.0f} s. It continues on the server.")
        time.sleep(pause)
        pause = min(pause * 1.3, 5.0)
