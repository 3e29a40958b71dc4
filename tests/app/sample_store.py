"""A store for tests of the pages: short synthetic clips and pictures, and a finished round with known predictions."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache

import numpy as np
import soundfile
from PIL import Image, ImageDraw
from sqlalchemy import insert

from core.config import RoundConfig
from core.types import PickReason, Selection
from storage.database.schema import Item
from storage.database.store import Store
from storage.labeling import projections
from storage.labeling.pool import Pool
from storage.projects.projects import ProjectRow, ProjectSettings, create_project
from storage.rounds.log import RoundLog

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
RATE = 16_000


@cache
def clip(seed: int, seconds: float = 0.64) -> bytes:
    """A voice-like sound: harmonics of a gliding tone under an envelope, with a little noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(RATE * seconds)) / RATE
    pitch = 90 + 120 * rng.random() + 40 * np.sin(2 * np.pi * (rng.random() + t * rng.uniform(0.5, 2)))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    formant = rng.uniform(400, 2600)
    sound = sum(np.sin(k * phase) * np.exp(-(((k * 150 - formant) / 900) ** 2)) for k in range(1, 28))
    envelope = np.hanning(len(t)) ** rng.uniform(0.4, 1.5)
    sound = sound * envelope + 0.01 * rng.standard_normal(len(t))
    out = io.BytesIO()
    soundfile.write(out, (0.5 * sound / np.abs(sound).max()).astype(np.float32), RATE, format="WAV")
    return out.getvalue()


@cache
def picture(seed: int, size: int = 96) -> bytes:
    """A gray picture with a few strokes."""
    rng = np.random.default_rng(seed)
    image = Image.new("L", (size, size), 12)
    pen = ImageDraw.Draw(image)
    points = [tuple(p) for p in rng.uniform(size * 0.15, size * 0.85, (5, 2))]
    pen.line(points, fill=235, width=7, joint="curve")
    pen.ellipse([size * 0.3, size * 0.3, size * (0.4 + 0.3 * rng.random()), size * 0.7], outline=200, width=5)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def add_items(store: Store, project: ProjectRow, contents: Sequence[tuple[str, bytes]]) -> list[int]:
    """Add bytes under names to the project, like an import."""
    rows = []
    for name, data in contents:
        sound = project.kind == "audio"
        rows.append(
            {
                "project_id": project.id,
                "sha256": store.media.put(data),
                "name": name,
                "media_type": "audio/wav" if sound else "image/png",
                "n_bytes": len(data),
                "seconds": 0.64 if sound else None,
                "sample_rate": RATE if sound else None,
                "channels": 1 if sound else None,
                "width": None if sound else 96,
                "height": None if sound else 96,
                "held_out": False,
                "condition": "ok",
                "condition_note": "",
                "imported_at": datetime.now(UTC),
            }
        )
        assert rows[-1]["sha256"] == hashlib.sha256(data).hexdigest()
    with store.write() as connection:
        ids = [connection.execute(insert(Item).values(row).returning(Item.id)).scalar_one() for row in rows]
        projections.start_states(connection, project.id, ids)
    return ids


def audio_project(
    store: Store, name: str = "Spoken digits", n: int = 40, *, seed: int | None = None, **settings: object
) -> ProjectRow:
    """Projects have different clips unless `seed` is given; with it, drawings for one project are reused for the
    others."""
    made = create_project(store, name, "audio", DIGITS, settings=ProjectSettings(**settings), guidelines=GUIDELINES)
    first = made.id * 1000 if seed is None else seed
    add_items(store, made, [(f"clip_{i:03d}.wav", clip(first + i)) for i in range(n)])
    return made


def image_project(
    store: Store, name: str = "Handwritten digits", n: int = 30, *, seed: int | None = None, **settings: object
) -> ProjectRow:
    made = create_project(store, name, "image", DIGITS, settings=ProjectSettings(**settings))
    first = made.id * 1000 if seed is None else seed
    add_items(store, made, [(f"digit_{i:03d}.png", picture(first + i)) for i in range(n)])
    return made


GUIDELINES = "Write down what is said.\nIf two digits are heard, take the first."


def finish_round(store: Store, project: ProjectRow, n_picks: int = 10, seed: int = 0) -> list[int]:
    """Store a finished round with predictions for every item; return the picks in order."""
    pool, log = Pool(store, project.id), RoundLog(store, project.id)
    row = log.request(RoundConfig())
    log.start(row.id)
    snapshot = pool.snapshot()
    rng = np.random.default_rng(seed)
    n, n_classes = len(snapshot.item_ids), snapshot.n_classes
    logits = 3 * rng.standard_normal((n, n_classes))
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    picks = snapshot.item_ids[snapshot.eligible][:n_picks]
    reasons = tuple(
        PickReason(
            order=i + 1,
            score=1.0 - i / 20,
            guess=int(probabilities[0].argmax()),
            outer_before=1.284 - i * 0.04,
            outer_after=1.241 - i * 0.04,
            stands_for=41 - i,
        )
        for i in range(len(picks))
    )
    log.finish(
        row.id,
        arrays={
            "item_ids": snapshot.item_ids,
            "probabilities": probabilities.astype(np.float32),
            "embeddings": rng.standard_normal((n, 8)).astype(np.float32),
        },
        selection=Selection(
            item_ids=picks, scores=np.linspace(1, 0.5, len(picks)).astype(np.float32), strategy="bico", reasons=reasons
        ),
        metrics={},
    )
    return [int(item) for item in picks]
