"""Import, display and rounds accept and refuse the same files, and people and the model see the same picture."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from app.views.previews import drawing as previews
from app.views.previews.process import reply_to
from core.errors import InvalidInput
from core.limits import Limits
from core.media.audio import decode_audio
from core.media.images import decode_image
from storage.media.probe import examine
from tests.storage import made_media

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits()


def accepted_by_display(data: bytes, kind: str, limits: Limits) -> bool:
    reason, drawing = reply_to(data, kind, "thumb.png", limits)
    assert bool(reason) != bool(drawing)
    return not reason


def accepted_by_rounds(data: bytes, kind: str, limits: Limits) -> bool:
    try:
        (decode_audio if kind == "audio" else decode_image)(data, limits)
    except InvalidInput:
        return False
    return True


def blank_png(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (width, height)).save(stream, "PNG")
    return stream.getvalue()


CASES = {
    "RF64": ("audio", made_media.rf64, LIMITS, True),
    "1 kHz": ("audio", lambda: made_media.wav(rate=1_000), LIMITS, True),
    "1.5 kHz": ("audio", lambda: made_media.wav(rate=1_500), LIMITS, True),
    "999 Hz": ("audio", lambda: made_media.wav(rate=999), LIMITS, False),
    "384 kHz": ("audio", lambda: made_media.wav(rate=384_000), LIMITS, True),
    "385 kHz": ("audio", lambda: made_media.wav(rate=385_000), LIMITS, False),
    "8 channels": ("audio", lambda: made_media.wav(channels=8), LIMITS, True),
    "9 channels": ("audio", lambda: made_media.wav(channels=9), LIMITS, False),
    "exactly max_samples": ("audio", lambda: made_media.wav(channels=2), Limits(max_samples=1_600), True),
    "above max_samples": ("audio", lambda: made_media.wav(channels=2), Limits(max_samples=1_598), False),
    "exactly max_seconds": ("audio", lambda: made_media.wav(), Limits(max_seconds=0.1), True),
    "above max_seconds": ("audio", lambda: made_media.wav(), Limits(max_seconds=0.0999), False),
    "an MP3 with a lying header": ("audio", made_media.lying_mp3, LIMITS, True),
    "51 megapixels": ("image", lambda: blank_png(8_500, 6_000), LIMITS, True),
    "64 megapixels": ("image", lambda: blank_png(8_000, 8_000), LIMITS, True),
    "65 megapixels": ("image", lambda: blank_png(8_126, 8_000), LIMITS, False),
    "16-bit gray": ("image", made_media.gray16, LIMITS, True),
    "16-bit color": ("image", made_media.color16, LIMITS, True),
    "AIFF": ("audio", lambda: made_media.sound("AIFF"), LIMITS, True),
    "AIFF of 24 bits": ("audio", lambda: made_media.sound("AIFF", subtype="PCM_24"), LIMITS, True),
    "AIFF with mu-law": ("audio", lambda: made_media.sound("AIFF", subtype="ULAW"), LIMITS, True),
    "AIFF above max_seconds": ("audio", lambda: made_media.sound("AIFF"), Limits(max_seconds=0.4), False),
    "AIFF cut off in its header": ("audio", lambda: made_media.sound("AIFF")[:20], LIMITS, False),
    "AIFF without samples": ("audio", lambda: made_media.sound("AIFF")[:54], LIMITS, False),
    "TIFF": ("image", made_media.tiff, LIMITS, True),
    "TIFF with LZW": ("image", lambda: made_media.tiff(compression="tiff_lzw"), LIMITS, True),
    "TIFF with JPEG": ("image", lambda: made_media.tiff(Image.new("RGB", (16, 16)), compression="jpeg"), LIMITS, True),
    "TIFF of 16 bits": ("image", made_media.tiff16, LIMITS, True),
    "TIFF of 32-bit floats": ("image", lambda: made_media.tiff(Image.new("F", (8, 8), 0.5)), LIMITS, False),
    "TIFF of 32-bit integers": ("image", lambda: made_media.tiff(Image.new("I", (8, 8), 9)), LIMITS, False),
    "TIFF whose first page is a thumbnail": ("image", lambda: made_media.tiff(tiffinfo={254: 1}), LIMITS, False),
    "TIFF of a camera (DNG)": ("image", lambda: made_media.tiff(tiffinfo={50706: b"\1\4\0\0"}), LIMITS, False),
    "TIFF cut off": ("image", lambda: made_media.tiff()[:60], LIMITS, False),
    "TIFF above max_pixels": ("image", made_media.tiff, Limits(max_pixels=95), False),
    "AVIF": ("image", made_media.avif, LIMITS, True),
    "AVIF above max_pixels": ("image", made_media.avif, Limits(max_pixels=191), False),
    "AVIF cut off": ("image", lambda: made_media.avif()[:200], LIMITS, False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_import_display_and_rounds_give_the_same_answer(name):
    kind, make, limits, accepted = CASES[name]
    data = make()
    answers = {
        "import": examine(data, limits).status == "ok",
        "display": accepted_by_display(data, kind, limits),
        "rounds": accepted_by_rounds(data, kind, limits),
    }
    assert answers == dict.fromkeys(answers, accepted)


@pytest.mark.parametrize("level", [0, 256, 12_600, 40_000, 65_535])
@pytest.mark.parametrize("make", [made_media.gray16, made_media.color16, made_media.tiff16])
def test_people_and_the_model_see_the_same_16_bit_picture(make, level):
    data = make(level)
    drawn = Image.open(io.BytesIO(previews.draw(data, "image", "picture.png")))
    seen = decode_image(data).convert("RGB")
    assert np.array_equal(np.asarray(drawn.convert("RGB")), np.asarray(seen))
    assert abs(int(np.asarray(seen)[0, 0, 0]) - level / 65_535 * 255) <= 1


def test_with_a_wrong_header_the_length_is_the_decoded_one():
    data = made_media.lying_mp3(seconds=1.0)
    assert soundfile.info(io.BytesIO(data)).frames > 10**9, "the header is not wrong"
    samples, rate = decode_audio(data)
    assert len(samples) / rate == pytest.approx(1.0, abs=0.2)
    assert previews.analyze(data).seconds == pytest.approx(len(samples) / rate)


@pytest.mark.slow
def test_eight_channels_at_192_khz_are_refused_before_they_fill_the_memory(tmp_path):
    """590 s of silence are below 1 MB of FLAC and 906 million samples."""
    path = tmp_path / "wide.flac"
    with soundfile.SoundFile(path, "w", 192_000, 8, format="FLAC") as file:
        for _ in range(100):
            file.write(np.zeros((192_000, 8), np.int16))
        whole = 100 * 192_000 * 8
    assert path.stat().st_size < 1_000_000 and whole > LIMITS.max_samples
    code = (
        "import resource, sys\n"
        "from core.errors import InvalidInput\nfrom core.media.audio import decode_audio\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: decode_audio(open(sys.argv[1], 'rb').read())\n"
        "except InvalidInput as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    reason, kilobytes = done.stdout.splitlines()
    assert "max_samples" in reason and int(kilobytes) < 200_000


def test_the_first_page_of_a_tiff_is_the_picture():
    pages = [Image.new("L", (6, 4), level) for level in (10, 200)]
    data = made_media.tiff(pages[0], save_all=True, append_images=pages[1:])
    assert np.asarray(decode_image(data)).max() == 10
    drawn = Image.open(io.BytesIO(previews.draw(data, "image", "picture.png")))
    assert np.asarray(drawn).max() == 10


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_turned_tiff_is_upright_in_import_display_and_rounds(orientation):
    """Against Pillow's own transposition of the same pixels."""
    stored = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6) * 10)
    turns = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_270, 8: Image.Transpose.ROTATE_90}
    upright = stored if turns[orientation] is None else stored.transpose(turns[orientation])
    data = made_media.tiff(stored, tiffinfo={274: orientation})
    measures = examine(data, LIMITS)
    assert (measures.status, measures.width, measures.height) == ("ok", *upright.size)
    assert np.array_equal(np.asarray(decode_image(data)), np.asarray(upright))
    drawn = Image.open(io.BytesIO(previews.draw(data, "image", "picture.png")))
    assert np.array_equal(np.asarray(drawn.convert("L")), np.asarray(upright))


@pytest.mark.parametrize(("form", "subtype"), [("AIFF", "PCM_16"), ("WAV", "PCM_16")])
def test_the_flac_for_browsers_has_the_samples_of_the_file(form, subtype):
    data = made_media.sound(form, subtype=subtype)
    made, rate = soundfile.read(io.BytesIO(previews.draw(data, "audio", "sound.flac")), dtype="int16")
    original, original_rate = soundfile.read(io.BytesIO(data), dtype="int16")
    assert rate == original_rate and np.abs(made.astype(int) - original).max() <= 1


REFUSED = {
    "HEIC photographs: export them as JPEG": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
    "M4A and AAC recordings: convert them": b"\0\0\0\x1cftypM4A \0\0\0\0M4A mp42isom",
    "an M4A or AAC recording": b"\xff\xf1\x50\x80\x02\x1f\xfc" + bytes(40),
    "an MP4 file": b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom",
    "Camera raw files: export them": b"II*\0\x10\0\0\0CR\x02\0" + bytes(40),
    "BigTIFF pictures: save them as TIFF": b"II+\0\x08\0\0\0" + bytes(40),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_refused_is_named(said):
    found = examine(REFUSED[said] + bytes(64), LIMITS)
    assert found.status == "refused" and said in found.reason
