"""The type of a file by its content, its measurements, and the handling of damaged, hostile or too large files."""

from __future__ import annotations

import dataclasses
import io
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from core.errors import InvalidInput
from core.limits import Limits, limits_from
from storage.media.folder import MediaChanged, MediaFolder, MediaMissing
from storage.media.probe import Measures, examine
from storage.media.probe_pool import ProbePool
from storage.media.probe_process import Examiner
from storage.media.types import identify, refusal
from tests.storage.made_media import long_picture, picture, riff, sound, wav

LIMITS = Limits()


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (wav(), "audio/wav"),
        (sound("FLAC"), "audio/flac"),
        (sound("OGG"), "audio/ogg"),
        (sound("MP3", rate=16_000, n_samples=8_000), "audio/mpeg"),
        (sound("WAV", subtype="FLOAT"), "audio/wav"),
        (sound("WAV", subtype="ULAW"), "audio/wav"),
        (picture("PNG"), "image/png"),
        (picture("JPEG"), "image/jpeg"),
        (picture("WEBP"), "image/webp"),
        (picture("BMP"), "image/bmp"),
        (picture("GIF"), "image/gif"),
    ],
)
def test_every_allowed_format_is_known_by_its_content_and_measured(data, media_type):
    found = examine(data, LIMITS)
    assert (found.status, found.media_type) == ("ok", media_type)
    if media_type.startswith("image/"):
        assert (found.width, found.height) == (12, 8)
    else:
        info = soundfile.info(io.BytesIO(data))
        assert (found.sample_rate, found.channels) == (info.samplerate, info.channels)
        assert found.seconds == pytest.approx(info.frames / info.samplerate, abs=0.06)


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_plain_wavs_are_measured_like_libsndfile_does(bits):
    n_bytes = bits // 8
    form = struct.pack("<HHIIHH", 1, 2, 11_025, 11_025 * 2 * n_bytes, 2 * n_bytes, bits)
    data = riff(form, b"\x01" * 2 * n_bytes * 99)
    info = soundfile.info(io.BytesIO(data))
    found = examine(data, LIMITS)
    assert (found.seconds, found.sample_rate, found.channels) == (99 / 11_025, info.samplerate, info.channels)
    assert info.frames == 99


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"<html><script>alert(1)</script></html>" + b" " * 99, "HTML"),
        (b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg' onload='x()'/>", "SVG"),
        (b"<svg onload=alert(1)>", "SVG"),
        (b"\x7fELF" + bytes(60), "ELF"),
        (b"MATLAB 5.0 MAT-file" + bytes(200), "MATLAB"),
        (b".snd" + bytes(60), "AU"),
        (b"FORM\x00\x00\x00\x108SVX" + bytes(60), "unknown"),
        (b"Creative Voice File\x1a" + bytes(60), "VOC"),
        (b"\x00" * 512, "unknown"),
        (b"", "empty"),
        (b"PK\x03\x04" + bytes(60), "zip archive"),
    ],
)
def test_files_with_a_false_type_are_refused_by_their_content(data, words):
    """HTML, SVG, programs and unsupported sound formats, under any file name."""
    found = examine(data, LIMITS)
    assert found.status == "refused"
    assert words in found.reason


def test_foreign_sounds_are_refused_before_libsndfile_opens_them(monkeypatch):
    """A MAT4 file has no magic number; it and files behind an ID3 tag never reach the decoder."""
    monkeypatch.setattr(soundfile, "SoundFile", lambda *_, **__: pytest.fail("libsndfile was called"))
    mat4 = struct.pack("<5I", 0, 1, 1, 0, 11) + b"samplerate\x00" + bytes(64)
    tag = b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10)
    for data in (mat4, tag + mat4, tag + b".snd" + bytes(64), tag + b"RIFF" + bytes(64)):
        assert examine(data, LIMITS).status == "refused"


def test_an_mp3_behind_tags_is_an_mp3():
    mp3 = sound("MP3", rate=16_000, n_samples=8_000)
    tagged = b"ID3\x04\x00\x00\x00\x00\x02\x00" + bytes(256) + mp3
    assert examine(tagged, LIMITS).media_type == "audio/mpeg"


@pytest.mark.parametrize(
    ("change", "data", "words"),
    [
        ({"max_pixels": 95}, picture("PNG"), "max_pixels"),
        ({"max_seconds": 0.05}, wav(), "max_seconds"),
        ({"max_seconds": 0.05}, sound("FLAC"), "max_seconds"),
        ({"min_sample_rate": 9_000}, wav(), "min_sample_rate"),
        ({"max_sample_rate": 7_000}, wav(), "max_sample_rate"),
        ({"max_channels": 1}, wav(channels=2), "max_channels"),
        ({}, wav(rate=1), "min_sample_rate"),
        ({}, wav(channels=200, n_samples=10), "max_channels"),
    ],
)
def test_each_limit_of_content_holds_and_is_named(change, data, words):
    found = examine(data, dataclasses.replace(LIMITS, **change))
    assert found.status == "refused"
    assert words in found.reason


def test_too_many_pixels_are_refused_before_one_is_decoded(monkeypatch):
    stream = io.BytesIO()
    Image.new("1", (9_000, 9_000)).save(stream, "PNG")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("it was decoded"))
    found = examine(stream.getvalue(), LIMITS)
    assert (found.status, "9,000 x 9,000" in found.reason) == ("refused", True)


def test_the_byte_limit_holds(tmp_path):
    (tmp_path / "a.wav").write_bytes(wav())
    limits = dataclasses.replace(LIMITS, max_file_bytes=1_000)
    reply = Examiner(tmp_path, tmp_path, limits).reply(str(tmp_path / "a.wav"), "link")
    assert reply[0] == "refused" and "max_file_bytes" in reply[1]


def test_limits_come_from_the_environment_and_from_options():
    environment = {"WINNOW_LIMITS": '{"max_pixels": 10, "max_channels": 3}', "WINNOW_MAX_CHANNELS": "4"}
    limits = limits_from(["max_seconds=1.5"], environment)
    assert (limits.max_pixels, limits.max_channels, limits.max_seconds) == (10, 4, 1.5)
    for wrong in (["max_seconds"], ["max_seconds=long"], ["max_moons=3"], ["max_pixels=0"], ["min_sample_rate=999999"]):
        with pytest.raises(InvalidInput):
            limits_from(wrong, {})
    for text in ("[1]", "{"):
        with pytest.raises(InvalidInput):
            limits_from((), {"WINNOW_LIMITS": text})


def test_no_samples_and_samples_that_are_not_numbers_are_unreadable():
    floats = np.array([0.0, np.nan, 0.5], np.float32).tobytes()
    form = struct.pack("<HHIIHH", 3, 1, 8_000, 32_000, 4, 32)
    assert examine(riff(form, floats), LIMITS).status == "unreadable"
    infinite = np.array([0.0, np.inf], np.float32).tobytes()
    assert "infinite" in examine(riff(form, infinite), LIMITS).reason
    assert examine(wav(n_samples=0), LIMITS) == Measures("unreadable", "It contains no samples.", "audio/wav")


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_damaged_pictures_never_raise_and_say_why(form):
    """Cut off or with a flipped bit at 100 random offsets."""
    data, rng = picture(form, size=(24, 24)), np.random.default_rng(1)
    seen = set()
    for offset in rng.integers(0, len(data), 100):
        flipped = bytearray(data)
        flipped[offset] ^= 1 << int(rng.integers(8))
        for damaged in (data[:offset], bytes(flipped)):
            found = examine(damaged, LIMITS)
            seen.add(found.status)
            assert found.status == "ok" or found.reason
    assert "unreadable" in seen


def test_damaged_sounds_never_raise():
    rng = np.random.default_rng(2)
    for data in (sound("FLAC"), sound("OGG"), sound("MP3", rate=16_000), wav()):
        for offset in rng.integers(0, len(data), 25):
            flipped = bytearray(data)
            flipped[offset] ^= 1 << int(rng.integers(8))
            for damaged in (data[:offset], bytes(flipped)):
                found = examine(damaged, LIMITS)
                assert found.status == "ok" or found.reason


def test_pictures_lying_on_their_side_are_measured_as_shown():
    stream = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (12, 8)).save(stream, "JPEG", exif=exif)
    found = examine(stream.getvalue(), LIMITS)
    assert (found.width, found.height) == (8, 12)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("media", "incoming"):
        (tmp_path / name).mkdir()
    return tmp_path / "media", tmp_path / "incoming"


@pytest.mark.slow
def test_a_decoder_that_takes_too_long_is_ended_and_its_neighbors_are_not_affected(folders, tmp_path):
    """Time: the child is killed by its own alarm; the file is kept and marked."""
    (tmp_path / "slow.jpg").write_bytes(long_picture())
    (tmp_path / "a.png").write_bytes(picture(seed=1))
    (tmp_path / "b.png").write_bytes(picture(seed=2))
    jobs = [(str(tmp_path / name), "copy") for name in ("a.png", "slow.jpg", "b.png")]
    limits = dataclasses.replace(LIMITS, decode_seconds=2.0)
    with ProbePool(*folders, limits, n_workers=1) as workers:
        results = workers.submit(jobs).result()
    assert [one.measures.status for one in results] == ["ok", "unreadable", "ok"]
    assert "decode_seconds" in results[1].measures.reason
    assert results[1].measures.media_type == "image/jpeg"
    assert MediaFolder(folders[0]).read(results[1].sha256) == (tmp_path / "slow.jpg").read_bytes()


@pytest.mark.slow
def test_a_decoder_gets_no_memory_above_the_limit(folders, tmp_path):
    """Memory: address space is limited in the child; the parent is not affected."""
    Image.new("RGB", (7_000, 7_000)).save(tmp_path / "large.png")
    (tmp_path / "a.png").write_bytes(picture())
    limits = dataclasses.replace(LIMITS, decode_bytes=200 << 20)
    with ProbePool(*folders, limits, n_workers=1) as workers:
        jobs = [(str(tmp_path / name), "copy") for name in ("large.png", "a.png")]
        large, small = workers.submit(jobs).result()
    assert large.measures.status == "unreadable"
    assert "decode" in large.measures.reason.lower()
    assert small.measures.status == "ok"


def test_large_files_are_copied_whole_and_measured_from_the_copy(folders, tmp_path):
    data = wav(n_samples=3_000_000, rate=48_000)
    (tmp_path / "long.wav").write_bytes(data)
    flac = sound("FLAC", rate=48_000, n_samples=3_000_000)
    (tmp_path / "long.flac").write_bytes(flac)
    jobs = [(str(tmp_path / "long.wav"), "copy"), (str(tmp_path / "long.flac"), "link")]
    with ProbePool(*folders, LIMITS, n_workers=1) as workers:
        one, two = workers.submit(jobs).result()
    assert one.measures.seconds == two.measures.seconds == 62.5
    assert MediaFolder(folders[0]).read(one.sha256) == data
    assert not MediaFolder(folders[0]).has(two.sha256)
    assert list(folders[1].iterdir()) == []


def test_a_file_that_grows_while_it_is_read_is_refused(folders, tmp_path, monkeypatch):
    """The hash and the stored bytes always belong together."""
    from storage.media import probe_process

    target = tmp_path / "a.wav"
    target.write_bytes(wav())
    read = probe_process.os.read

    def grow(descriptor: int, n: int) -> bytes:
        with open(target, "ab") as file:
            file.write(b"more")
        return read(descriptor, n)

    monkeypatch.setattr(probe_process.os, "read", grow)
    reply = Examiner(*folders, LIMITS).reply(str(target), "copy")
    assert reply[0] == "refused" and "changed while" in reply[1]


def test_the_media_folder_returns_exactly_the_stored_bytes_or_says_what_happened(tmp_path):
    media = MediaFolder(tmp_path / "media")
    sha256 = media.put(b"some bytes")
    assert media.put(io.BytesIO(b"some bytes")) == sha256
    assert media.read(sha256) == b"some bytes"
    media.path(sha256).write_bytes(b"other bytes")
    with pytest.raises(MediaChanged):
        media.read(sha256)
    with pytest.raises(MediaChanged):
        media.check(sha256)
    media.path(sha256).unlink()
    with pytest.raises(MediaMissing):
        media.read(sha256)
    for wrong in ("../../etc/passwd", "ab", "A" * 64, sha256 + "\n"):
        with pytest.raises(InvalidInput):
            media.path(wrong)
    assert [one.name for one in (tmp_path / "media" / "incoming").iterdir()] == []


def test_files_of_a_dead_process_are_removed_and_those_of_a_running_one_are_kept(tmp_path):
    media = MediaFolder(tmp_path)
    with media.incoming() as mine:
        dead = mine.with_name(mine.name.rsplit("-", 2)[0] + "-4194304999-abc")
        dead.mkdir()
        elsewhere = mine.with_name("otherhost-4194304999-abc")
        elsewhere.mkdir()
        with media.incoming() as second:
            assert mine.exists() and second.exists() and elsewhere.exists()
            assert not dead.exists()


def test_types_are_never_those_a_browser_would_run():
    for data in (b"<svg/>", b"<html>", b"GIF8", b"BM<script>", b"RIFF\x00\x00\x00\x00AVI "):
        assert identify(data, lambda offset, n: data[offset : offset + n]) is None  # noqa: B023
        assert "allowed are" in refusal(data)
