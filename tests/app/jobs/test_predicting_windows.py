"""`python -m app predict --windows`: recordings window by window, with label tracks, by seeking."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from app.cli.main import main
from app.jobs import predicting
from storage.database.store import Store
from tests.app.real_rounds import import_clips, quick_settings, run_round_here

pytestmark = pytest.mark.usefixtures("one_thread")
RATE = 16_000


@pytest.fixture
def recording(tmp_path, monkeypatch) -> Path:
    """A project of spoken digits with a round, and a recording of 9.5 s made of its clips."""
    for name in ("WINNOW_DATABASE_URL", "WINNOW_ARTIFACTS", "WINNOW_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    files = import_clips(tmp_path / "clips")
    with Store.open(home=tmp_path / "home") as store:
        run_round_here(store, 1, quick_settings(seconds=1.0))
    samples = np.concatenate([soundfile.read(path)[0] for path in files])
    folder = tmp_path / "field"
    folder.mkdir()
    soundfile.write(folder / "night.flac", np.resize(samples, round(9.5 * RATE)), RATE)
    soundfile.write(folder / "short.wav", samples[: RATE // 2], RATE)
    (folder / "bad.wav").write_bytes(b"RIFF\x00\x00\x00\x00WAVEjunk")
    return folder


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_recording_is_predicted_window_by_window_with_tracks(recording, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    command = ["predict", "digits", str(recording), "--out", str(out), "--windows", "1", "--tracks", "raven", "--json"]
    assert main(command) == 0
    done = json.loads(capsys.readouterr().out)
    rows = rows_of(out)
    night = [row for row in rows if row["file"].endswith("night.flac")]
    assert [(row["start"], row["end"]) for row in night] == [
        *((float(second), second + 1.0) for second in range(9)), (9.0, 9.5),
    ]  # fmt: skip
    assert (done["files"], done["unreadable"]) == (12, 1)
    assert [row["start"] for row in rows if row["file"].endswith("short.wav")] == [0.0]
    table = Path(done["tracks"]) / "night.flac.Table.1.selections.txt"
    stretches = list(csv.DictReader(table.read_text().splitlines(), delimiter="\t"))
    joined = [night[0]["class"]]
    joined += [row["class"] for before, row in itertools.pairwise(night) if row["class"] != before["class"]]
    assert [one["Annotation"] for one in stretches] == joined
    assert float(stretches[-1]["End Time (s)"]) == 9.5 and {one["High Freq (Hz)"] for one in stretches} == {"8000"}

    # The windows alone, cut out beforehand, have the same predictions.
    samples = soundfile.read(recording / "night.flac", dtype="int16")[0]
    (tmp_path / "cut").mkdir()
    for second in range(9):
        soundfile.write(tmp_path / "cut" / f"{second}.wav", samples[second * RATE : (second + 1) * RATE], RATE)
    assert main(["predict", "digits", str(tmp_path / "cut"), "--out", str(tmp_path / "cut.jsonl")]) == 0
    alone = rows_of(tmp_path / "cut.jsonl")
    assert [row["class"] for row in alone] == [row["class"] for row in night[:9]]
    np.testing.assert_allclose(
        [row["confidence"] for row in alone], [row["confidence"] for row in night[:9]], atol=1e-4
    )
    assert {row["start"] for row in alone} == {None}


def test_an_interrupted_run_continues_with_the_next_window(recording, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(predicting, "BLOCK", 4)
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    command = ["predict", "digits", str(recording / "night.flac"), "--windows", "1", "--hop", "0.5"]
    assert main([*command, "--out", str(whole)]) == 0
    append, calls = predicting.PredictionTable.append, []

    def stop(self, rows):
        calls.append(len(rows))
        if len(calls) == 3:
            raise KeyboardInterrupt
        append(self, rows)

    monkeypatch.setattr(predicting.PredictionTable, "append", stop)
    assert main([*command, "--out", str(part)]) != 0 and not part.exists()
    monkeypatch.setattr(predicting.PredictionTable, "append", append)
    capsys.readouterr()
    assert main([*command, "--out", str(part), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["continued"] == 8
    assert rows_of(part) == rows_of(whole)
