"""A round whose predecessor cannot be read starts without it and says so."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from app.rounds.steps import StageContext
from core.errors import InvalidInput
from storage.rounds.artifacts import ArtifactUnreadable


@pytest.mark.parametrize(
    "problem", [ArtifactUnreadable("The model of round 1 cannot be read."), InvalidInput("foreign")]
)
def test_an_unreadable_predecessor_is_none_with_a_note(problem):
    def fail(*_: object) -> None:
        raise problem

    told: list[str] = []
    bench = SimpleNamespace(
        parcels={"snapshot": {"previous": 1}}, _open_previous=fail, report=lambda progress: told.append(progress.note)
    )
    assert StageContext._previous(bench, None) is None
    assert told == [f"starting without the previous round: {problem}"]
