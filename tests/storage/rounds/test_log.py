"""Rounds are requested once, finished in one transaction, and can be reconstructed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from core.config import RoundConfig, SelectionConfig
from core.errors import Conflict, InvalidInput, NotFound
from core.types import UNLABELED, PickReason, Progress, Selection
from storage.database.store import Store
from storage.projects.classes import add_class, merge_classes, rename_class
from storage.rounds.log import RoundLog
from tests.storage.pools import Made, add_items, make_pool


def selection(made: Made, *places: int, **fields) -> Selection:
    picks = np.array([made.items[place] for place in places], dtype=np.int64)
    fields.setdefault("scores", np.linspace(1, 0.5, len(picks), dtype=np.float32))
    return Selection(item_ids=picks, strategy="bico", **fields)


def test_a_round_is_joined_while_unfinished_and_numbered_in_the_project(store: Store) -> None:
    made, other = make_pool(store), make_pool(store, name="frogs")
    rounds = RoundLog(store, made.project_id)
    config = RoundConfig(seed=7, selection=SelectionConfig(strategy="badge", batch_size=3))
    first = rounds.request(config, by=made.ann, constraint={"share": 0.5})
    assert rounds.request(RoundConfig()) == first
    assert (first.number, first.status, first.strategy, first.config) == (1, "requested", "badge", config)
    assert RoundLog(store, other.project_id).request(RoundConfig()).number == 1
    rounds.start(first.id, "workflow 1")
    assert rounds.request(RoundConfig()).id == first.id
    rounds.fail(first.id, "It broke.", "Traceback\x00 \ud800")
    second = rounds.request(RoundConfig())
    assert second.number == 2
    assert rounds.get(first.id).log == "Traceback\\x00 \\ud800"
    assert [row.number for row in rounds.list()] == [2, 1]
    assert rounds.latest("failed").id == first.id  # type: ignore[union-attr]


def test_finishing_stores_arrays_picks_and_metrics_together(store: Store) -> None:
    made = make_pool(store)
    rounds = RoundLog(store, made.project_id)
    row = rounds.request(RoundConfig())
    rounds.start(row.id)
    reasons = tuple(PickReason(order=place, score=0.5, confidence=float("nan")) for place in (1, 2))
    probabilities = np.random.default_rng(0).random((10, 3), dtype=np.float32)
    done = rounds.finish(
        row.id,
        arrays={"probabilities": probabilities, "item_ids": np.array(made.items)},
        selection=selection(made, 4, 2, reasons=reasons, notes=("CG stopped",)),
        metrics={"accuracy": np.float32(0.5), "loss": float("inf"), "confusion": np.eye(2, dtype=int)},
        notes=["kept the old model"],
    )
    assert done.status == "finished" and done.finished_at is not None
    assert done.metrics == {"accuracy": 0.5, "loss": None, "confusion": [[1, 0], [0, 1]]}
    assert done.notes == ["CG stopped", "kept the old model", "loss was not a number and is left out."]
    stored = rounds.arrays(row.id, "probabilities")
    assert isinstance(stored, np.memmap) and np.array_equal(stored, probabilities)
    picks = rounds.picks(row.id)
    assert [(pick.position, pick.item_id) for pick in picks] == [(1, made.items[4]), (2, made.items[2])]
    assert picks[0].reason["order"] == 1 and picks[0].reason["confidence"] is None
    assert [item.id for item in made.pool.next_to_label(annotator=made.ann, limit=2)] == [made.items[4], made.items[2]]
    progress = made.pool.batch()
    assert (progress.number, progress.total, progress.done) == (1, 2, 0)
    made.pool.label(made.items[4], made.classes[0], annotator=made.ann)
    assert made.pool.batch().done == 1
    assert made.pool.history(made.items[4])[0].round_id == row.id
    rounds.set_hindsight(row.id, 1, {"was_right": True})
    assert rounds.picks(row.id)[0].hindsight == {"was_right": True}


def test_finishing_twice_changes_nothing_and_an_ended_round_stays_ended(store: Store) -> None:
    """A paused worker resumes after another worker has finished its round."""
    made = make_pool(store)
    rounds = RoundLog(store, made.project_id)
    row = rounds.request(RoundConfig())
    first = rounds.finish(row.id, arrays={}, selection=selection(made, 1), metrics={})
    assert rounds.finish(row.id, arrays={}, selection=selection(made, 2, 3), metrics={"x": 1}) == first
    assert len(rounds.picks(row.id)) == 1
    assert rounds.fail(row.id, "late").status == "finished"
    cancelled = rounds.cancel(rounds.request(RoundConfig()).id)
    assert cancelled.status == "cancelled"
    with pytest.raises(Conflict, match="Round 2 is already cancelled; request a new one"):
        rounds.finish(cancelled.id, arrays={}, selection=selection(made, 2), metrics={})
    assert rounds.picks(cancelled.id) == []


def test_a_refused_finish_leaves_the_round_running_and_stores_nothing(store: Store) -> None:
    """Messages name a round by its number in the project, not by its id."""
    RoundLog(store, make_pool(store, name="another project").project_id).request(RoundConfig())
    made = make_pool(store)
    rounds = RoundLog(store, made.project_id)
    row = rounds.request(RoundConfig())
    bad = selection(made, 1, 2, scores=np.array([1.0, np.nan]))
    with pytest.raises(InvalidInput, match="1 pick scores are not numbers"):
        rounds.finish(row.id, arrays={"map": np.zeros((2, 2))}, selection=bad, metrics={})
    assert rounds.get(row.id).status == "requested"
    with pytest.raises(NotFound, match="Round 1 has stored no map"):
        rounds.arrays(row.id, "map")


def test_a_running_round_is_cancelled_through_its_progress_report(store: Store) -> None:
    made = make_pool(store)
    rounds = RoundLog(store, made.project_id)
    row = rounds.start(rounds.request(RoundConfig()).id)
    assert rounds.progress(row.id, Progress("train", 1, 10, "loss 0.3", {"loss": float("nan")})) is False
    assert rounds.cancel(row.id).status == "running"
    assert rounds.progress(row.id, Progress("train", 2, 10)) is True
    assert rounds.mark_cancelled(row.id).status == "cancelled"
    assert [(step.done, step.note, step.metrics) for step in rounds.progress_of(row.id)] == [
        (1, "loss 0.3", {"loss": None}),
        (2, "", {}),
    ]


def test_the_snapshot_of_a_round_can_be_rebuilt(store: Store) -> None:
    """Later labels, items and class changes are not part of it."""
    made = make_pool(store, labels_per_item=1)
    robin, wren, owl = made.classes
    add_items(store, made.project_id, ["test"], held_out=True, truth_class_id=owl)
    made.pool.label(made.items[0], robin, annotator=made.ann)
    made.pool.label(made.items[1], wren, annotator=made.ann)
    row = RoundLog(store, made.project_id).request(RoundConfig())
    seen = made.pool.snapshot()
    assert row.label_sequence == seen.label_sequence and row.n_labeled == 2

    made.pool.undo(annotator=made.ann)
    made.pool.label(made.items[0], owl, annotator=made.ann)
    made.pool.label(made.items[5], owl, annotator=made.bob)
    rename_class(store, made.project_id, owl, "barn owl")
    merge_classes(store, made.project_id, robin, wren)
    add_class(store, made.project_id, "crow")
    add_items(store, made.project_id, ["later"])
    again = made.pool.snapshot(row)
    for field in dataclasses.fields(seen):
        before, after = getattr(seen, field.name), getattr(again, field.name)
        assert np.array_equal(before, after), field.name
    assert made.pool.snapshot().class_names == ("wren", "barn owl", "crow")
    replay = RoundLog(store, made.project_id)
    replay.cancel(row.id)
    copied = replay.request(row.config, replay_of=row.id)
    assert (copied.label_sequence, copied.class_event, copied.last_item_id) == (
        row.label_sequence, row.class_event, row.last_item_id,
    )  # fmt: skip


def test_a_snapshot_keeps_held_out_items_out_of_training(store: Store) -> None:
    made = make_pool(store, 3)
    truth = add_items(store, made.project_id, ["t1", "t2"], held_out=True, truth_class_id=made.classes[1])
    made.pool.label(truth[0], made.classes[2], annotator=made.ann)
    snapshot = made.pool.snapshot()
    assert list(snapshot.held_out_labels) == [UNLABELED] * 3 + [2, 1]
    assert list(snapshot.labels) == [UNLABELED] * 5
    assert list(snapshot.eligible) == [True] * 3 + [False] * 2


def test_an_empty_project_gives_an_empty_snapshot(store: Store, tmp_path: Path) -> None:
    made = make_pool(store, 0)
    snapshot = made.pool.snapshot()
    assert len(snapshot.item_ids) == 0 and snapshot.class_names == ("robin", "wren", "owl")
    assert made.pool.counts().total == 0
    assert made.pool.next_to_label(annotator=made.ann) == []


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_an_unreadable_array_names_its_round_and_what_to_do(sqlite_store: Store, how: str) -> None:
    made = make_pool(sqlite_store)
    log = RoundLog(sqlite_store, made.project_id)
    row = log.request(RoundConfig())
    log.start(row.id)
    log.finish(row.id, arrays={"probabilities": np.ones((4, 3))}, selection=selection(made, 1), metrics={})
    path = log.file(row.id, "probabilities")
    path.write_bytes(b"other") if how == "damaged" else path.unlink()
    with pytest.raises(NotFound, match=r"The probabilities of round 1 cannot be read\. .* start a new round"):
        log.arrays(row.id, "probabilities")
