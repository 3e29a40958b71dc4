"""Untrusted archives: what is imported from them, and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import stat
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.limits import Limits
from storage.importing.open import open_source
from storage.importing.reading import ReadingOptions
from storage.importing.run import ImportOptions, run_import
from storage.importing.zip import ZipSource
from storage.importing.zip_reader import BadEntry, ZipReader
from storage.labeling.pool import Pool
from storage.projects.projects import create_project
from tests.storage.made_media import wav, zip_of

pytestmark = pytest.mark.usefixtures("examined_here")


@pytest.fixture
def audio(sqlite_store) -> int:
    return create_project(sqlite_store, "sounds", "audio").id


def take(store, project: int, path: Path, limits: Limits | None = None, **options):
    source = open_source(path, limits, reading=ReadingOptions(folders="classes"))
    try:
        return run_import(store, project, source, ImportOptions(limits=limits or Limits(), **options))
    finally:
        source.close()


def names(store, project: int) -> list[str]:
    return [item.name for item in Pool(store, project).items()]


def test_an_archive_is_imported_like_the_folder_it_was(sqlite_store, audio, tmp_path):
    files = {"train/dog/a.wav": wav(1), "train/cat/b.wav": wav(2), "test/dog/c.wav": wav(3)}
    report = take(sqlite_store, audio, zip_of(tmp_path / "x.zip", files))
    assert (report.imported, report.labels, report.held_out, report.n_refused) == (3, 2, 1, 0)
    assert [sqlite_store.media.read(item.sha256) for item in Pool(sqlite_store, audio).items()] == list(files.values())
    assert list((sqlite_store.media.root / "incoming").iterdir()) == []


def test_names_that_lead_elsewhere_are_refused_and_write_nothing_there(sqlite_store, audio, tmp_path):
    """The entry is listed with its reason, the rest is imported."""
    wrong = ["../../x.wav", "/etc/x.wav", "C:\\x.wav", "a/../../x.wav", "..\\x.wav", "\\\\host\\x.wav", "c:x.wav"]
    files = {name: wav(n) for n, name in enumerate(wrong)} | {"good.wav": wav(50), "sub\\windows.wav": wav(51)}
    path = zip_of(tmp_path / "x.zip", files)
    with zipfile.ZipFile(path, "a") as archive:
        entry = zipfile.ZipInfo("nul")
        entry.filename = "nu\x00l.wav"
        entry.orig_filename = "nu\x00l.wav"
        archive.writestr(entry, wav(60))
    before = {one for one in tmp_path.rglob("*") if one.is_relative_to(sqlite_store.home) is False}
    report = take(sqlite_store, audio, path)
    assert names(sqlite_store, audio) == ["good.wav", "sub\\windows.wav"]
    refused = dict(report.refused)
    assert set(refused) == {*wrong, "nu\\x00l.wav"}
    assert "(..)" in refused["../../x.wav"] and "absolute" in refused["C:\\x.wav"] and "NUL" in refused["nu\\x00l.wav"]
    assert {one for one in tmp_path.rglob("*") if one.is_relative_to(sqlite_store.home) is False} == before


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices_are_refused_and_their_target_is_never_opened(tmp_path, kind):
    """Zip has no hard links: an entry always has its own bytes; overlapping entries are the closest equivalent."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        entry = zipfile.ZipInfo("a.wav")
        entry.create_system = 3
        entry.external_attr = (kind | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    source = ZipSource(path, Limits())
    (found,) = source.entries()
    source.close()
    assert found.place is None and ("link" in found.problem or "not a regular" in found.problem)


def test_archives_inside_archives_are_not_opened(sqlite_store, audio, tmp_path):
    """An archive inside an archive is not unpacked."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("a.wav", wav(1))
    report = take(sqlite_store, audio, zip_of(tmp_path / "x.zip", {"in.zip": inner.getvalue(), "b.wav": wav(2)}))
    assert names(sqlite_store, audio) == ["b.wav"]
    assert "archives inside" in report.refused[0][1]


def test_a_bomb_is_refused_by_its_ratio_before_it_is_unpacked(sqlite_store, audio, tmp_path):
    """One entry that unpacks to a thousand times its size, and an archive that does so in total."""
    path = zip_of(tmp_path / "x.zip", {"zeros.wav": bytes(3 << 20), "b.wav": wav(2)})
    report = take(sqlite_store, audio, path)
    assert names(sqlite_store, audio) == ["b.wav"] and "max_zip_ratio" in report.refused[0][1]
    many = zip_of(tmp_path / "y.zip", {f"{n}.wav": bytes(1 << 20) for n in range(70)})
    with pytest.raises(InvalidInput, match="max_zip_ratio"):
        open_source(many)


@pytest.mark.parametrize(
    ("limits", "words"),
    [({"max_zip_entries": 4}, "max_zip_entries"), ({"max_zip_bytes": 2_000}, "max_zip_bytes")],
)
def test_entry_and_byte_limits_stop_an_archive_before_anything_is_unpacked(tmp_path, limits, words):
    path = zip_of(tmp_path / "x.zip", {f"{n}.wav": wav(n) for n in range(5)})
    with pytest.raises(InvalidInput, match=words):
        open_source(path, dataclasses.replace(Limits(), **limits))


def test_the_file_limit_holds_for_entries(tmp_path):
    source = ZipSource(zip_of(tmp_path / "x.zip", {"a.wav": wav()}), Limits(max_file_bytes=100))
    assert "max_file_bytes" in next(source.entries()).problem
    source.close()


def test_ten_million_declared_entries_are_refused_without_reading_them(tmp_path):
    """The number in the end record is sufficient; if it is too small, counting stops at the limit."""
    path = zip_of(tmp_path / "x.zip", {f"{n}.txt": b"" for n in range(300)})
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\x05\x06")
    struct.pack_into("<HH", data, at + 8, 65_000, 65_000)
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match="65,000 entries"):
        ZipReader(path, Limits(max_zip_entries=1_000))
    struct.pack_into("<HH", data, at + 8, 1, 1)
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match="101 entries or more"):
        ZipReader(path, Limits(max_zip_entries=100))


def test_memory_does_not_grow_with_the_number_of_names(tmp_path):
    import tracemalloc

    def peak(n: int) -> int:
        path = zip_of(tmp_path / f"{n}.zip", {f"{k:06d}.txt": b"" for k in range(n)}, zipfile.ZIP_STORED)
        tracemalloc.start()
        reader = ZipReader(path, Limits())
        assert sum(1 for _ in reader.entries()) == n
        reader.close()
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(10)
    assert peak(4_000) - peak(400) < 64 * 3_600  # 16 bytes an entry for the overlaps, and what sorting them takes


def test_overlapping_entries_are_refused(tmp_path):
    """Two names for the same packed bytes."""
    path = zip_of(tmp_path / "x.zip", {"a.wav": wav(1), "b.wav": wav(2)})
    data = bytearray(path.read_bytes())
    second = data.find(b"PK\x01\x02", data.find(b"PK\x01\x02") + 1)
    struct.pack_into("<L", data, second + 42, 0)  # b.wav begins where a.wav does
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match="share the same bytes"):
        open_source(path)


def central(data: bytearray, offset: int, form: str, value: int) -> bytearray:
    at = data.find(b"PK\x01\x02")
    struct.pack_into(form, data, at + offset, value)
    return data


@pytest.mark.parametrize(
    ("offset", "form", "value", "words"),
    [
        (24, "<L", 100, "more than the 100 bytes"),
        (24, "<L", 5_000, "damaged"),
        (16, "<L", 1, "checksum"),
        (10, "<H", 14, "compression method"),
        (8, "<H", 1, "encrypted"),
    ],
)
def test_what_is_declared_wrongly_is_refused_while_unpacking(tmp_path, offset, form, value, words):
    """The declared size differs from the real size, in both directions; entries that cannot be unpacked are named."""
    path = zip_of(tmp_path / "x.zip", {"a.wav": wav(1)})
    path.write_bytes(central(bytearray(path.read_bytes()), offset, form, value))
    source = ZipSource(path, Limits())
    (entry,) = source.entries()
    with pytest.raises(BadEntry, match=words):
        source.unpack(entry.place, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    source.close()


def test_two_entries_of_one_name_are_not_mixed_up(sqlite_store, audio, tmp_path):
    """zipfile would silently return the last one for both."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("a.wav", wav(1))
        archive.writestr("a.wav", wav(2))
    report = take(sqlite_store, audio, path)
    assert report.imported == 2 and report.refused == []
    names = {item.name: sqlite_store.media.read(item.sha256) for item in Pool(sqlite_store, audio).items()}
    assert names == {"a.wav": wav(1), "a (2).wav": wav(2)}


def test_the_name_of_a_further_entry_is_one_that_no_other_entry_has(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        for name in ("d.x/a.wav", "d.x/a.wav", "d.x/a (2).wav", "d.x/a.wav", "d.x/.b", "d.x/.b"):
            archive.writestr(name, name)
    source = ZipSource(path, Limits())
    shown = [entry.name for entry in source.entries()]
    source.close()
    assert shown == ["d.x/a.wav", "d.x/a (3).wav", "d.x/a (2).wav", "d.x/a (4).wav", "d.x/.b", "d.x/.b (2)"]


def test_names_in_old_code_pages_and_without_the_utf8_mark_are_read(tmp_path):
    path = zip_of(tmp_path / "x.zip", {"abcd.wav": wav(1)}, zipfile.ZIP_STORED)
    for raw, name in ((b"caf\x82", "café.wav"), ("ñandu"[:3].encode(), "ñan.wav")):
        source = ZipSource(Path(_renamed(path, tmp_path / "y.zip", raw)), Limits())
        assert [entry.name for entry in source.entries()] == [name]
        source.close()


def _renamed(path: Path, target: Path, raw: bytes) -> str:
    assert len(raw) == 4
    target.write_bytes(path.read_bytes().replace(b"abcd", raw))
    return str(target)


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(st.text("abc/xyzé", min_size=1, max_size=8).filter(lambda s: not s.endswith("/")),
                    st.binary(max_size=200), max_size=5),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    st.binary(max_size=20),
)  # fmt: skip
def test_archives_read_like_zipfile_reads_them(tmp_path, files, method, before):
    """An independent reader agrees, also if other data precedes the archive in the file."""
    path = zip_of(tmp_path / "x.zip", files, method)
    path.write_bytes(before + path.read_bytes())
    reader = ZipReader(path, Limits())
    assert {entry.name: b"".join(reader.read(entry)) for entry in reader.entries()} == files
    reader.close()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2_000), st.integers(0, 255))
def test_damaged_archives_are_refused_with_a_message(tmp_path, place, value):
    data = bytearray(zip_of(tmp_path / "x.zip", {"a.wav": wav(n_samples=50), "b.txt": b"text" * 30}).read_bytes())
    data[place % len(data)] = value
    path = tmp_path / "y.zip"
    path.write_bytes(data)
    try:
        with contextlib.closing(ZipReader(path, Limits())) as reader:
            for entry in reader.entries():
                b"".join(reader.read(entry))
    except (InvalidInput, BadEntry) as problem:
        assert str(problem)


@pytest.mark.parametrize("data", [b"", b"PK\x05\x06", b"PK\x03\x04" + bytes(100)])
def test_what_is_no_archive_is_refused(tmp_path, data):
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(InvalidInput):
        open_source(tmp_path / "x.zip")


def test_large_archives_with_64_bit_records_are_read(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive, archive.open("a.wav", "w", force_zip64=True) as file:
        file.write(wav(1))
    reader = ZipReader(path, Limits())
    (entry,) = reader.entries()
    assert b"".join(reader.read(entry)) == wav(1)
    reader.close()
