"""Progress of rows that a cache computes block by block."""

from __future__ import annotations

from core.rows import BlockProgress
from core.types import Progress


def test_blocks_count_under_one_total_and_never_fall():
    seen: list[Progress] = []
    progress = BlockProgress("prepare", 100, seen.append)
    for block in range(2):
        for row in (0, 32):
            progress.within_block(row, "decoding a block")
        progress.follow(50 * (block + 1), 100)
    assert [(one.done, one.total) for one in seen] == [(n, 100) for n in (0, 32, 50, 50, 82, 100)]
