"""The media type of a file by its first bytes. Names and extensions are ignored.

Twelve formats are allowed; everything else is refused here, before any decoder sees it, with the name of the format
where it is recognized. HEIC and M4A are refused: their decoders (libheif, FFmpeg) would be large dependencies that
also decode in worker processes, which have no limits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

ReadAt = Callable[[int, int], bytes]
"""`read_at(offset, n)`: up to n bytes from `offset` on."""

HEAD_BYTES = 512

EXTENSIONS = {
    "audio/wav": ".wav",
    "audio/flac": ".flac",
    "audio/ogg": ".ogg",
    "audio/mpeg": ".mp3",
    "audio/aiff": ".aiff",
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/webp": ".webp",
    "image/bmp": ".bmp",
    "image/gif": ".gif",
    "image/tiff": ".tiff",
    "image/avif": ".avif",
}
"""The supported media types, with the extension of an exported file."""

PILLOW_FORMATS = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/webp": "WEBP",
    "image/bmp": "BMP",
    "image/gif": "GIF",
    "image/tiff": "TIFF",
    "image/avif": "AVIF",
}
NOT_PLAYED = frozenset(("audio/aiff",))
"""Audio that browsers do not play."""

HEIC, M4A = "a HEIC photograph", "an M4A or AAC recording"
_BITMAP_HEADERS = frozenset((12, 40, 52, 56, 64, 108, 124))

_KNOWN_BUT_REFUSED: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip archive"),
    (b"PK\x05\x06", "a zip archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a rar archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"\x7fELF", "a program (ELF)"),
    (b"MZ", "a program (Windows)"),
    (b"MATLAB", "a MATLAB file"),
    (b".snd", "an AU sound"),
    (b"dns.", "an AU sound"),
    (b"Creative Voice File", "a VOC sound"),
    (b"caff", "a CAF sound"),
    (b"%PDF", "a PDF document"),
    (b"II+\x00", "a BigTIFF picture"),
    (b"MM\x00+", "a BigTIFF picture"),
    (b"II*\x00", "a camera raw file"),  # CR2; other files that start like this are TIFF
)
_TIFF_STARTS = (b"II*\x00", b"MM\x00*")
_AVIF_BRANDS = (b"avif", b"avis")
_MP4_BRANDS: dict[bytes, str] = {
    b"heic": HEIC, b"heix": HEIC, b"heim": HEIC, b"heis": HEIC, b"hevc": HEIC, b"hevx": HEIC, b"mif1": HEIC,
    b"msf1": HEIC, b"M4A ": M4A, b"M4B ": M4A, b"M4P ": M4A, b"qt  ": "a QuickTime film", b"crx ": "a camera raw file",
}  # fmt: skip
_CONVERT = {
    HEIC: "HEIC photographs: export them as JPEG, or convert them with heif-convert or sips.",
    M4A: "M4A and AAC recordings: convert them to FLAC or WAV, such as with ffmpeg -i x.m4a x.flac.",
    "a camera raw file": "Camera raw files: export them as TIFF or JPEG.",
    "a BigTIFF picture": "BigTIFF pictures: save them as TIFF.",
}
ARCHIVES = frozenset(what for _, what in _KNOWN_BUT_REFUSED if what.endswith("archive")) | {"a tar archive"}


def media_kind(media_type: str) -> Literal["audio", "image"]:
    return "audio" if media_type.startswith("audio/") else "image"


def identify(head: bytes, read_at: ReadAt) -> str | None:
    """The media type of content that starts with `head` (at least 32 bytes, if it has that many), or None."""
    if head[:4] in (b"RIFF", b"RF64"):
        if head[8:12] == b"WAVE":
            return "audio/wav"
        return "image/webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else None
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith(b"fLaC"):
        return "audio/flac"
    if head.startswith(b"OggS\x00"):
        return "audio/ogg"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "image/gif"
    if head.startswith(b"BM") and int.from_bytes(head[14:18], "little") in _BITMAP_HEADERS:
        return "image/bmp"
    if head.startswith(b"ID3"):
        return _after_id3(read_at)
    return "audio/mpeg" if _is_mp3_frame(head) else _by_container(head)


def _by_container(head: bytes) -> str | None:
    """AIFF, TIFF and AVIF: their containers are used by other formats too."""
    if head.startswith(b"FORM") and head[8:12] in (b"AIFF", b"AIFC"):
        return "audio/aiff"
    if head.startswith(_TIFF_STARTS):
        return "image/tiff" if head[8:10] != b"CR" else None
    return "image/avif" if head[4:8] == b"ftyp" and _is_avif(head) else None


def _is_avif(head: bytes) -> bool:
    """By the major brand of the file, or by a compatible one where the major brand names any kind of picture."""
    size = min(int.from_bytes(head[:4], "big"), len(head))
    brands = [head[place : place + 4] for place in range(16, size - 3, 4)]
    return head[8:12] in _AVIF_BRANDS or (head[8:12] in (b"mif1", b"msf1") and any(b in _AVIF_BRANDS for b in brands))


def _is_mp3_frame(head: bytes) -> bool:
    """An MPEG audio layer III frame header: sync, no reserved version, bit rate or sample rate."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return False
    version, layer = head[1] >> 3 & 3, head[1] >> 1 & 3
    bit_rate, sample_rate = head[2] >> 4, head[2] >> 2 & 3
    return version != 1 and layer == 1 and bit_rate not in (0, 15) and sample_rate != 3


def _after_id3(read_at: ReadAt) -> str | None:
    """What follows the ID3 tags. libsndfile skips them too and trusts what follows."""
    offset = 0
    for _ in range(4):
        head = read_at(offset, 10)
        if not head.startswith(b"ID3") or len(head) < 10:
            break
        size = (head[6] & 127) << 21 | (head[7] & 127) << 14 | (head[8] & 127) << 7 | head[9] & 127
        offset += 10 + size + (10 if head[5] & 16 else 0)
    for padding in range(offset, offset + 4096, 64):  # some writers pad the tag beyond its stated size
        block = read_at(padding, 64)
        rest = block.lstrip(b"\x00")
        if rest:
            head = read_at(padding + len(block) - len(rest), 4)
            return "audio/flac" if head == b"fLaC" else "audio/mpeg" if _is_mp3_frame(head) else None
        if not block:
            break
    return None


def what_it_looks_like(head: bytes) -> str:
    """The name of a format that is not allowed, as it appears in the refusal."""
    if not head:
        return "empty"
    for magic, what in _KNOWN_BUT_REFUSED:
        if head.startswith(magic):
            return what
    if head[4:8] == b"ftyp":
        return _MP4_BRANDS.get(head[8:12], "an MP4 file")
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0:  # ADTS
        return M4A
    if head[257:262] == b"ustar":
        return "a tar archive"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<svg", b"<?xml")):
        return "an SVG or XML document"
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<script", b"<body", b"<!--")):
        return "an HTML document"
    return "of an unknown type"


def refusal(head: bytes) -> str:
    """One sentence: why this is not imported."""
    what = what_it_looks_like(head)
    if what in ARCHIVES:
        return f"It is {what}; archives inside a source are not opened. Import it on its own."
    allowed = "WAV, FLAC, OGG, MP3, AIFF, PNG, JPEG, WebP, BMP, GIF, TIFF and AVIF"
    return f"Its content is {what}; allowed are {allowed}. {_CONVERT.get(what, '')}".rstrip()
