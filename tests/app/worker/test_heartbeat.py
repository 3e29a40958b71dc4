"""The heartbeat: progress is throttled, cancellation arrives, and a superseded worker stops writing."""

from __future__ import annotations

import time

import pytest

from app.worker.error_messages import sentence
from app.worker.heartbeat import ActivityCallbacks, Heartbeat, Superseded
from core.errors import Cancelled, TrainingFailed
from core.types import Progress
from storage.rounds import workers
from tests.app.worker_processes import until


class Answers:
    def __init__(self) -> None:
        self.written: list[Progress] = []
        self.cancelled = False
        self.owner = True

    def callbacks(self) -> ActivityCallbacks:
        return ActivityCallbacks(
            owns=lambda _: self.owner,
            is_cancelled=lambda _: self.cancelled,
            write=lambda _, progress: self.written.append(progress),
        )


@pytest.fixture
def answers():
    return Answers()


@pytest.fixture
def heartbeat(sqlite_store, answers):
    workers.register(sqlite_store, "me", host="h", pid=1, device="cpu")
    heartbeat = Heartbeat(sqlite_store, "me", answers.callbacks(), interval=0.05)
    yield heartbeat
    heartbeat.end()


def test_ten_thousand_updates_a_second_become_a_few_rows_and_the_last_one_counts(heartbeat, answers):
    """Progress is written at a bounded rate, regardless of how often it is reported."""
    heartbeat.start()
    began, worked = time.perf_counter(), time.thread_time()
    with heartbeat.activity("w", 1, "train") as activity:
        for step in range(20_000):
            activity.report(Progress("train", step, 20_000, metrics={"loss": 1.0 / (step + 1)}))
        worked = time.thread_time() - worked
        until(lambda: answers.written and answers.written[-1].done == 19_999, what="the last one")
    assert worked < 2.0  # 10,000 a second of this thread's own time, with a margin
    assert len(answers.written) <= (time.perf_counter() - began) / 0.05 + 8


def test_the_last_point_of_a_curve_is_not_lost_among_plain_progress(heartbeat, answers):
    with heartbeat.activity("w", 1, "train") as activity:
        heartbeat.tick()
        answers.written.clear()
        activity.report(Progress("train", 5, 10, metrics={"loss": 0.5}))
        activity.report(Progress("train", 6, 10))
        heartbeat.tick()
        activity.report(Progress("train", 7, 10))
        heartbeat.tick()
    assert [(p.done, dict(p.metrics)) for p in answers.written] == [(5, {"loss": 0.5}), (6, {}), (7, {})]


def test_a_cancelled_round_stops_at_its_next_report(heartbeat, answers):
    """`report` raises `Cancelled` once a person has cancelled the round."""
    with heartbeat.activity("w", 1, "train") as activity:
        activity.report(Progress("train", 1, 10))
        answers.cancelled = True
        heartbeat.tick()
        with pytest.raises(Cancelled):
            activity.report(Progress("train", 2, 10))


def test_a_worker_that_was_superseded_stops_and_writes_nothing_more(heartbeat, answers):
    with heartbeat.activity("w", 1, "train") as activity:
        heartbeat.tick()
        answers.owner = False
        activity.report(Progress("train", 5, 10))
        heartbeat.tick()
        with pytest.raises(Superseded):
            activity.report(Progress("train", 6, 10))
    assert [progress.done for progress in answers.written] == [0]
    with pytest.raises(Superseded), heartbeat.activity("w", 1, "select"):
        pytest.fail("a superseded worker began another stage")


def test_the_worker_row_shows_the_stage(sqlite_store, heartbeat):
    with heartbeat.activity("w", None, "features"):
        heartbeat.tick()
        assert workers.list_workers(sqlite_store)[0].stage == "features"
    heartbeat.tick()
    assert workers.list_workers(sqlite_store)[0].stage == ""


def test_a_store_that_is_briefly_unavailable_stops_nothing(heartbeat, answers):
    away = [OSError("the database went away")]

    def is_cancelled(_: int) -> bool:
        if away:
            raise away[0]
        return answers.cancelled

    heartbeat.callbacks = ActivityCallbacks(
        owns=lambda _: True, is_cancelled=is_cancelled, write=answers.callbacks().write
    )
    with heartbeat.activity("w", 1, "train") as activity:
        heartbeat.tick()
        activity.report(Progress("train", 5, 10))
        away.clear()
        heartbeat.tick()
        assert answers.written[-1].done == 5
        answers.cancelled = True
        heartbeat.tick()
        with pytest.raises(Cancelled):
            activity.report(Progress("train", 6, 10))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TrainingFailed("The loss is not a number at step 12."), "The loss is not a number at step 12."),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 "
                         "bytes. Error code 12 (Cannot allocate memory)"),
            "Not enough memory: 4,096 MiB more were needed.",
        ),
        (MemoryError("Unable to allocate 3.20 GiB for an array with shape (100, 2)"), "Not enough memory: Unable to"),
        (ValueError("first line\nsecond line"), "ValueError: first line"),
        (KeyError(), "KeyError"),
    ],
)  # fmt: skip
def test_a_failure_is_one_sentence(error, expected):
    """Training that failed, lack of memory and faults of the program are reported in one line."""
    assert sentence(error).startswith(expected)
    assert "\n" not in sentence(error)
