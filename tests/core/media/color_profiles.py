"""ICC profiles written by hand: three primaries and one exponent, like those of cameras and displays."""

from __future__ import annotations

import struct

import numpy as np

# Columns: the XYZ values (relative to D50) of red, green and blue.
SRGB = np.array([[0.4361, 0.3851, 0.1431], [0.2225, 0.7169, 0.0606], [0.0139, 0.0971, 0.7141]])
WIDE = np.array([[0.7977, 0.1352, 0.0313], [0.2880, 0.7119, 0.0001], [0.0000, 0.0000, 0.8249]])  # ProPhoto RGB
D50 = (0.9642, 1.0, 0.8249)


def rgb_profile(primaries: np.ndarray, gamma: float) -> bytes:
    """An ICC 2.1 display profile with these primaries (columns) and the curve x ** gamma for all channels."""
    tags = {b"wtpt": _xyz(D50)}
    tags |= {name: _xyz(primaries[:, k]) for k, name in enumerate((b"rXYZ", b"gXYZ", b"bXYZ"))}
    tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), _curve(gamma))
    return _profile(b"RGB ", tags)


def gray_profile(gamma: float) -> bytes:
    return _profile(b"GRAY", {b"wtpt": _xyz(D50), b"kTRC": _curve(gamma)})


def to_srgb_by_hand(pixels: np.ndarray, primaries: np.ndarray, gamma: float) -> np.ndarray:
    """(..., 3) 8-bit values of such a profile as 8-bit sRGB values, out-of-gamut colors clipped."""
    linear = (pixels / 255.0) ** gamma
    srgb = np.clip(linear @ (np.linalg.inv(SRGB) @ primaries).T, 0, 1)
    encoded = np.where(srgb <= 0.0031308, 12.92 * srgb, 1.055 * srgb ** (1 / 2.4) - 0.055)
    return np.round(255 * encoded)


def _profile(space: bytes, tags: dict[bytes, bytes]) -> bytes:
    place, table, data = 128 + 4 + 12 * len(tags), b"", b""
    for name, content in tags.items():
        table += name + struct.pack(">II", place + len(data), len(content))
        data += content + bytes(-len(content) % 4)
    header = struct.pack(">I4sI4s4s4s", place + len(data), b"", 0x02100000, b"mntr", space, b"XYZ ")
    header += bytes(12) + b"acsp" + bytes(28) + _fixed(*D50) + bytes(48)
    return header + struct.pack(">I", len(tags)) + table + data


def _fixed(*values: float) -> bytes:
    return struct.pack(f">{len(values)}i", *(round(value * 65_536) for value in values))


def _xyz(values: object) -> bytes:
    return b"XYZ " + bytes(4) + _fixed(*values)  # type: ignore[misc]


def _curve(gamma: float) -> bytes:
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256)) + bytes(2)
