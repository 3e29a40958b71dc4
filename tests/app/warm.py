"""Imported by the fork server of `worker_processes`: loads the libraries of a round once, on one thread."""

from __future__ import annotations

import hashlib
import logging

import numpy as np
import torch

torch.set_num_threads(1)


def warm_up() -> None:
    """Run one tiny round, so that torch and numba are initialized before workers are forked."""
    from core.rounds.pipeline import run_round
    from core.rows import MemoryRowCache
    from core.runtime import Runtime
    from core.types import PoolSnapshot
    from tests.app.worker_processes import quick_config
    from tests.round_pools import NAMES, picture

    data = [picture(row % 3, row) for row in range(12)]
    media = {hashlib.sha256(one).hexdigest(): one for one in data}
    labels = np.where(np.arange(12) < 6, np.arange(12) % 3, -1)
    snapshot = PoolSnapshot(
        kind="image",
        class_names=NAMES,
        item_ids=np.arange(12),
        hashes=tuple(media),
        labels=labels,
        held_out=np.zeros(12, bool),
        held_out_labels=np.full(12, -1),
        eligible=labels == -1,
    )
    runtime = Runtime.create(0, "cpu")
    run_round(snapshot, quick_config(), read=media.__getitem__, cache=MemoryRowCache(), runtime=runtime)


try:
    warm_up()
except Exception:
    logging.getLogger(__name__).warning("The warm-up round failed; workers start cold.", exc_info=True)
