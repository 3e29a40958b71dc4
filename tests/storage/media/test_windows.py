"""Windows of recordings: the same frames as those of another reader, deterministic bytes, and wrong headers."""

from __future__ import annotations

import hashlib
import io
import struct

import numpy as np
import pytest
import soundfile

from core.errors import InvalidInput
from core.limits import Limits
from storage.media.probe import examine_recording
from storage.media.wav import wav_layout
from storage.media.windows import RecordingEnded, Span, WindowOptions, cut, cut_plain, window_key

RATE = 8_000


def samples(n_frames: int, channels: int = 1) -> np.ndarray:
    return np.random.default_rng(3).uniform(-0.9, 0.9, (n_frames, channels)).astype(np.float32)


def encoded(values: np.ndarray, form: str, subtype: str, rate: int = RATE) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, values, rate, format=form, subtype=subtype)
    return out.getvalue()


def decoded(data: bytes, dtype: str = "int32") -> np.ndarray:
    return soundfile.read(io.BytesIO(data), dtype=dtype, always_2d=True)[0]


EXACT = [
    ("WAV", "PCM_U8", 1), ("WAV", "PCM_16", 1), ("WAV", "PCM_24", 8), ("WAV", "PCM_32", 2), ("WAVEX", "PCM_24", 4),
    ("RF64", "PCM_16", 2), ("FLAC", "PCM_16", 2), ("FLAC", "PCM_24", 1), ("AIFF", "PCM_16", 2), ("FLAC", "PCM_S8", 1),
]  # fmt: skip


@pytest.mark.parametrize(("form", "subtype", "channels"), EXACT)
@pytest.mark.parametrize(("first", "last"), [(0, 999), (4_321, 7_000), (9_999, 9_999)])
def test_a_window_has_exactly_the_frames_that_a_whole_decoding_gives(form, subtype, channels, first, last):
    data = encoded(samples(10_000, channels), form, subtype)
    window = cut(data, first, last)
    info = soundfile.info(io.BytesIO(window))
    assert (info.samplerate, info.channels, info.frames) == (RATE, channels, last - first + 1)
    assert np.array_equal(decoded(window), decoded(data)[first : last + 1])
    assert window == cut(data, first, last), "the same bytes every time"


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_floats_above_full_scale_are_kept(subtype):
    data = encoded(samples(5_000, 2) * 3, "WAV", subtype)
    window = cut(data, 100, 2_099)
    assert np.array_equal(decoded(window, "float64"), decoded(data, "float64")[100:2_100])
    assert cut_plain(data, 100, 2_099) == window


@pytest.mark.parametrize(("form", "subtype"), [("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III"), ("WAV", "ULAW")])
def test_compressed_audio_is_cut_to_16_bits_at_the_right_place(form, subtype):
    values = np.convolve(samples(40_000)[:, 0], np.ones(8) / 8, "same").astype(np.float32)[:, None]
    data = encoded(values, form, subtype, 16_000)
    whole = decoded(data, "float32")
    window = decoded(cut(data, 20_000, 29_999), "float32")
    assert len(window) == 10_000
    assert np.abs(window - whole[20_000:30_000]).max() <= 2**-15


def test_the_key_is_the_hash_of_recording_and_frames():
    recording = hashlib.sha256(b"x").hexdigest()
    expected = hashlib.sha256(f"{recording} 80000 119999".encode()).hexdigest()
    assert window_key(Span(recording, 80_000, 119_999)) == expected
    assert window_key(Span(recording, 80_000, 119_998)) != expected


@pytest.mark.parametrize("n_frames", [1, 99, 100, 101, 109, 110, 111, 250, 999, 1_000, 1_005])
@pytest.mark.parametrize("hop", [0.0, 0.02, 0.05, 0.1, 0.35])
def test_windows_cover_the_recording_and_are_counted_without_listing_them(n_frames, hop):
    options = WindowOptions(seconds=0.1, hop=hop)
    spans = list(options.spans(n_frames, 1_000))
    assert len(spans) == options.n_windows(n_frames, 1_000)
    assert all(0 <= first <= last < n_frames for first, last in spans)
    assert [last - first + 1 for first, last in spans[:-1]] == [100] * (len(spans) - 1)
    if hop <= 0.1 and n_frames >= 10:
        covered = np.zeros(n_frames, bool)
        for first, last in spans:
            covered[first : last + 1] = True
        assert (~covered).sum() < 10, "only a rest below a tenth of a window is left out"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), 601.0])
def test_impossible_windows_are_refused(seconds):
    with pytest.raises(InvalidInput, match="Windows of"):
        WindowOptions(seconds=seconds)


def wav_with_size(size: int, n_frames: int = 20_000) -> bytes:
    data = bytearray(encoded(samples(n_frames), "WAV", "PCM_16"))
    place = data.index(b"data")
    data[place + 4 : place + 8] = struct.pack("<I", size)
    return bytes(data)


@pytest.mark.parametrize(("size", "claim"), [(0, "no length"), (0xFFFFFFFF, "268,435.5 s"), (100, None)])
def test_a_header_that_states_another_length_is_noted_and_the_bytes_count(size, claim):
    data = wav_with_size(size)
    found = examine_recording(data, Limits())
    if claim is None:
        assert found.n_frames == 50, "fewer frames than there are bytes: other chunks may follow"
        return
    assert (found.status, found.n_frames) == ("ok", 20_000)
    assert found.reason == f"Its header states {claim}; 2.5 s can be read and are used."
    assert np.array_equal(decoded(cut(data, 19_000, 19_999)), decoded(wav_with_size(40_000))[19_000:])


def test_a_wav_without_samples_is_unreadable():
    data = wav_with_size(0)[: wav_with_size(0).index(b"data") + 8]
    assert examine_recording(data, Limits())[:2] == ("unreadable", "It contains no samples.")


def test_a_flac_with_a_wrong_length_is_used_as_far_as_it_can_be_read():
    data = encoded(samples(200_000), "FLAC", "PCM_16")
    found = examine_recording(data[: len(data) // 2], Limits())
    assert found.status == "ok" and 80_000 < found.n_frames < 101_000 and "states 25.0 s" in found.reason
    assert len(decoded(cut(data[: len(data) // 2], found.n_frames - 100, found.n_frames - 1))) == 100
    with pytest.raises(InvalidInput):
        cut(data[: len(data) // 2], 150_000, 150_999)
    unknown = bytearray(data)
    size = int.from_bytes(unknown[18:26], "big") >> 36 << 36
    unknown[18:26] = size.to_bytes(8, "big")  # total samples: unknown
    assert examine_recording(bytes(unknown), Limits()).n_frames in (
        199_999,
        200_000,
    )  # the decoder seeks up to the last


def test_a_window_beyond_the_end_is_an_error_with_both_numbers():
    data = encoded(samples(10_000), "WAV", "PCM_16")
    with pytest.raises(RecordingEnded, match=r"ends after 10,000 frames \(1.2 s\), before .* frame 12,000 \(1.5 s\)"):
        cut(data, 9_000, 12_000)
    with pytest.raises(RecordingEnded, match="ends after 10,000 frames"):
        cut(encoded(samples(10_000), "FLAC", "PCM_16"), 9_000, 12_000)


def test_rf64_sizes_are_read_from_their_own_chunk():
    form = struct.pack("<HHIIHH", 1, 1, RATE, RATE * 2, 2, 16)
    n_bytes = 5 * 2**30
    head = b"RF64" + struct.pack("<I", 0xFFFFFFFF) + b"WAVE"
    head += b"ds64" + struct.pack("<IQQQI", 28, n_bytes + 72, n_bytes, n_bytes // 2, 0)
    head += b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", 0xFFFFFFFF)

    class Sparse:
        def __len__(self):
            return len(head) + n_bytes

        def __getitem__(self, part):
            start, stop, _ = part.indices(len(self))
            return (head[start:stop] + bytes(max(0, stop - max(start, len(head)))))[: stop - start]

    layout = wav_layout(Sparse())
    assert (layout.n_frames, layout.stated_frames, layout.offset) == (n_bytes // 2, n_bytes // 2, len(head))
    assert len(cut(Sparse(), n_bytes // 2 - 10, n_bytes // 2 - 1)) == 44 + 20


def test_recordings_over_the_limit_are_refused_with_the_number():
    data = encoded(samples(20_000), "WAV", "PCM_16")
    found = examine_recording(data, Limits(max_recording_seconds=1.0))
    assert found.status == "refused" and "2.5 s" in found.reason and "max_recording_seconds" in found.reason
