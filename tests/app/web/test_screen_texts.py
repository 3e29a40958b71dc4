"""Texts of the screens that are computed by functions: each is checked for every possible case."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from app.web.routes.cards import what_next
from app.web.screens import data, export
from app.web.screens.class_editor import _chips
from app.web.screens.rounds.running import UNITS, stage_list
from core.rounds import stage_names
from storage.projects.class_rows import ClassRow
from storage.projects.projects import ProjectSettings


@pytest.mark.parametrize("stage", stage_names.NAMES)
def test_a_running_round_is_described_in_words_at_every_stage(stage):
    latest = SimpleNamespace(number=3, stage=stage, unfinished=True, started_at=1)
    words = what_next(ProjectSettings(), latest, False)
    assert words == f"Round 3 is running ({stage_names.UNDER_WAY[stage]}). Its picks will appear first."
    assert stage_names.UNDER_WAY[stage].split()[0].endswith("ing")
    assert f'title="{stage_names.ABOUT[stage]}"' in stage_list(stage)


def test_a_part_of_a_stage_is_not_named_and_a_round_without_a_worker_waits():
    latest = SimpleNamespace(number=3, stage="views", unfinished=True, started_at=1)
    assert what_next(ProjectSettings(), latest, False) == "Round 3 is running. Its picks will appear first."
    latest.started_at, waits = None, "Round 3 is waiting for a worker. Its picks will appear first."
    assert what_next(ProjectSettings(), latest, False) == waits


def test_every_stage_that_counts_names_its_units():
    assert set(UNITS) <= set(stage_names.NAMES)
    assert set(stage_names.NAMES) - set(UNITS) == {"snapshot", "finish"}


def test_only_classes_with_a_key_have_a_keycap():
    first = ClassRow(
        **{field.name: None for field in dataclasses.fields(ClassRow)} | {"id": 1, "name": "dog", "key": "1"}
    )
    second = dataclasses.replace(first, id=2, name="cat", key=None)
    shown = _chips([first, second], {1: 1_200})
    assert shown.count("<kbd>") == 1 and "<kbd>1</kbd>" in shown
    assert "1,200" in shown and "cat" in shown


@pytest.mark.parametrize(("n", "words"), [(1, "1 row."), (2, "2 rows."), (0, "0 rows.")])
def test_counts_of_results_have_the_right_number(n, words):
    result = {"rows": n, "target": "a.zip", "imported": 5, "n_duplicates": n}
    assert export._sentence(SimpleNamespace(result=result)).startswith(words)
    assert f"{n} duplicate{'' if n == 1 else 's'}," in data._import_sentence(SimpleNamespace(result=result))
