"""The model of a round as a folder that works without Winnow.

    model.onnx          the network with its preprocessing and calibration (`core.learning.onnx_graph`)
    model.safetensors   the weights as the round stored them
    preprocess.json     every step from the bytes to the network (`core.media.preprocessing`)
    model.json          round, settings, seed, data hashes, label counts, accuracy, classes, file hashes
    predict.py          predictions with numpy, onnxruntime, soundfile, soxr and Pillow
    README.md           the model card; confusion.png where there are test items

A round with an encoder has other files (`app.jobs.encoder_export`).

Runs in the process of the command line or of a job: it loads torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from app.jobs.encoder_export import describe_encoder, encoder_model_files
from app.rounds.model import RoundModel, open_round_model
from app.views.figures.charts import wilson
from core.errors import InvalidInput, NotFound
from core.learning.file_predictor import BLOCK
from core.learning.onnx_graph import build_onnx
from core.media.preprocessing import describe_preprocessing
from core.types import UNLABELED, Progress, Report, ignore
from core.version import VERSION
from storage.database.store import Store
from storage.exporting.models.card import model_card
from storage.exporting.models.confusion_picture import confusion_picture
from storage.exporting.models.folder import as_json, write_model_folder
from storage.exporting.target import check_target
from storage.projects import roles
from storage.projects.projects import get_project
from storage.rounds.log import RoundLog

HOW = (
    "The exported network predicted each test item from the file alone, without augmented views and without label "
    "propagation. Test items are not used in training. The calibration temperature does not change the predicted class."
)
STAGE = "model"


def export_model(
    store: Store, project_id: int, target: Path, wanted: str | None = None, *, overwrite: bool = False,
    report: Report = ignore,
) -> dict[str, Any]:  # fmt: skip
    """Write the model of a round to the folder or zip file `target`. Returns a description of the export."""
    roles.check(store, project_id, "edit")
    target = check_target(target, overwrite)
    found = open_round_model(store, project_id, wanted, _as_stage(report))
    confusion = measure_confusion(found, report)
    about = describe_model(store, found, confusion)
    report(Progress(STAGE, 2, 3, "writing"))
    make_files = model_files if found.of.context.encoder is None else encoder_model_files
    files = make_files(found, about, confusion)
    write_model_folder(target, files, about, overwrite)
    report(Progress(STAGE, 3, 3))
    return {
        "target": str(target),
        "round": found.row.number,
        "name": found.name,
        "files": sorted([*files, "model.json"]),
        "test_accuracy": about["test_accuracy"],
    }


def model_files(found: RoundModel, about: dict[str, Any], confusion: np.ndarray | None) -> dict[str, bytes]:
    """name -> content for every file except model.json."""
    settings = found.input_settings
    metadata = {
        "project": about["project"]["name"],
        "round": str(found.row.number),
        "seed": str(about["seed"]),
        "classes": as_json({"names": [one["name"] for one in about["classes"]]}).decode(),
    }
    script = importlib.util.find_spec("core.learning.standalone_predict")
    assert script is not None and script.origin is not None
    described = describe_preprocessing(settings.kind, settings.media, settings.mean.tolist(), settings.scale.tolist())
    log = RoundLog(found.of.store, found.row.project_id)
    files = {
        "model.onnx": build_onnx(found.model, settings, metadata).SerializeToString(deterministic=True),
        "model.safetensors": log.file(found.row.id, "model").read_bytes(),
        "preprocess.json": as_json(described),
        "predict.py": Path(script.origin).read_bytes(),
        "README.md": model_card(about).encode(),
    }
    if confusion is not None:
        files["confusion.png"] = confusion_picture(confusion.tolist(), found.snapshot.class_names)
    return files


def measure_confusion(found: RoundModel, report: Report = ignore) -> np.ndarray | None:
    """(C, C) counts of the exported network on the test items; rows are labels. None without readable test items."""
    snapshot = found.snapshot
    rows = np.flatnonzero(snapshot.held_out_labels != UNLABELED)
    if not len(rows):
        return None
    predictor, read = found.predictor, found.of.context.read
    counts = np.zeros((snapshot.n_classes, snapshot.n_classes), np.int64)
    for start in range(0, len(rows), BLOCK):
        report(Progress(STAGE, 1, 3, f"measured {start:,} of {len(rows):,} test items"))
        items, truth = [], []
        for row in rows[start : start + BLOCK].tolist():
            with contextlib.suppress(InvalidInput, NotFound, OSError):
                items.append(predictor.decode(read(snapshot.hashes[row])))
                truth.append(snapshot.held_out_labels[row])
        if items:
            np.add.at(counts, (np.array(truth), predictor.predict(items).probabilities.argmax(1)), 1)
    return counts if counts.any() else None


def describe_model(store: Store, found: RoundModel, confusion: np.ndarray | None) -> dict[str, Any]:
    """The content of model.json, without the hashes of the files."""
    row, model, project = found.row, found.model, get_project(store, found.row.project_id)
    artifact = RoundLog(store, row.project_id).artifact(row.id, "model")
    encoder = found.of.context.encoder
    return {
        "winnow": VERSION,
        "project": {"name": project.name, "kind": project.kind, "guidelines": project.guidelines},
        "round": {
            "number": row.number,
            "id": row.id,
            "name": found.name,
            "finished_at": row.finished_at.isoformat() if row.finished_at is not None else None,
            "strategy": row.strategy,
            "label_sequence": row.label_sequence,
            "class_event": row.class_event,
            "replay_of": row.replay_of,
        },
        "settings": dataclasses.asdict(found.config),
        "seed": found.config.seed,
        "network": {
            **dataclasses.asdict(model.shape),
            "width": model.network.width,
            "n_parameters": sum(one.numel() for one in model.network.parameters()),
            "sha256": artifact.sha256,
        },
        "encoder": describe_encoder(encoder) if encoder is not None else None,  # None: learned from scratch
        "classes": [{"id": one.id, "output": output, "name": one.name} for output, one in enumerate(found.classes)],
        "calibration": {
            "method": "temperature scaling",
            "temperature": model.temperature,
            "fitted": row.metrics.get("calibration"),  # how it was fitted; None in rounds of older versions
        },
        "data": describe_data(found),
        "test_accuracy": _accuracy(confusion),
        "confusion": confusion.tolist() if confusion is not None else None,
        "round_metrics": {name: value for name, value in row.metrics.items() if name.startswith("accuracy")},
    }


def describe_data(found: RoundModel) -> dict[str, Any]:
    """Counts and hashes of the items that the round was trained on and measured on."""
    snapshot, names = found.snapshot, found.snapshot.class_names
    labeled = np.flatnonzero(snapshot.labeled)
    test = np.flatnonzero(snapshot.held_out_labels != UNLABELED)
    counts = np.bincount(snapshot.labels[labeled], minlength=len(names))
    return {
        "n_items": len(snapshot.hashes),
        "n_labeled": len(labeled),
        "n_unlabeled": int((~snapshot.labeled & ~snapshot.held_out).sum()),
        "n_test": len(test),
        "labels": {name: int(count) for name, count in zip(names, counts, strict=True)},
        "how_hashed": "SHA-256 of sorted lines: the item's SHA-256; labeled and test items with a tab and the class",
        "pool_sha256": _digest(snapshot.hashes),
        "labeled_sha256": _digest(f"{snapshot.hashes[row]}\t{names[snapshot.labels[row]]}" for row in labeled),
        "test_sha256": _digest(f"{snapshot.hashes[row]}\t{names[snapshot.held_out_labels[row]]}" for row in test),
    }


def _digest(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in sorted(lines):
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def _accuracy(confusion: np.ndarray | None) -> dict[str, Any] | None:
    if confusion is None:
        return None
    n, correct = int(confusion.sum()), int(np.trace(confusion))
    return {
        "value": correct / n,
        "correct": correct,
        "n": n,
        "interval": list(wilson(correct, n)),
        "interval_method": "95 % Wilson score interval",
        "how": HOW,
    }


def _as_stage(report: Report) -> Report:
    return lambda progress: report(Progress(STAGE, 0, 3, progress.stage))
