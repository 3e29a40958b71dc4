"""Imports of many small files: packed, checked, repaired, exported and moved like single files."""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import os
from collections import Counter
from pathlib import Path

import pytest

from core.errors import StoreUnusable
from core.limits import Limits
from storage.database.move import copy_files
from storage.database.store import Store
from storage.exporting.run import ExportOptions, export_project
from storage.importing.open import open_source
from storage.importing.preview import preview
from storage.importing.run import ImportOptions, locator, run_import
from storage.labeling.item_rows import ItemRow
from storage.labeling.pool import Pool
from storage.media import pack_index
from storage.media import packs as media_packs
from storage.media.checks import MediaReport, verify_items
from storage.media.folder import MediaFolder
from storage.media.packs import SMALL_BYTES, Packs, PackWriter
from storage.media.probe_pool import ProbePool
from storage.media.probe_process import DISK_FULL, MANY, Examiner
from storage.projects.projects import create_project
from tests.storage.made_media import long_picture, wav, write_files, zip_of
from tests.storage.pools import read_item

N = MANY + 6
FILES = {f"{('dog', 'cat')[k % 2]}/{k:03d}.wav": wav(k) for k in range(N)}


@pytest.fixture
def project(sqlite_store: Store, tmp_path: Path) -> int:
    """A project whose files are all in packs."""
    made = create_project(sqlite_store, "p", "audio").id
    report = run_import(sqlite_store, made, open_source(write_files(tmp_path / "in", FILES)))
    assert report.imported == N and single_files(sqlite_store) == []
    return made


def single_files(store: Store) -> list[Path]:
    return [path for path in store.media.root.glob("??/*") if path.is_file()]


def harm(store: Store, item: ItemRow) -> None:
    """Change a byte in the middle of the item's range."""
    [slot] = store.media.packs.slots(item.sha256)
    with open(store.media.packs.path(slot), "r+b") as pack:
        pack.seek(slot.offset + slot.n_bytes // 2)
        old = pack.read(1)
        pack.seek(-1, os.SEEK_CUR)
        pack.write(bytes([old[0] ^ 1]))


def conditions(store: Store, project: int) -> Counter[str]:
    return Counter(item.condition for item in Pool(store, project).items(limit=None))


@pytest.mark.parametrize("packed_in", ["folder", "zip"])
def test_every_item_of_a_large_import_reads_as_its_file(sqlite_store, tmp_path, packed_in):
    store, project = sqlite_store, create_project(sqlite_store, "p", "audio").id
    files = {**FILES, "large.wav": wav(n_samples=SMALL_BYTES)}
    source = write_files(tmp_path / "in", files) if packed_in == "folder" else zip_of(tmp_path / "in.zip", files)
    with contextlib.closing(open_source(source)) as opened:
        assert run_import(store, project, opened).imported == N + 1
    items = Pool(store, project).items(limit=None)
    assert {item.name: read_item(store, item.id) for item in items} == files
    assert [path.stat().st_size for path in single_files(store)] == [len(files["large.wav"])]
    assert list((store.media.root / "incoming").iterdir()) == []
    assert verify_items(store, project) == MediaReport(checked=N + 1)


def test_a_small_import_writes_single_files_and_no_pack(sqlite_store, tmp_path):
    project = create_project(sqlite_store, "p", "audio").id
    run_import(sqlite_store, project, open_source(write_files(tmp_path / "in", {"a.wav": wav(1), "b.wav": wav(2)})))
    assert len(single_files(sqlite_store)) == 2 and not (sqlite_store.media.root / "packs").exists()


def test_a_home_of_single_files_is_not_changed(sqlite_store, tmp_path):
    """Files of an older version are read, compared, and not packed again by the next import."""
    project = create_project(sqlite_store, "p", "audio").id
    for data in FILES.values():
        sqlite_store.media.put(data)
    run_import(sqlite_store, project, open_source(write_files(tmp_path / "in", FILES)))
    assert len(single_files(sqlite_store)) == N
    assert not list((sqlite_store.media.root / "packs").glob("*"))
    assert verify_items(sqlite_store, project) == MediaReport(checked=N)


def test_the_same_files_again_add_no_bytes(sqlite_store, project, tmp_path):
    before = sum(path.stat().st_size for path in sqlite_store.media.root.rglob("*.pack"))
    other = create_project(sqlite_store, "other", "audio").id
    for where, imported in ((project, 0), (other, N)):
        assert run_import(sqlite_store, where, open_source(tmp_path / "in")).imported == imported
    assert sum(path.stat().st_size for path in sqlite_store.media.root.rglob("*.pack")) == before
    assert single_files(sqlite_store) == []


def test_a_changed_byte_affects_one_item_and_importing_again_repairs_it(sqlite_store, project, tmp_path):
    items = Pool(sqlite_store, project).items(limit=None)
    harm(sqlite_store, items[5])
    assert verify_items(sqlite_store, project) == MediaReport(checked=N, changed=1)
    assert Pool(sqlite_store, project).item(items[5].id).condition == "changed"
    run_import(sqlite_store, project, open_source(tmp_path / "in"))
    assert conditions(sqlite_store, project) == {"ok": N}
    assert read_item(sqlite_store, items[5].id) == FILES[items[5].name]
    assert verify_items(sqlite_store, project) == MediaReport(checked=N)


def test_a_few_files_repair_what_a_pack_lost(sqlite_store, project, tmp_path):
    """A small import writes no pack: the right bytes get a single file, which takes precedence."""
    item = Pool(sqlite_store, project).items(limit=None)[7]
    harm(sqlite_store, item)
    assert verify_items(sqlite_store, project).changed == 1
    again = write_files(tmp_path / "again", {item.name: FILES[item.name]})
    run_import(sqlite_store, project, open_source(again))
    assert len(single_files(sqlite_store)) == 1
    assert verify_items(sqlite_store, project) == MediaReport(checked=N)


def test_a_cut_pack_affects_the_items_after_the_cut_and_a_removed_pack_all_its_items(sqlite_store, project, tmp_path):
    media, items = sqlite_store.media, Pool(sqlite_store, project).items(limit=None)
    slots = {item.id: media.packs.slots(item.sha256)[0] for item in items}
    pack = media.packs.path(slots[items[0].id])
    inside = [slot for slot in slots.values() if media.packs.path(slot) == pack]
    cut = sorted(inside)[len(inside) // 2].offset + 10
    os.truncate(pack, cut)
    beyond = {i for i, slot in slots.items() if media.packs.path(slot) == pack and slot.offset + slot.n_bytes > cut}
    assert verify_items(sqlite_store, project) == MediaReport(checked=N, changed=len(beyond))
    found = Pool(sqlite_store, project).items(limit=None)
    assert {item.id for item in found if item.condition == "changed"} == beyond
    pack.unlink()
    assert verify_items(sqlite_store, project) == MediaReport(checked=N, missing=len(inside))
    run_import(sqlite_store, project, open_source(tmp_path / "in"))
    assert verify_items(sqlite_store, project) == MediaReport(checked=N)


@pytest.mark.parametrize("storage", ["copy", "link"])
def test_a_manifest_of_hashes_finds_packed_bytes(sqlite_store, project, tmp_path, storage):
    export_project(sqlite_store, project, tmp_path / "out", ExportOptions(format="jsonl"))
    source = open_source(tmp_path / "out", locate=locator(sqlite_store))
    assert preview(source, kind="audio").n_problems == 0
    other = create_project(sqlite_store, "other", "audio").id
    items = Pool(sqlite_store, project).items(limit=None)
    harm(sqlite_store, items[0])
    assert "other bytes" in preview(source, kind="audio").problems[0].problem
    report = run_import(sqlite_store, other, source, ImportOptions(storage=storage))
    assert report.imported == N - 1 and "other bytes" in report.refused[0][1]
    found = Pool(sqlite_store, other).items(limit=None)
    assert {(item.sha256, item.seconds, item.n_bytes, item.link_path) for item in found} == {
        (item.sha256, item.seconds, item.n_bytes, None) for item in items[1:]
    }


def test_an_export_holds_packed_files_and_says_which_it_cannot(sqlite_store, project, tmp_path):
    items = Pool(sqlite_store, project).items(limit=None)
    harm(sqlite_store, items[3])
    export_project(sqlite_store, project, tmp_path / "out", ExportOptions(format="csv", media=True))
    exported = {path.stem: path.read_bytes() for path in (tmp_path / "out" / "media").iterdir()}
    assert exported == {item.sha256: FILES[item.name] for item in items if item != items[3]}
    assert conditions(sqlite_store, project) == {"ok": N - 1, "changed": 1}


def test_packed_contents_move_with_the_store(sqlite_store, project, tmp_path):
    """They are moved once; damaged bytes are accepted only if no item refers to them."""
    writer = PackWriter(sqlite_store.media.root)
    writer.append("0" * 64, b"left behind by a process that died")
    writer.close()
    with Store.open(home=tmp_path / "elsewhere") as target:
        assert copy_files(sqlite_store, target) == N
        assert copy_files(sqlite_store, target) == 0
        items = Pool(sqlite_store, project).items(limit=None)
        assert {item.name: target.media.read(item.sha256) for item in items} == FILES
    harm(sqlite_store, items[0])
    with (
        Store.open(home=tmp_path / "third") as target,
        pytest.raises(StoreUnusable, match=r"have changed since they were imported.*not copied"),
    ):
        copy_files(sqlite_store, target)


@pytest.mark.slow
def test_a_decoder_that_is_killed_loses_none_of_its_packed_neighbors(sqlite_store, tmp_path):
    """Replies and records are sent together, before a decoder can end the process."""
    root = write_files(tmp_path / "in", FILES | {"slow.jpg": long_picture()})
    names = [*FILES]
    names.insert(40, "slow.jpg")
    limits = Limits(decode_seconds=2.0)
    media = sqlite_store.media
    with media.incoming() as incoming, ProbePool(media.root, incoming, limits, n_workers=1) as workers:
        results = workers.submit([(str(root / name), "copy") for name in names]).result()
    assert [one.measures.status for one in results].count("ok") == N
    for name, one in zip(names, results, strict=True):
        assert media.read(one.sha256) == (root / name).read_bytes()


def test_bytes_that_are_kept_are_on_disk_before_their_rows_also_where_files_are_linked(
    sqlite_store, tmp_path, monkeypatch
):
    """The entries of an archive cannot be linked, so they are copied; linked files are not synced."""
    synced: list[str] = []
    monkeypatch.setattr(MediaFolder, "sync", lambda self, hashes: synced.extend(hashes))
    project = create_project(sqlite_store, "p", "audio").id
    run_import(sqlite_store, project, open_source(write_files(tmp_path / "in", FILES)), ImportOptions(storage="link"))
    assert synced == []
    with contextlib.closing(open_source(zip_of(tmp_path / "in.zip", {"a.wav": wav(999)}))) as source:
        run_import(sqlite_store, project, source, ImportOptions(storage="link"))
    assert synced == [hashlib.sha256(wav(999)).hexdigest()]
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_files_that_could_not_be_packed_are_never_reported_as_kept(tmp_path, monkeypatch, number):
    """After a write that fails in the middle, all waiting replies report it, and later files go into another pack."""
    for name in ("media", "incoming"):
        (tmp_path / name).mkdir()
    paths = [str(write_files(tmp_path / "in", {f"{k}.wav": wav(k)}) / f"{k}.wav") for k in range(5)]
    hashes = [hashlib.sha256(wav(k)).hexdigest() for k in range(5)]
    examiner = Examiner(tmp_path / "media", tmp_path / "incoming", Limits())
    examiner.packing = True
    said = [examiner.reply(paths[0], "copy")]
    examiner.flush(said)
    assert said[0][0] == "ok"
    write = os.pwrite

    def failing(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) < 1000:
            raise OSError(number, os.strerror(number))
        return write(descriptor, data[: len(data) - 500], offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", failing)
        patched.setattr(media_packs, "WRITE_BYTES", 3_000)
        said = [examiner.reply(path, "copy") for path in paths[1:4]]
    examiner.flush(said)
    assert [one[0] for one in said] == ["refused"] * 3
    assert (said[0][1] == DISK_FULL) == (number == errno.ENOSPC)
    said = [examiner.reply(path, "copy") for path in paths[3:]]
    examiner.flush(said)
    assert [one[0] for one in said] == ["ok"] * 2
    packs = Packs(tmp_path / "media")
    assert [packs.has(sha256) for sha256 in hashes] == [True, False, False, True, True]
    assert packs.read(hashes[3]) == wav(3)


@pytest.mark.slow
def test_lookups_do_not_hold_all_items_in_memory(tmp_path):
    """200,000 records: the records in memory stay below the limit, also if other processes wrote them."""
    (tmp_path / "packs").mkdir()
    keys = [os.urandom(32) for _ in range(200_000)]
    for part in range(4):
        block = b"".join(pack_index.RECORD.pack(key, 0, 5, 0) for key in keys[part::4])
        (tmp_path / "packs" / f"{part:032x}.log").write_bytes(block)
    packs = Packs(tmp_path)
    packs.index.refresh()
    assert len(packs.index._recent) <= pack_index.UNSORTED
    assert [len(packs.slots(key.hex())) for key in keys[::500]] == [1] * 400
