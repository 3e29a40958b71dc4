"""Whether a file can be read, and its measures: seconds, rate, channels, width, height.

`examine` gives bytes one of three states: refused (not an allowed type, or over a limit), unreadable (an allowed type
that does not decode, with the reason) or ok. Plain PCM in a WAV is measured from its header alone; everything else is
decoded to the end, in a child process with limits (`storage.media.probe_pool`).

`examine_recording` measures a file that is cut into windows. It seeks to the end instead of decoding all of it, so its
cost does not grow with the length; damage in the middle shows when a window is read.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Literal, NamedTuple

from core.limits import (
    Limits,
    header_problem,
    length_problem,
    max_frames,
    pixels_problem,
    recording_problem,
    tiff_problem,
)
from storage.media.types import HEAD_BYTES, PILLOW_FORMATS, identify, media_kind, refusal
from storage.media.wav import PCM, header_bytes, wav_layout
from storage.media.windows import (
    DECODED_BITS,
    KEPT_BITS,
    ContentStream,
    FileContent,
    countable_frames,
)

Content = bytes | FileContent
_OBJECT = re.compile(r"<[^<>]* object at 0x[0-9a-f]+>")  # messages of decoders contain the stream object


class Measures(NamedTuple):
    """Media type and measurements of a file."""

    status: Literal["ok", "unreadable", "refused"]
    reason: str = ""
    media_type: str = ""
    seconds: float | None = None
    sample_rate: int | None = None
    channels: int | None = None
    width: int | None = None
    height: int | None = None
    n_frames: int | None = None  # of a recording that is cut into windows, as the following two
    frame_bytes: int = 0  # of a window
    header_bytes: int = 0  # of a window


class Unreadable(Exception):
    """An allowed type whose content does not decode; the text is the reason."""


class Refused(Exception):
    """Content that is not accepted; the text is the reason."""


def examine(data: Content, limits: Limits, before_decoding: Callable[[], None] = lambda: None) -> Measures:
    """Measures of `data`; `before_decoding` is called just before a decoder of compressed or foreign data runs."""
    head = data[:HEAD_BYTES]
    media_type = identify(head, lambda offset, n: data[offset : offset + n])
    if media_type is None:
        return Measures("refused", refusal(head))
    try:
        if media_type == "audio/wav" and (plain := plain_wav(data)) is not None:
            n_frames, sample_rate, channels = plain
            return _audio(media_type, n_frames, sample_rate, channels, limits)
        _load_decoder(media_type)
        before_decoding()
        if media_kind(media_type) == "audio":
            return _decode_audio(data, media_type, limits)
        return _decode_image(data, media_type, limits)
    except Refused as reason:
        return Measures("refused", str(reason), media_type)
    except Unreadable as reason:
        return Measures("unreadable", str(reason), media_type)
    except MemoryError:
        reason_text = f"Decoding needs more than the {limits.decode_bytes:,} bytes allowed (decode_bytes)."
        return Measures("unreadable", reason_text, media_type)
    except Exception as problem:  # decoders raise any exception on damaged data; none may stop a batch
        return Measures("unreadable", f"It does not decode: {_one_line(problem)}.", media_type)


def _load_decoder(media_type: str) -> None:
    """Import the decoder of this type, so that its import time does not count against the file."""
    if media_kind(media_type) == "audio":
        import numpy  # noqa: F401
        import soundfile  # noqa: F401
    else:
        from PIL import AvifImagePlugin, Image, TiffImagePlugin, WebPImagePlugin  # noqa: F401

        Image.preinit()


def _one_line(problem: Exception) -> str:
    text = _OBJECT.sub("the file", " ".join(str(problem).split()))[:200].rstrip(".")
    return text or type(problem).__name__


def _audio(media_type: str, n_frames: int, sample_rate: int, channels: int, limits: Limits) -> Measures:
    _refuse_if(header_problem(sample_rate, channels, limits))
    if n_frames == 0:
        raise Unreadable("It contains no samples.")
    _refuse_if(length_problem(n_frames, sample_rate, channels, limits))
    return Measures("ok", "", media_type, n_frames / sample_rate, sample_rate, channels)


def _refuse_if(problem: str | None) -> None:
    if problem is not None:
        raise Refused(problem)


def plain_wav(data: Content) -> tuple[int, int, int] | None:
    """(frames, sample rate, channels) of a WAV with 8 to 32 bit integer PCM, or None when it must be decoded.

    A data chunk that is cut off, or whose size was never filled in, ends where the bytes end.
    """
    layout = wav_layout(data) if data[:4] == b"RIFF" else None
    if layout is None or layout.code != PCM:
        return None
    return min(layout.n_frames, layout.stated_frames), layout.sample_rate, layout.channels


def examine_recording(data: Content, limits: Limits, before_decoding: Callable[[], None] = lambda: None) -> Measures:
    """Measures of a file that is cut into windows. A reason with the status "ok" is a note for the user."""
    head = data[:HEAD_BYTES]
    media_type = identify(head, lambda offset, n: data[offset : offset + n])
    if media_type is None:
        return Measures("refused", refusal(head))
    if media_kind(media_type) != "audio":
        return Measures("refused", "Pictures are not cut into windows.", media_type)
    try:
        layout = wav_layout(data) if media_type == "audio/wav" else None
        if layout is not None:
            kept = (layout.frame_bytes, header_bytes(layout.code))
            plain = Measures("ok", "", media_type, None, layout.sample_rate, layout.channels)
            return _recording(plain, layout.n_frames, layout.stated_frames, kept, limits)
        _load_decoder(media_type)
        before_decoding()
        import soundfile

        with soundfile.SoundFile(ContentStream(data)) as sound:
            rate, channels = int(sound.samplerate), int(sound.channels)
            _refuse_if(header_problem(rate, channels, limits))
            n_frames = countable_frames(data, int(sound.frames), int(limits.max_recording_seconds * rate) + 1)
            kept = (channels * KEPT_BITS.get(sound.subtype, DECODED_BITS) // 8, header_bytes(PCM))
            decoded = Measures("ok", "", media_type, None, rate, channels)
            return _recording(decoded, n_frames, int(sound.frames), kept, limits)
    except Refused as reason:
        return Measures("refused", str(reason), media_type)
    except Unreadable as reason:
        return Measures("unreadable", str(reason), media_type)
    except Exception as problem:  # decoders raise any exception on damaged data; none may stop a batch
        return Measures("unreadable", f"It does not decode: {_one_line(problem)}.", media_type)


def _recording(found: Measures, n_frames: int, stated: int, kept: tuple[int, int], limits: Limits) -> Measures:
    """The measures of a recording with its length; `stated` is the number of frames in the header."""
    rate, channels = found.sample_rate or 0, found.channels or 0
    _refuse_if(header_problem(rate, channels, limits))
    if n_frames == 0:
        raise Unreadable("It contains no samples.")
    _refuse_if(recording_problem(n_frames, rate, limits))
    note = ""
    if stated != n_frames:
        claim = "no length" if stated in (0, (1 << 63) - 1) else f"{stated / rate:,.1f} s"
        note = f"Its header states {claim}; {n_frames / rate:,.1f} s can be read and are used."
    frame, header = kept
    return found._replace(
        reason=note, seconds=n_frames / rate, n_frames=n_frames, frame_bytes=frame, header_bytes=header
    )


def _decode_audio(data: Content, media_type: str, limits: Limits) -> Measures:
    """Decode every sample once, block by block. Raises Unreadable or Refused for values that are not finite and for
    more samples than the limit allows."""
    import numpy as np
    import soundfile

    with soundfile.SoundFile(io.BytesIO(data) if isinstance(data, bytes) else ContentStream(data)) as sound:
        _refuse_if(header_problem(sound.samplerate, sound.channels, limits))
        allowed = max_frames(sound.samplerate, sound.channels, limits)
        n_frames = 0
        while len(block := sound.read(1 << 16, dtype="float32", always_2d=True)):
            if not np.isfinite(block).all():
                raise Unreadable(f"Samples after {n_frames / sound.samplerate:.1f} s are NaN or infinite.")
            n_frames += len(block)
            if n_frames > allowed:
                break
        return _audio(media_type, n_frames, sound.samplerate, sound.channels, limits)


def _decode_image(data: Content, media_type: str, limits: Limits) -> Measures:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # the limit of this application is checked below, before decoding
    stream = io.BytesIO(data) if isinstance(data, bytes) else io.BufferedReader(ContentStream(data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(stream, formats=(PILLOW_FORMATS[media_type],)) as picture:
            width, height = picture.size
            _refuse_if(pixels_problem(width, height, limits))
            if media_type == "image/tiff":
                _refuse_if(tiff_problem(picture.tag_v2))  # type: ignore[attr-defined]
            if min(width, height) < 1:
                raise Unreadable("It has no pixels.")
            picture.load()
            if picture.getexif().get(0x0112) in (5, 6, 7, 8):  # stored rotated by 90 degrees
                width, height = height, width
    return Measures("ok", "", media_type, width=width, height=height)
