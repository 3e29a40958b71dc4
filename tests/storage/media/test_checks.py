"""Files that are deleted or changed after import."""

from __future__ import annotations

import os

import pytest

from storage.database.store import Store
from storage.importing.open import open_source
from storage.importing.run import ImportOptions, run_import
from storage.labeling.pool import Pool
from storage.media import shared as shared_media
from storage.media.checks import MediaReport, set_condition, verify_items
from storage.media.folder import MediaChanged, MediaMissing
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import create_project
from tests.storage.made_media import wav, write_files
from tests.storage.pools import read_item

pytestmark = pytest.mark.usefixtures("examined_here")


@pytest.mark.parametrize("kept", ["copy", "link"])
def test_missing_and_changed_files_are_detected_skipped_and_restored(store, tmp_path, kept):
    """The item is marked, the queue skips it, and labels are kept; the right bytes restore it."""
    project = create_project(store, "p", "audio", ["dog"]).id
    root = write_files(tmp_path / "in", {f"{k}.wav": wav(k) for k in range(4)})
    run_import(store, project, open_source(root), ImportOptions(storage=kept))
    pool, ann = Pool(store, project), annotator_named(store, "ann").id
    items = pool.items()
    pool.label(items[0].id, list_classes(store, project)[0].id, annotator=ann)
    assert verify_items(store, project) == MediaReport(checked=4)

    paths = [root / item.name if kept == "link" else store.media.path(item.sha256) for item in items]
    contents = [path.read_bytes() for path in paths]
    paths[0].unlink()
    paths[1].write_bytes(wav(99))
    assert verify_items(store, project) == MediaReport(checked=4, missing=1, changed=1)
    conditions = [item.condition for item in pool.items()]
    assert conditions == ["missing", "changed", "ok", "ok"]
    served = {item.id for item in pool.next_to_label(annotator=ann, limit=10)}
    assert served == {items[2].id, items[3].id}
    assert pool.item(items[0].id).class_id is not None

    for path, data in zip(paths[:2], contents[:2], strict=True):
        path.write_bytes(data)
    assert verify_items(store, project).repaired == 2
    assert pool.counts().waiting == 3


def test_reading_an_item_detects_other_bytes_before_it_returns_them(sqlite_store, tmp_path):
    """A read never returns the wrong bytes, and the attempt marks the item."""
    store = sqlite_store
    project = create_project(store, "p", "audio").id
    root = write_files(tmp_path / "in", {"a.wav": wav(1), "b.wav": wav(2), "c.wav": wav(3)})
    run_import(store, project, open_source(root), ImportOptions(storage="link"))
    first, second, third = (item.id for item in Pool(store, project).items())
    assert read_item(store, first) == wav(1)
    (root / "a.wav").write_bytes(wav(5))
    (root / "b.wav").unlink()
    with pytest.raises(MediaChanged):
        read_item(store, first)
    with pytest.raises(MediaMissing):
        read_item(store, second)
    (root / "c.wav").unlink()
    os.mkfifo(root / "c.wav")
    with pytest.raises(MediaChanged):
        read_item(store, third)
    assert [item.condition for item in Pool(store, project).items()] == ["changed", "missing", "changed"]
    (root / "a.wav").write_bytes(wav(1))
    assert read_item(store, first) == wav(1)
    assert Pool(store, project).item(first).condition == "ok"


def test_importing_a_lost_file_again_brings_its_item_back(sqlite_store, tmp_path):
    project = create_project(sqlite_store, "p", "audio").id
    root = write_files(tmp_path / "in", {"a.wav": wav(1)})
    run_import(sqlite_store, project, open_source(root), ImportOptions(storage="link"))
    (root / "a.wav").rename(tmp_path / "moved.wav")
    assert verify_items(sqlite_store, project).missing == 1
    write_files(tmp_path / "new", {"b.wav": wav(1)})
    report = run_import(sqlite_store, project, open_source(tmp_path / "new"), ImportOptions(storage="link"))
    assert report.duplicates == [("b.wav", "a.wav")]
    item = Pool(sqlite_store, project).items()[0]
    assert (item.condition, item.link_path) == ("ok", str(tmp_path / "new" / "b.wav"))
    assert read_item(sqlite_store, item.id) == wav(1)


def test_a_round_that_reads_a_missing_or_changed_file_marks_its_item(sqlite_store, tmp_path):
    """When a worker reads: no model is trained on other bytes, and people see which items are affected."""
    store = sqlite_store
    project = create_project(store, "p", "audio").id
    root = write_files(tmp_path / "in", {f"{k}.wav": wav(k) for k in range(3)})
    run_import(store, project, open_source(root))
    items = Pool(store, project).items()
    store.media.path(items[0].sha256).unlink()
    store.media.path(items[1].sha256).write_bytes(wav(9))
    read = shared_media.reader(store, project)
    with pytest.raises(MediaMissing):
        read(items[0].sha256)
    with pytest.raises(MediaChanged):
        read(items[1].sha256)
    assert read(items[2].sha256) == wav(2)
    assert [item.condition for item in Pool(store, project).items()] == ["missing", "changed", "ok"]


def test_sharing_media_marks_what_is_missing_and_a_machine_without_media_marks_nothing(tmp_path):
    """The same with an artifact folder that several machines reach."""
    address = str(tmp_path / "shared")
    with Store.open(home=tmp_path / "home") as store:
        url = store.url
    with Store(url, tmp_path / "home", address) as store:
        project = create_project(store, "p", "audio").id
        root = write_files(tmp_path / "in", {f"{k}.wav": wav(k) for k in range(3)})
        run_import(store, project, open_source(root))
        items = Pool(store, project).items()
        store.media.path(items[0].sha256).unlink()
        shared_media.share(store, project, items[-1].id)
        assert [item.condition for item in Pool(store, project).items()] == ["missing", "ok", "ok"]
        set_condition(store, project, {items[0].id: ("ok", "")})
    with Store(url, tmp_path / "elsewhere", address) as store:
        read = shared_media.reader(store, project)
        assert read(items[1].sha256) == wav(1)
        with pytest.raises(MediaMissing):
            read(items[0].sha256)
        assert [item.condition for item in Pool(store, project).items()] == ["ok", "ok", "ok"]
