"""Summaries that are worse than random are never called done."""

from __future__ import annotations

import pytest

from app.jobs.jobs import Job, JobView
from app.views.cards.summary_verdict import FEW_LABELS, few_labels, verdict
from app.web.screens.summarize import state_words


def measured(*pairs: tuple[float, float]) -> dict[str, object]:
    return {
        "n_test": 90,
        "accuracy": [{"summary": one, "uniform_mean": mean, "uniform_deviation": 0.02} for one, mean in pairs],
    }


@pytest.mark.parametrize(
    ("result", "kind", "words"),
    [
        (measured((0.8, 0.7)), "better", "done"),
        (measured((0.71, 0.7)), "no better", "no better than random"),
        (measured((0.6, 0.7)), "worse", "worse than random"),
        (measured((0.8, 0.7), (0.6, 0.7)), "worse", "worse than random"),
    ],
)
def test_the_model_with_the_least_advantage_decides(result, kind, words):
    job = Job(id="1", title="Summary", project_id=1, started_at=0.0)
    assert verdict(result)[0] == kind
    assert state_words(JobView(job=job, status="finished", result=result)) == words
    assert state_words(JobView(job=job, status="failed")) == ""


def test_a_summary_worse_than_random_is_reported_with_its_numbers_and_advice():
    sentence = verdict(measured((0.6, 0.7)))[1]
    assert "60.0 % against 70.0 ± 2.0 % on 90 items" in sentence and "export all labels" in sentence


def test_few_labels_are_warned_about_with_the_stated_number():
    assert few_labels(FEW_LABELS) == "" and str(FEW_LABELS) in few_labels(30)
