"""Large arrays: stored under the hash of their bytes, complete or absent, never unpickled."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from core.errors import InvalidInput, NotFound
from storage.rounds.artifacts import ArtifactFolder, ArtifactRef, ArtifactUnreadable


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(20)[::2],
        np.zeros((0, 5), np.float32),
        np.float64(3.5),
        np.array([True, False]),
        np.array(["ab", "c"]),
    ],
)
def test_arrays_are_read_back_exactly_and_memory_mapped(tmp_path: Path, array: np.ndarray) -> None:
    folder = ArtifactFolder(tmp_path)
    ref = folder.put_array(array)
    back = folder.open_array(ref)
    assert np.array_equal(back, array) and back.dtype == np.asarray(array).dtype
    assert isinstance(back, np.memmap) == (back.size > 0 and back.ndim > 0)
    path = tmp_path / ref.sha256[:2] / f"{ref.sha256}.npy"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == ref.sha256
    assert (path.stat().st_size, back.shape) == (ref.n_bytes, ref.shape)
    assert folder.verify(ref)


def test_the_same_bytes_are_kept_once_and_no_half_file_stays(tmp_path: Path) -> None:
    folder = ArtifactFolder(tmp_path)
    assert folder.put_array(np.ones(5)) == folder.put_array(np.ones(5))
    given = tmp_path / "model.safetensors"
    given.write_bytes(b"weights")
    assert folder.put_file(given).suffix == ".safetensors"
    assert folder.path(folder.put_bytes(b"{}", ".json")).read_bytes() == b"{}"
    assert list((tmp_path / "incoming").iterdir()) == []
    assert len([path for path in tmp_path.rglob("??/*") if path.is_file()]) == 3


def test_python_objects_are_refused_both_ways(tmp_path: Path) -> None:
    folder = ArtifactFolder(tmp_path)
    with pytest.raises(InvalidInput, match="holds Python objects"):
        folder.put_array(np.array([{}, None], dtype=object))
    assert list((tmp_path / "incoming").glob("*")) == []
    evil = tmp_path / "evil.npy"
    np.save(evil, np.array([{}], dtype=object), allow_pickle=True)
    ref = folder.put_file(evil)
    with pytest.raises(ArtifactUnreadable, match="not an array of numbers"):
        folder.open_array(ArtifactRef(ref.sha256, ref.suffix, ref.n_bytes, (1,), "|O"))


def test_a_missing_file_and_a_changed_one_are_detected(tmp_path: Path) -> None:
    folder = ArtifactFolder(tmp_path)
    ref = folder.put_array(np.arange(5))
    path = folder.path(ref)
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert not folder.verify(ref)
    path.unlink()
    with pytest.raises(NotFound, match=r"cannot be read \(No such file or directory\)"):
        folder.open_array(ref)


def test_a_remote_folder_is_read_through_a_checked_local_copy(tmp_path: Path) -> None:
    """fsspec's in-memory filesystem replaces an object store."""
    address = f"memory://winnow-{tmp_path.name}"
    ref = ArtifactFolder(address, tmp_path / "one").put_array(np.arange(6.0))
    elsewhere = ArtifactFolder(address, tmp_path / "two")
    assert np.array_equal(elsewhere.open_array(ref), np.arange(6.0))
    assert elsewhere.path(ref).is_relative_to(tmp_path / "two")
    elsewhere.path(ref).write_bytes(b"damaged")
    assert np.array_equal(elsewhere.open_array(ref), np.arange(6.0)), "a damaged local copy is fetched again"
    import fsspec

    files = fsspec.filesystem("memory")
    with files.open(f"/winnow-{tmp_path.name}/{ref.name}", "wb") as file:
        file.write(b"changed")
    with pytest.raises(ArtifactUnreadable, match="is damaged"):
        ArtifactFolder(address, tmp_path / "three").open_array(ref)
    assert not list((tmp_path / "three").rglob("*.npy"))


@pytest.mark.parametrize("how", ["flipped", "truncated", "foreign", "gone"])
def test_other_bytes_are_refused_at_the_first_open_of_a_process_and_after_a_change(tmp_path: Path, how: str) -> None:
    folder = ArtifactFolder(tmp_path)
    ref = folder.put_array(np.arange(1000.0))
    path = folder.path(ref)
    data = path.read_bytes()
    if how == "flipped":
        path.write_bytes(data[:500] + bytes([data[500] ^ 1]) + data[501:])
    elif how == "truncated":
        path.write_bytes(data[:-9])
    elif how == "foreign":
        path.write_bytes(folder.path(folder.put_array(np.ones(1000))).read_bytes())
    else:
        path.unlink()
    for opened in (folder, ArtifactFolder(tmp_path)):
        with pytest.raises(ArtifactUnreadable, match="cannot be read" if how == "gone" else "is damaged"):
            opened.open_array(ref)


def test_the_bytes_are_hashed_once_per_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ArtifactFolder(tmp_path)
    ref = folder.put_array(np.arange(1000.0))
    calls: list[object] = []
    original = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *given: calls.append(given) or original(*given))
    for _ in range(3):
        folder.open_array(ref)
    assert len(calls) == 1
