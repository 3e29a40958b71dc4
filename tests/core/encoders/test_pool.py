"""A pool is encoded once per item and encoder; items without features are left out and named."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from core.encoders.folders import open_encoder
from core.encoders.pool import encode_pool
from core.errors import NotFound
from core.rows import MemoryRowCache
from storage.rounds.row_cache import FolderRowCache
from tests.core.encoders import tiny

ROOT = Path(__file__).resolve().parents[3]


def wav(level: float, seconds: float = 0.1) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.full(int(8_000 * seconds), level, np.float32), 8_000, "PCM_24", format="WAV")
    return buffer.getvalue()


class Media:
    """Bytes by hash; counts reads."""

    def __init__(self, *contents: bytes) -> None:
        self.content = {hashlib.sha256(one).hexdigest(): one for one in contents}
        self.hashes = tuple(self.content)
        self.n_reads = 0

    def __call__(self, name: str) -> bytes:
        self.n_reads += 1
        if name not in self.content:
            raise NotFound(f"There is no item {name[:12]}.")
        return self.content[name]


def test_features_are_those_of_the_network_and_only_new_items_are_encoded(tmp_path):
    encoder = open_encoder(tiny.write(tmp_path / "tiny", tiny.linear()))
    media, cache = Media(wav(0.5), wav(0.25, 0.3)), MemoryRowCache()
    found = encode_pool(media.hashes, media, encoder, cache)
    sums = tiny.weights().sum(0)
    np.testing.assert_allclose(found.features(), np.stack([0.5 * sums, 0.25 * sums]), atol=1e-5)
    assert found.readable.tolist() == [True, True] and found.notes == ()
    more = Media(wav(0.5), wav(0.25, 0.3), wav(-1.0))
    again = encode_pool(more.hashes, more, encoder, cache)
    assert more.n_reads == 1
    np.testing.assert_allclose(again.features()[2], -sums, atol=1e-5)


def test_items_without_features_are_named_and_left_out(tmp_path):
    """One whose features are not numbers, one that is not audio, and one whose bytes are missing, which is retried."""
    encoder = open_encoder(tiny.write(tmp_path / "tiny", tiny.root_of_mean()))
    media, cache = Media(wav(0.25), wav(-0.25), b"not audio", wav(1.0)), MemoryRowCache()
    gone = media.content.pop(media.hashes[3])
    found = encode_pool(media.hashes, media, encoder, cache)
    assert found.readable.tolist() == [True, False, False, False]
    assert found.features()[1:].tolist() == np.zeros((3, 4)).tolist()
    (note,) = found.notes
    assert note.startswith("3 of 4 items have no features of the encoder tiny")
    assert "4 of 4 values that are not numbers" in note and "first bytes" in note
    media.content[media.hashes[3]] = gone
    again = encode_pool(media.hashes, media, encoder, cache)
    assert again.readable.tolist() == [True, False, False, True]


def test_a_replaced_encoder_of_the_same_name_does_not_read_the_features_of_the_former(tmp_path):
    media, cache = Media(wav(0.5), wav(0.25)), FolderRowCache(tmp_path / "cache" / "rows")
    before = open_encoder(tiny.write(tmp_path / "tiny", tiny.linear()))
    encode_pool(media.hashes, media, before, cache)
    after = open_encoder(tiny.write(tmp_path / "tiny", tiny.linear(), output={"pooling": "mean+max"}))
    assert encode_pool(media.hashes, media, after, cache).features().shape == (2, 8)
    assert encode_pool(media.hashes, media, before, cache).features().shape == (2, 4)


ENCODE = """
import sys, json
from pathlib import Path
from core.encoders.folders import open_encoder
from core.encoders.pool import encode_pool
from storage.rounds.row_cache import FolderRowCache
from tests.core.encoders.test_pool import Media, wav
folder, n = Path(sys.argv[1]), int(sys.argv[2])
media = Media(*(wav((1 + k) / n) for k in range(n)))
found = encode_pool(media.hashes, media, open_encoder(folder / "tiny"), FolderRowCache(folder / "cache" / "rows"))
print(json.dumps({"reads": media.n_reads, "sum": float(found.features().sum())}))
"""


def start(folder: Path, n: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ENCODE, str(folder), str(n)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, start_new_session=True)


@pytest.mark.slow
def test_a_killed_process_loses_one_block_and_two_processes_share_the_work(tmp_path):
    import json

    n = 1_500
    encoder = open_encoder(tiny.write(tmp_path / "tiny", tiny.endless(steps=3_000)))
    first = start(tmp_path, n)
    names = tmp_path / "cache" / "rows"
    while not [path for path in names.rglob("*.names") if path.stat().st_size]:
        assert first.poll() is None
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    kept = sum(path.stat().st_size for path in names.rglob("*.names")) // 16
    assert 0 < kept < n
    both = [start(tmp_path, n) for _ in range(2)]
    said = [json.loads(one.communicate()[0]) for one in both]
    assert said[0]["sum"] == said[1]["sum"]
    total = sum(one["reads"] for one in said)
    assert n - kept <= total < 2 * (n - kept)
    media = Media(*(wav((1 + k) / n) for k in range(n)))
    found = encode_pool(media.hashes, media, encoder, FolderRowCache(names))
    assert found.readable.all() and media.n_reads == 0, "every item is in the cache"
