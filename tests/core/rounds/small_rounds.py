"""Small pools of pictures and clips, and the round that runs on them."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from core.config import MediaConfig, RoundConfig, SimilarityConfig
from core.rounds.context import StageContext
from core.rounds.pipeline import run_round
from core.rows import MemoryRowCache
from core.runtime import Runtime
from core.types import UNLABELED, PoolSnapshot, RoundResult
from tests.app.worker_processes import quick_config
from tests.core.media.samples import tone, wav
from tests.round_pools import picture

CLASSES = ("bars", "blobs", "checks")


def pool(labels: dict[int, int], n: int = 40, held_out: int = 0, **changes) -> tuple[PoolSnapshot, dict[str, bytes]]:
    """`labels`: row -> class position. The first `held_out` rows are test items with their labels."""
    data = [picture(row % 3, row) for row in range(n)]
    hashes = tuple(hashlib.sha256(one).hexdigest() for one in data)
    given = np.full(n, UNLABELED)
    for row, label in labels.items():
        given[row] = label
    out = np.arange(n) < held_out
    values = {
        "kind": "image",
        "class_names": CLASSES,
        "item_ids": np.arange(n) * 10 + 5,
        "hashes": hashes,
        "labels": given,
        "held_out": out,
        "held_out_labels": np.where(out, np.arange(n) % 3, UNLABELED),
        "eligible": (given == UNLABELED) & ~out,
    }
    return PoolSnapshot(**(values | changes)), dict(zip(hashes, data, strict=True))


def run(snapshot: PoolSnapshot, media: dict[str, bytes], config: RoundConfig | None = None, **more) -> RoundResult:
    return run_round(
        snapshot,
        config or quick_config(),
        read=media.__getitem__,
        cache=more.pop("cache", None) or MemoryRowCache(),
        runtime=Runtime.create(0, "cpu"),
        **more,
    )


MANY = {row: row % 3 for row in range(9, 18)}


def clips(held_out_truth: int = 0) -> tuple[PoolSnapshot, dict[str, bytes]]:
    """24 tones of three pitches, one of each labeled, the last three test items; their labels may be shifted."""
    rng = np.random.default_rng(0)
    data = [wav(tone(300 * (1 + 2 * (row % 3)) * rng.uniform(0.97, 1.03), seconds=0.2)) for row in range(24)]
    rows, out = np.arange(24), np.arange(24) >= 21
    taken, _ = pool({0: 0, 1: 1, 2: 2}, n=24, kind="audio")
    taken = dataclasses.replace(
        taken,
        hashes=tuple(hashlib.sha256(one).hexdigest() for one in data),
        held_out=out,
        held_out_labels=np.where(out, (rows + held_out_truth) % 3, UNLABELED),
        eligible=(rows > 2) & ~out,
    )
    return taken, {hashlib.sha256(one).hexdigest(): one for one in data}


def context_of(snapshot: PoolSnapshot, media: dict[str, bytes], config: RoundConfig, **more) -> StageContext:
    return StageContext(
        snapshot=snapshot,
        config=config,
        read=media.__getitem__,
        cache=MemoryRowCache(),
        runtime=Runtime.create(0, "cpu"),
        **more,
    )


def similar_clips(**selection) -> RoundConfig:
    """Settings of a round on clips whose proxy is the similarity graph."""
    return dataclasses.replace(
        quick_config(**({"proxy": "similarity"} | selection)),
        media=MediaConfig(seconds=0.25),
        similarity=SimilarityConfig(neighbors=3),
    )
