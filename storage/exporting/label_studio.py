"""Exports for Label Studio: tasks, the labeling interface that fits them, and instructions for loading both.

Every result has the id of the label event it was made from, so that a later import of Label Studio's JSON export
recognizes labels that were changed there. Annotations name no person, because Label Studio refuses the whole file if it
does not know one of the names. The names are in the data of each task.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

LOCAL_FILES = "/data/local-files/?d="
README = """# Labels for Label Studio

1. Start Label Studio with access to local files. The document root is the folder that contains `{folder}`:

       LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true \\
       LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT=/path/to/parent label-studio start

2. Create a project. Under Settings > Labeling Interface > Code, paste `label_config.xml`. Under Settings > Cloud
   Storage, add a Local Files source with the absolute path of `{folder}/media` and save it without syncing.
3. Import `tasks.json`.

To bring the labels back, export the project as JSON and import that file into Winnow. Labels that were changed in Label
Studio become labels of the person who changed them; all others stay as they are. Media files are found by their hashes.

{about}
"""


def media_address(prefix: str, path: str) -> str:
    """The address of an exported file in Label Studio."""
    return prefix + (quote(path) if prefix.startswith(LOCAL_FILES) else path)


def local_files_prefix(target: Path) -> str:
    """The prefix of addresses of files served from the folder that contains the export."""
    name = target.stem if target.suffix == ".zip" else target.name
    return f"{LOCAL_FILES}{quote(name)}/"


def readme(target: Path, prefix: str, media: bool) -> str:
    """Instructions for loading the tasks into Label Studio."""
    folder = target.stem if target.suffix == ".zip" else target.name
    if not media:
        about = "The media files were not exported: the tasks name them, and Label Studio cannot show them."
    elif prefix == local_files_prefix(target):
        about = f"The tasks address the files as `{prefix}media/…`; another address is set with --media-prefix."
    else:
        about = f"The tasks address the files as `{prefix}media/…`, as set with --media-prefix."
    return README.format(folder=folder, about=about)


class TasksWriter:
    """Tasks: an annotation for each label, a prediction for a pseudo-label, and the exported row under `meta`."""

    def __init__(self, path: Path, kind: str, prefix: str = "") -> None:
        self._kind, self._prefix = kind, prefix
        self._file = open(path, "x", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed on exit)
        self._n_tasks = 0

    def __enter__(self) -> TasksWriter:
        self._file.write("[")
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._file.write("\n]\n" if self._n_tasks else "]\n")
        self._file.close()

    def write(self, values: dict[str, Any]) -> None:
        self._n_tasks += 1
        labels = [values, *values["other_labels"]] if values["source"] != "pseudo" else values["other_labels"]
        address = media_address(self._prefix, values["path"]) if values["path"] else values["name"]
        people = sorted({label["annotator"] for label in labels if label["annotator"]})
        task = {
            "id": self._n_tasks,
            "data": {
                self._kind: address,
                "sha256": values["sha256"],
                "name": values["name"],
                "annotators": ", ".join(people),
            },
            "annotations": [self._annotation(label) for label in labels],
            "predictions": [self._prediction(values)] if values["source"] == "pseudo" else [],
            "meta": {"winnow": values},
        }
        self._file.write(("," if self._n_tasks > 1 else "") + "\n" + json.dumps(task, ensure_ascii=False))

    def _choice(self, label: str, event: str | None = None) -> dict[str, Any]:
        choice = {"from_name": "label", "to_name": self._kind, "type": "choices", "value": {"choices": [label]}}
        return {"id": event, **choice} if event else choice

    def _annotation(self, label: dict[str, Any]) -> dict[str, Any]:
        return {
            "created_at": label["at"],
            "lead_time": label["seconds"],
            "was_cancelled": False,
            "result": [self._choice(label["label"], label["event"])],
        }

    def _prediction(self, values: dict[str, Any]) -> dict[str, Any]:
        return {
            "model_version": f"round {values['round']}",
            "score": values["confidence"],
            "result": [self._choice(values["label"])],
        }


def labeling_interface(kind: str, names: Sequence[str]) -> str:
    """The labeling interface that fits the tasks, for Label Studio's settings."""
    media = "Audio" if kind == "audio" else "Image"
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in names)
    return (
        f'<View>\n  <{media} name="{kind}" value="${kind}"/>\n  <Choices name="label" toName="{kind}" '
        f'choice="single">\n{choices}\n  </Choices>\n</View>\n'
    )
