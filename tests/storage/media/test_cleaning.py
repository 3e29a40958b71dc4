"""`clean` removes only unreferenced files, and none while an import runs."""

from __future__ import annotations

import os
import time

import numpy as np

from core.config import RoundConfig
from storage.media.cleaning import find_removable, remove
from storage.media.packs import PackWriter
from storage.rounds.log import RoundLog
from tests.app import sample_store


def aged(path):
    """Set the time of `path` to a week ago."""
    old = time.time() - 7 * 24 * 3600
    os.utime(path, (old, old))
    return path


def kinds(store) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in find_removable(store):
        found.setdefault(one.kind, set()).add(one.path.name)
    return found


def test_only_files_without_a_reference_are_found_and_removed(sqlite_store):
    project = sample_store.audio_project(sqlite_store, "Birds", 3)
    sample_store.finish_round(sqlite_store, project, 2)
    region = sqlite_store.artifacts.put_array(np.array([1, 2]))
    log = RoundLog(sqlite_store, project.id)
    log.cancel(log.request(RoundConfig(), constraint={"region": {"sha256": region.sha256}}).id)
    orphan = sqlite_store.media.path(sqlite_store.media.put(b"nobody has this"))
    array = sqlite_store.artifacts.put_array(np.arange(9))
    picture = sqlite_store.home / "cache" / "pictures" / "a.png"
    picture.parent.mkdir(parents=True)
    picture.write_bytes(b"123")
    for path in [*sqlite_store.media.root.glob("??/*"), *(sqlite_store.home / "artifacts").glob("??/*")]:
        aged(path)
    kept = {path for path in sqlite_store.home.rglob("*") if path.is_file() and "winnow" not in path.name}
    kept -= {orphan, sqlite_store.artifacts.path(array), picture}
    assert kinds(sqlite_store) == {"cache": {"pictures"}, "media": {orphan.name}, "artifact": {f"{array.sha256}.npy"}}
    found = find_removable(sqlite_store)
    assert orphan.exists() and remove(sqlite_store, found) == sum(one.n_bytes for one in found) > 0
    assert not orphan.exists() and not picture.exists() and find_removable(sqlite_store) == []
    assert all(path.exists() for path in kept if path.parent.name != "pictures")


def test_new_files_and_files_of_running_work_stay(sqlite_store):
    project = sample_store.audio_project(sqlite_store, "Birds", 1)
    orphan = sqlite_store.media.path(sqlite_store.media.put(b"nobody has this yet"))
    assert kinds(sqlite_store) == {}
    aged(orphan)
    assert kinds(sqlite_store) == {"media": {orphan.name}}
    found = find_removable(sqlite_store)
    RoundLog(sqlite_store, project.id).request(RoundConfig())
    assert kinds(sqlite_store) == {} and remove(sqlite_store, found) == 0 and orphan.exists()


def test_a_pack_goes_when_none_of_its_contents_is_an_item(sqlite_store):
    project = sample_store.audio_project(sqlite_store, "Birds", 0)
    import hashlib

    names = {}
    for label, contents in (("used", [b"one", b"two"]), ("unused", [b"three"])):
        writer = PackWriter(sqlite_store.media.root)
        for data in contents:
            writer.append(hashlib.sha256(data).hexdigest(), data)
        writer.close()
        names[label] = next(p for p in sqlite_store.media.packs.folder.glob("*.pack") if p not in names.values())
        aged(names[label])
    from tests.storage.pools import add_items

    add_items(sqlite_store, project.id, ["one"])
    assert kinds(sqlite_store) == {"pack": {names["unused"].name}}
    remove(sqlite_store, find_removable(sqlite_store))
    assert names["used"].exists() and not names["unused"].exists()
    assert sqlite_store.media.read(hashlib.sha256(b"one").hexdigest()) == b"one"
