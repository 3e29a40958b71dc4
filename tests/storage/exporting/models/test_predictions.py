"""Tables of predictions: one run at a time writes a table, and rows are never lost without an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.errors import Conflict
from storage.exporting.models.predictions import PredictionTable


def table(target: Path) -> PredictionTable:
    return PredictionTable(target, {"round": 1}, ())


def rows(*names: str) -> list[dict[str, object]]:
    return [{"file": name, "class": "wren", "confidence": 0.9, "round": 1} for name in names]


def files_of(target: Path) -> list[str]:
    return [json.loads(line)["file"] for line in target.read_text().splitlines()]


def test_a_second_run_with_the_same_target_is_refused_and_the_first_one_keeps_its_rows(tmp_path):
    target = tmp_path / "predictions.jsonl"
    first = table(target)
    first.begin(fresh=False)
    first.append(rows("a.wav", "b.wav"))
    for fresh in (False, True):
        with pytest.raises(Conflict, match="Another run is writing"):
            table(target).begin(fresh=fresh)
    first.append(rows("c.wav"))
    first.finish()
    assert files_of(target) == ["a.wav", "b.wav", "c.wav"]
    assert [one.name for one in tmp_path.iterdir()] == ["predictions.jsonl"]


def test_a_run_that_ended_early_is_continued_or_started_again(tmp_path):
    target = tmp_path / "predictions.jsonl"
    first = table(target)
    first.begin(fresh=False)
    first.append(rows("a.wav"))
    del first
    second = table(target)
    second.begin(fresh=False)
    assert second.n_done == 1 and second.has("a.wav") and not second.has("b.wav")
    second.append(rows("b.wav"))
    del second
    third = table(target)
    third.begin(fresh=True)
    assert third.n_done == 0
    third.append(rows("c.wav"))
    third.finish()
    assert files_of(target) == ["c.wav"]


def test_rows_that_were_removed_by_another_program_end_the_run_with_an_error(tmp_path):
    target = tmp_path / "predictions.jsonl"
    first = table(target)
    first.begin(fresh=False)
    first.append(rows("a.wav"))
    first.partial.unlink()
    with pytest.raises(Conflict, match="removed while it was written"):
        first.append(rows("b.wav"))
    assert not target.exists()
