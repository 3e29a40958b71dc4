"""`simulate … --encoder NAME | FOLDER | none | auto`: which encoder and which preset a simulation has."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from app.cli.commands.simulate import SimulationCommand, chosen_encoder
from app.simulation.settings import preset_for_this_machine
from core.config import RoundConfig
from core.encoders.folders import encoders_folder, open_encoder
from core.errors import InvalidInput, NotFound
from tests.core.encoders import tiny


@pytest.fixture
def clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    folder = tmp_path / "clips"
    for number in range(4):
        place = folder / "train" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        soundfile.write(buffer, np.full(800, 0.1 + 0.1 * number, np.float32), 8_000, format="WAV")
        (place / f"{number}.wav").write_bytes(buffer.getvalue())
    return folder


def settings(clips: Path, encoder: str, preset: str = "auto") -> tuple[RoundConfig, Path]:
    out = clips.parent / "out"
    command = SimulationCommand(
        data=clips, project=None, out=out, strategies=("bico",), seeds=1, preset=preset, encoder=encoder
    )  # type: ignore[arg-type]
    return chosen_encoder(command, preset_for_this_machine(command.preset), out), out


def test_without_an_encoder_it_trains_from_scratch(clips):
    for encoder in ("none", "auto"):  # there is no encoder for sound yet
        found, out = settings(clips, encoder)
        assert (found.preset, found.encoder.identity) == ("laptop", "") and not out.exists()


def test_an_encoder_by_name_by_folder_or_chosen_is_kept_beside_the_results(clips):
    installed = open_encoder(tiny.write(encoders_folder(clips.parent / "home") / "tiny", tiny.linear()))
    given = tiny.write(clips.parent / "given", tiny.linear(), name="given")
    for encoder, preset, identity in (
        ("tiny", "encoder", installed.identity),
        ("auto", "auto", installed.identity),
        (str(given), "encoder", open_encoder(given).identity),
    ):
        found, out = settings(clips, encoder)
        assert (found.preset, found.encoder.identity) == (preset, identity)
        assert open_encoder(encoders_folder(out) / found.encoder.name).identity == identity


def test_what_cannot_be_used_is_named(clips):
    tiny.write(encoders_folder(clips.parent / "home") / "tiny", tiny.linear())
    with pytest.raises(NotFound, match=r"no encoder 'missing' \(installed: tiny\)"):
        settings(clips, "missing")
    with pytest.raises(InvalidInput, match="efficientnet-lite0 is for image"):
        settings(clips, "efficientnet-lite0")
    with pytest.raises(InvalidInput, match="The preset laptop trains from scratch"):
        settings(clips, "tiny", preset="laptop")
