"""Small contents stored together: found by their hash, compared when read, and safe if any process is killed."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.media import pack_index
from storage.media import packs as media_packs
from storage.media.folder import MediaChanged, MediaFolder, MediaMissing
from storage.media.pack_index import RECORD
from storage.media.packs import Altered, Packs, PackWriter

ROOT = Path(__file__).resolve().parents[3]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def packed(root: Path, contents: list[bytes]) -> list[str]:
    """Append all of them to one pack; their hashes."""
    writer = PackWriter(root)
    for data in contents:
        writer.append(digest(data), data)
    writer.close()
    return [digest(data) for data in contents]


def only(root: Path, suffix: str) -> Path:
    [path] = (root / "packs").glob(f"*{suffix}")
    return path


@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=40), st.booleans()), max_size=60),
    pack_bytes=st.integers(40, 400),
    unsorted=st.integers(1, 12),
)
def test_the_contents_that_two_writers_pack_in_any_order_are_read_back(steps, pack_bytes, unsorted):
    """The reference is a dictionary. New packs are begun and tables are merged every few contents."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(media_packs, "PACK_BYTES", pack_bytes),
        mock.patch.object(pack_index, "UNSORTED", unsorted),
    ):
        root = Path(folder)
        writers, early = (PackWriter(root), PackWriter(root)), Packs(root)
        expected: dict[str, bytes] = {}
        for which, data, look in steps:
            writers[which].append(digest(data), data)
            writers[which].flush()
            expected[digest(data)] = data
            if look:
                assert early.read(digest(data)) == data
        for writer in writers:
            writer.close()
        for packs in (early, Packs(root)):
            assert {sha256: packs.read(sha256) for sha256 in expected} == expected
            assert sorted(packs.index.hashes()) == sorted(expected)
            assert not packs.has(digest(b"never packed, for it is longer than forty bytes"))
        assert not list((root / "packs").glob("*.part"))


def test_half_a_record_at_the_end_of_a_log_does_not_count_and_the_rest_does(tmp_path):
    hashes = packed(tmp_path, [b"one", b"two", b"three"])
    log = only(tmp_path, ".log")
    os.truncate(log, 3 * RECORD.size - 1)
    media = MediaFolder(tmp_path)
    assert [media.read(sha256) for sha256 in hashes[:2]] == [b"one", b"two"]
    assert not media.has(hashes[2])
    with pytest.raises(MediaMissing):
        media.read(hashes[2])


def test_records_of_zeros_or_nonsense_lead_to_no_bytes(tmp_path):
    """The possible contents of a log after a power failure: lengths and positions beyond the pack, and unknown
    hashes."""
    hashes = packed(tmp_path, [b"one", b"two"])
    with open(only(tmp_path, ".log"), "ab") as log:
        log.write(bytes(RECORD.size))
        log.write(RECORD.pack(bytes.fromhex(digest(b"x")), 0, 2**32 - 1, 2**63))
        log.write(RECORD.pack(bytes.fromhex(digest(b"y")), 9, 1, 0))
    media = MediaFolder(tmp_path)
    assert [media.read(sha256) for sha256 in hashes] == [b"one", b"two"]
    for data in (b"x", b"y"):
        with pytest.raises(MediaChanged):
            media.read(digest(data))


@pytest.mark.parametrize("harm", ["removed", "cut", "foreign", "empty"])
def test_the_table_is_made_again_from_the_logs(tmp_path, monkeypatch, harm):
    monkeypatch.setattr(pack_index, "UNSORTED", 8)
    contents = [b"%d" % k for k in range(100)]
    hashes = packed(tmp_path, contents)
    table = tmp_path / "packs" / "table"
    assert table.stat().st_size > 80 * RECORD.size
    if harm == "removed":
        table.unlink()
    elif harm == "cut":
        os.truncate(table, table.stat().st_size - 1)
    else:
        table.write_bytes(b"" if harm == "empty" else b"something else entirely, and longer than a header")
    packs = Packs(tmp_path)
    assert [packs.read(sha256) for sha256 in hashes] == contents
    assert table.stat().st_size > 80 * RECORD.size


def test_an_earlier_reader_finds_what_was_packed_and_repaired_since(tmp_path):
    media = MediaFolder(tmp_path)
    assert not media.has(digest(b"one"))
    [sha256] = packed(tmp_path, [b"one"])
    assert media.read(sha256) == b"one" and media.locate(sha256) is None
    pack = only(tmp_path, ".pack")
    pack.write_bytes(b"onf")
    with pytest.raises(MediaChanged):
        media.check(sha256)
    packed(tmp_path, [b"one"])
    assert media.read(sha256) == b"one"
    pack.unlink()
    assert media.read(sha256) == b"one"


def test_a_missing_pack_means_missing_bytes_and_an_altered_pack_changed_bytes(tmp_path):
    hashes = packed(tmp_path, [b"one", b"two", b"three"])
    media = MediaFolder(tmp_path)
    pack = only(tmp_path, ".pack")
    os.truncate(pack, 4)
    assert media.read(hashes[0]) == b"one"
    for sha256 in hashes[1:]:
        with pytest.raises(MediaChanged):
            media.check(sha256)
    with pytest.raises(Altered):
        media.packs.read(hashes[1])
    pack.unlink()
    for sha256 in hashes:
        with pytest.raises(MediaMissing, match="No such file"):
            media.check(sha256)


def test_a_single_file_takes_precedence_over_a_pack(tmp_path):
    [sha256] = packed(tmp_path, [b"one"])
    media = MediaFolder(tmp_path)
    assert media.put(b"one") == sha256
    only(tmp_path, ".pack").unlink()
    assert media.locate(sha256) == media.path(sha256) and media.read(sha256) == b"one"


def test_what_is_packed_is_on_disk_after_sync(tmp_path, monkeypatch):
    """Few contents: pack, log and folder are synced one by one. Many: the whole file system is."""
    hashes = packed(tmp_path, [b"one", b"two"])
    synced: list[str] = []
    monkeypatch.setattr("storage.media.folder.sync_path", lambda path: synced.append(path.name))
    media = MediaFolder(tmp_path)
    single = media.put(b"three")
    synced.clear()
    media.sync([*hashes, single])
    pack, log = only(tmp_path, ".pack").name, only(tmp_path, ".log").name
    assert set(synced) == {pack, log, "packs", single, single[:2], tmp_path.name}


WRITING = """
import hashlib, itertools, sys
from pathlib import Path
from storage.media import pack_index, packs as media_packs
from storage.media.packs import PackWriter
media_packs.PACK_BYTES, pack_index.UNSORTED = 2_000, 10
writer = PackWriter(Path(sys.argv[1]))
for number in itertools.islice(itertools.count(int(sys.argv[2])), int(sys.argv[3])):
    data = b"content %d" % number * (1 + number % 7)
    writer.append(hashlib.sha256(data).hexdigest(), data)
    if number % 3 == 0:
        writer.flush()
        print(number, flush=True)
writer.close()
"""


def writing(root: Path, first: int, n_contents: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITING, str(root), str(first), str(n_contents)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def content(number: int) -> bytes:
    return b"content %d" % number * (1 + number % 7)


@pytest.mark.parametrize("after", [1, 40])
def test_kill_9_while_packing_loses_nothing_that_was_announced(tmp_path, after):
    """A real process is killed: the contents that it flushed are readable, and another writer continues."""
    process = writing(tmp_path, 0, 1_000_000)
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(after)]
    process.send_signal(signal.SIGKILL)
    said += [int(line) for line in process.stdout.read().splitlines() if line.strip()]
    process.stdout.close()
    process.wait()
    packs = Packs(tmp_path)
    for number in range(said[-1] + 1):
        assert packs.read(digest(content(number))) == content(number)
    [sha256] = packed(tmp_path, [b"another"])
    assert packs.read(sha256) == b"another"


def test_two_processes_pack_at_once_and_a_third_finds_everything(tmp_path):
    """Each has its own packs; tables that both write replace each other, and no record is lost."""
    packs = Packs(tmp_path)
    processes = [writing(tmp_path, first, 600) for first in (0, 300)]
    for process in processes:
        assert process.stdout is not None
        for line in process.stdout:
            assert packs.read(digest(content(int(line)))) == content(int(line))
        process.stdout.close()
        assert process.wait() == 0
    assert all(Packs(tmp_path).read(digest(content(number))) == content(number) for number in range(900))
    assert sorted(packs.index.hashes()) == sorted(digest(content(number)) for number in range(900))
