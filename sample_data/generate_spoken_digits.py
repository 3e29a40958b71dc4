"""Generates the clips of the sample project *Spoken digits*: ten digits, eighteen synthetic voices, four takes each.

    python -m sample_data.generate_spoken_digits [--out sample_data/spoken_digits]

Every voice is an espeak-ng accent with a variant of the voice, a pitch and a speed; every take changes speed and pitch
a little and adds a different background (hiss, hum, babble of the same synthesizer, or rumble). Everything is
determined by the seed, so the same version of the synthesizer gives the same samples.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import io
import math
from dataclasses import dataclass
from pathlib import Path

import espeakng_loader
import numpy as np
import soundfile
from numpy.typing import NDArray

RATE = 16_000
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TAKES = 4
SEED = 2021
LOW_BITS = 4  # cleared in the stored 16-bit samples: far below the background, and FLAC stores them for free


@dataclass(frozen=True)
class Voice:
    """One speaker: accent, variant, base pitch (0-99) and speed (words a minute)."""

    name: str
    espeak: str
    pitch: int
    speed: int
    split: str = "train"


VOICES = (
    Voice("ada", "en-us+f2", 55, 150),
    Voice("bruno", "en-us+m3", 40, 160),
    Voice("clara", "en-gb-x-rp+f4", 60, 140),
    Voice("dov", "en-gb-scotland+m7", 45, 165),
    Voice("edda", "en-gb-x-gbclan+f3", 50, 170),
    Voice("finn", "en-us+croak", 35, 150),
    Voice("greta", "en-029+f1", 65, 155),
    Voice("hugo", "en-gb-x-gbcwmd+m1", 30, 145),
    Voice("ines", "en+Annie", 55, 160),
    Voice("jonas", "en-us-nyc+m5", 50, 175),
    Voice("kira", "en-us+whisperf", 50, 140),
    Voice("leo", "en+klatt3", 45, 150),
    Voice("mina", "en-gb-x-rp+linda", 70, 165),
    Voice("nils", "en-029+Michael", 38, 158),
    Voice("olga", "en-us+f5", 45, 150, "test"),
    Voice("pete", "en-gb-x-rp+m2", 42, 155, "test"),
    Voice("rosa", "en-gb-scotland+Alicia", 60, 150, "test"),
    Voice("sven", "en+m8", 36, 165, "test"),
)


class Synthesizer:
    """espeak-ng through its C interface: text in, 16-bit samples out."""

    _synchronous, _utf8 = 2, 1
    _rate, _volume, _pitch, _range = 1, 2, 3, 4

    def __init__(self) -> None:
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path().encode()
        self.rate = self._library.espeak_Initialize(self._synchronous, 0, data, 0)
        if self.rate <= 0:
            raise RuntimeError("espeak-ng could not be started.")
        self._pieces: list[bytes] = []
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
        self._callback = kind(self._receive)  # kept, because the library stores only a pointer to it
        self._library.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples: ctypes._Pointer[ctypes.c_short], n_samples: int, events: int | None) -> int:
        if samples and n_samples > 0:
            self._pieces.append(ctypes.string_at(samples, 2 * n_samples))
        return 0

    def _seed(self, seed: int) -> None:
        """Seed the synthesizer's noise: without this, breathy voices differ between runs."""
        if hasattr(self._library, "espeak_ng_SetRandSeed"):
            self._library.espeak_ng_SetRandSeed(ctypes.c_long(seed))
        ctypes.CDLL(None).srand(seed)

    def say(self, text: str, voice: str, pitch: int, speed: int) -> NDArray[np.float64]:
        """The word as samples in [-1, 1] at `self.rate`."""
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise RuntimeError(f"espeak-ng has no voice {voice}.")
        for parameter, value in ((self._rate, speed), (self._volume, 100), (self._pitch, pitch), (self._range, 50)):
            self._library.espeak_SetParameter(parameter, value, 0)
        self._seed(hashlib.sha256(f"{text}:{voice}:{pitch}:{speed}".encode()).digest()[0])
        self._pieces = []
        spoken = text.encode()
        self._library.espeak_Synth(spoken, len(spoken) + 1, 0, 0, 0, self._utf8, None, None)
        self._library.espeak_Synchronize()
        return np.frombuffer(b"".join(self._pieces), np.int16).astype(np.float64) / 32_768


def trimmed(samples: NDArray[np.float64], rate: int) -> NDArray[np.float64]:
    """Without the silence around the word, but with 30 ms on either side."""
    loud = np.flatnonzero(np.abs(samples) > 0.01 * np.abs(samples).max())
    margin = int(0.03 * rate)
    return samples[max(0, loud[0] - margin) : loud[-1] + margin]


def resampled(samples: NDArray[np.float64], rate: int) -> NDArray[np.float64]:
    """At RATE: a windowed-sinc low-pass below the new half rate, then linear interpolation between its samples."""
    half = 32
    cutoff = 0.92 * RATE / rate
    taps = np.sinc(cutoff * np.arange(-half, half + 1)) * cutoff * np.hamming(2 * half + 1)
    smooth = np.convolve(samples, taps, "same")
    n_new = int(len(samples) * RATE / rate)
    return np.interp(np.arange(n_new) * rate / RATE, np.arange(len(samples)), smooth)


def background(kind: int, n_samples: int, babble: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Unit-power noise: 0 hiss, 1 hum with hiss, 2 babble, 3 low rumble."""
    white = rng.standard_normal(n_samples)
    if kind == 0:
        noise = white
    elif kind == 1:
        time = np.arange(n_samples) / RATE
        noise = np.sin(2 * math.pi * 50 * time) + 0.5 * np.sin(2 * math.pi * 150 * time + 1) + 0.2 * white
    elif kind == 2:
        start = int(rng.integers(0, len(babble) - n_samples))
        noise = babble[start : start + n_samples] + 0.05 * white
    else:
        noise = np.convolve(white, np.ones(24) / 24, "same")
    return noise / np.sqrt(np.mean(noise**2) + 1e-12)


def make_babble(synthesizer: Synthesizer) -> NDArray[np.float64]:
    """Several voices saying other words at once."""
    text = "the quick brown fox jumps over a lazy dog while many people talk about the weather and the news"
    parts = [
        resampled(synthesizer.say(text, voice, pitch, 170), synthesizer.rate)
        for voice, pitch in (("en-us+m1", 40), ("en+f1", 60), ("en-029+m4", 45))
    ]
    return np.sum([part[: min(map(len, parts))] for part in parts], axis=0)


def clip(
    synthesizer: Synthesizer, voice: Voice, digit: int, take: int, babble: NDArray[np.float64]
) -> NDArray[np.int16]:
    """One clip; the draw depends on the voice, the digit and the take alone."""
    seed = hashlib.sha256(f"{SEED}:{voice.name}:{digit}:{take}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(seed[:8], "little"))
    pitch = int(np.clip(voice.pitch + rng.integers(-8, 9), 5, 95))
    speed = int(voice.speed * rng.uniform(0.88, 1.15))
    spoken = trimmed(synthesizer.say(WORDS[digit], voice.espeak, pitch, speed), synthesizer.rate)
    spoken = resampled(spoken, synthesizer.rate)
    power = np.sqrt(np.mean(spoken**2))
    signal_to_noise = float(rng.uniform(14, 32))  # dB
    noise = background(int(rng.integers(4)), len(spoken), babble, rng)
    mixed = spoken + noise * power * 10 ** (-signal_to_noise / 20)
    mixed *= float(rng.uniform(0.35, 0.8)) / np.abs(mixed).max()
    samples = np.round(mixed * 32_767).astype(np.int16)
    return ((samples.astype(np.int32) + (1 << LOW_BITS - 1)) >> LOW_BITS << LOW_BITS).astype(np.int16)


def flac(samples: NDArray[np.int16]) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, samples, RATE, format="FLAC", subtype="PCM_16", compression_level=1.0)
    return stream.getvalue()


def generate(out: Path) -> int:
    """Write all clips below `out` in one run, because the synthesizer keeps state between words. Returns the bytes."""
    synthesizer = Synthesizer()
    babble = make_babble(synthesizer)
    n_bytes = 0
    for voice in VOICES:
        (out / voice.name).mkdir(parents=True, exist_ok=True)
        for digit in range(10):
            for take in range(TAKES):
                data = flac(clip(synthesizer, voice, digit, take, babble))
                (out / voice.name / f"{digit}-{take}.flac").write_bytes(data)
                n_bytes += len(data)
    return n_bytes


def write_manifest(out: Path) -> None:
    takes = [(voice, digit, take) for voice in VOICES for digit in range(10) for take in range(TAKES)]
    lines = ["path,label,split"]
    lines += [f"{voice.name}/{digit}-{take}.flac,{digit},{voice.split}" for voice, digit, take in takes]
    (out / "manifest.csv").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "spoken_digits")
    arguments = parser.parse_args()
    n_bytes = generate(arguments.out)
    write_manifest(arguments.out)
    print(f"{len(VOICES) * 10 * TAKES} clips, {n_bytes / 1e6:.2f} MB, in {arguments.out}")


if __name__ == "__main__":
    main()
