"""Endpoints for test sets that the project draws, and for the accuracy on them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from app.views import measuring
from app.web import resources
from app.web.api.models import Id, Received, Returned
from storage.labeling.test_sets import MOST_ITEMS, GroupUse, TestSetRow, draw_test_set, list_test_sets
from storage.projects.projects import get_project

router = APIRouter(tags=["measuring"])


class NewTestSet(Received):
    """`n_labels`: how many of the items may already have a label, if it was given in random order. `by`: draw from
    whole groups, whose other items are removed from the pool (groups); from every group in proportion (shares); or from
    whole groups if there are enough of them (auto)."""

    n_items: Annotated[int, Field(ge=1, le=MOST_ITEMS)]
    n_labels: Annotated[int, Field(ge=0, le=MOST_ITEMS)] = 0
    by: GroupUse = "auto"
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None


class TestSet(Returned):
    id: int
    drawn_at: datetime
    drawn_by: int | None
    n_items: int
    n_frame: int = Field(description="Items of the pool that it was drawn from.")
    n_labels: int
    n_groups: int
    n_test_groups: int = Field(description="Number of whole groups that it was drawn from; 0: from every group.")
    n_set_aside: int = Field(description="Other items of these groups, which were removed from the pool.")
    seed: int


class Accuracy(Returned):
    accuracy: float
    correct: int
    n: int
    low: float = Field(description="Lower end of the 95 % Wilson interval, which accounts for whole groups.")
    high: float


class ClassAccuracy(Accuracy):
    name: str


class RoundAccuracy(Accuracy):
    round_id: int
    number: int
    n_labeled: int
    inductive: bool = Field(description="Whether the items were test items when the round was requested.")


class LabelForecast(Returned):
    target: float
    labels: int = Field(description="Labels of the newest round.")
    more: int | None = Field(description="Additional labels; null: the curve does not reach the target.")
    low: int | None = Field(description="Lower end of an 80 % interval.")
    high: int | None = Field(description="Upper end; null: there is none.")
    reached: bool


class Measurement(Returned):
    n_drawn: int
    n_labeled: int
    n_waiting: int
    n_skipped: int
    n_groups: int = Field(description="Number of whole groups of the test items; 0: items were drawn individually.")
    rounds: list[RoundAccuracy] = Field(description="Accuracy of every round on the same items, oldest first.")
    per_class: list[ClassAccuracy] = Field(
        description="Accuracy of the newest round, for classes with 10 or more items."
    )
    forecast: LabelForecast | None = Field(description="null: too few rounds or test items.")


@router.post("/projects/{project}/test-sets", status_code=201)
def draw(project: Id, new: NewTestSet) -> TestSet:
    """Draw random items from the pool as test items. They are labeled without suggestions and never trained on."""
    get_project(resources.store(), project)
    made = draw_test_set(resources.store(), project, new.n_items, n_labels=new.n_labels, by=new.by, seed=new.seed)
    return _shown(made)


@router.get("/projects/{project}/test-sets")
def test_sets(project: Id) -> list[TestSet]:
    """The test sets of the project, newest first."""
    get_project(resources.store(), project)
    return [_shown(row) for row in list_test_sets(resources.store(), project)]


@router.get("/projects/{project}/accuracy")
def accuracy(
    project: Id, target: Annotated[float, Query(gt=0, lt=1, description="For the forecast.")] = 0.95
) -> Measurement | None:
    """The accuracy of every round on the test items that the project has drawn. null before the first test set."""
    get_project(resources.store(), project)
    found = measuring.measure(resources.store(), project)
    if found is None:
        return None
    return Measurement.model_validate(measuring.as_dict(found, found.forecast(target)))


def _shown(row: TestSetRow) -> TestSet:
    return TestSet(id=row.id, drawn_at=row.drawn_at, drawn_by=row.drawn_by, **asdict(row.draw))
