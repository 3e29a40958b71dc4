"""Requesting rounds and following them, from rows alone: no worker, no torch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from app.rounds import requests as round_requests
from app.rounds.timing import estimates
from app.worker.worker import is_dead, machine, new_worker_id
from core.config import RoundConfig, preset
from core.rounds.stage_names import NAMES
from core.types import PickReason, Progress, Selection
from storage.projects.projects import create_project
from storage.rounds import workers
from storage.rounds.log import RoundLog
from tests.app.worker_processes import quick_config
from tests.round_pools import Drawn, draw_project


def finish(drawn: Drawn, item_ids: list[int], config: RoundConfig | None = None, encoded: int = 0, **metrics) -> int:
    """A finished round with these picks, written without running it."""
    log = RoundLog(drawn.store, drawn.project_id)
    row = log.request(config or quick_config())
    log.start(row.id)
    if encoded:
        log.progress(row.id, Progress("encode", encoded, encoded))
    log.finish(
        row.id,
        arrays={},
        selection=Selection(
            item_ids=np.array(item_ids),
            scores=np.ones(len(item_ids), np.float32),
            strategy="bico",
            reasons=tuple(PickReason(order=i + 1, score=1.0) for i in range(len(item_ids))),
        ),
        metrics=metrics,
    )
    return row.id


@pytest.fixture
def drawn(sqlite_store) -> Drawn:
    return draw_project(sqlite_store, n_items=30, automatic_rounds=True)


@pytest.mark.slow
def test_requesting_a_round_loads_no_torch():
    """The page process requests and follows rounds; jobs run in a spawned process."""
    code = (
        "import sys, app.rounds.requests, app.rounds.timing.estimates\nassert not {'torch', 'dbos'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_projects_settings_become_the_rounds(drawn):
    settings = dataclasses.replace(drawn.settings, strategy="badge", batch_size=7, seed=5, kernel_network="fnn")
    config = round_requests.round_config(settings, "image")
    assert (config.seed, config.selection.strategy, config.selection.batch_size) == (5, "badge", 7)
    assert (config.kernel.network, config.media.channels, config.preset) == ("fnn", 3, "smoke")
    assert round_requests.round_config(settings, "audio").media.channels == 1


def test_the_first_automatic_round_comes_with_a_batch_of_labels_and_the_next_with_a_batch_of_picks(drawn):
    store, project_id = drawn.store, drawn.project_id
    drawn.label(drawn.item_ids[:3])
    assert round_requests.request_if_batch_done(store, project_id) is None
    drawn.label(drawn.item_ids[3:4])
    first = round_requests.request_if_batch_done(store, project_id)
    assert first is not None
    round_requests.cancel_round(store, project_id, first.id)
    assert round_requests.request_if_batch_done(store, project_id) is None  # a person stopped it; a person starts it
    finish(drawn, drawn.item_ids[10:12])
    drawn.label(drawn.item_ids[10:11])
    assert round_requests.request_automatic(store) == []
    drawn.label(drawn.item_ids[11:12])
    assert [row.project_id for row in round_requests.request_automatic(store)] == [project_id]


def test_no_round_is_requested_when_everything_is_labeled_or_automatic_rounds_are_off(drawn):
    from storage.projects.projects import update_project

    finish(drawn, drawn.item_ids[10:12])
    drawn.label(drawn.item_ids)
    assert round_requests.request_if_batch_done(drawn.store, drawn.project_id) is None
    settings = dataclasses.replace(drawn.settings, automatic_rounds=False)
    update_project(drawn.store, drawn.project_id, settings=settings)
    assert round_requests.request_if_batch_done(drawn.store, drawn.project_id) is None


def test_the_view_shows_stage_pace_curves_and_interruptions_from_rows_alone(drawn):
    """A restarted server shows the same."""
    store, project_id = drawn.store, drawn.project_id
    assert round_requests.view(store, project_id) is None
    row = round_requests.request_round(store, project_id)
    shown = round_requests.view(store, project_id)
    assert shown is not None and shown.waiting_for_worker and shown.seconds_left and shown.seconds_left > 0
    log = RoundLog(store, project_id)
    log.start(row.id)
    for step in (Progress("start", 1, 1, "w1"), Progress("start", 2, 1, "w2")):
        log.progress(row.id, step)
    log.progress(row.id, Progress("train", 10, 100, metrics={"loss": 2.0}))
    log.progress(row.id, Progress("train", 60, 100, metrics={"loss": 1.0}))
    shown = round_requests.view(store, project_id, row.id)
    assert shown is not None
    assert (shown.stage, shown.done, shown.total, shown.interruptions) == ("train", 60, 100, 1)
    assert shown.curves == {"loss": [(10, 2.0), (60, 1.0)]}
    assert shown.stage_seconds_left is None and shown.seconds_left is None  # two rows at once have no rate


def test_an_estimate_follows_the_rule_until_a_round_has_been_measured(drawn):
    store, project_id = drawn.store, drawn.project_id
    config = quick_config()
    by_rule = estimates.estimate(store, project_id, config)
    assert by_rule.source == "rule" and set(by_rule.seconds) == set(NAMES)
    larger = dataclasses.replace(config, training=dataclasses.replace(config.training, steps=8_000))
    assert estimates.estimate(store, project_id, larger).total > 100 * 0.03 + by_rule.total
    finish(drawn, drawn.item_ids[:2], seconds={"train": 10.0, "map": 2.0}, n_items=15)
    measured = estimates.estimate(store, project_id, config)
    assert measured.source == "last round"
    assert measured.seconds["train"] == pytest.approx(10.0) and measured.seconds["map"] == pytest.approx(4.0)
    assert estimates.estimate(store, project_id, RoundConfig()).source == "rule"  # another kind of round


def test_refinement_is_estimated_by_its_steps_and_only_for_clips(drawn):
    laptop = preset("laptop")
    steps = laptop.training.refine_steps
    by_rule = estimates._by_rule(laptop, 3_000, "audio")
    assert 0.2 * by_rule["train"] < by_rule["refine"] < 0.4 * by_rule["train"]
    assert estimates._by_rule(laptop, 3_000, "image")["refine"] == 0
    without = dataclasses.replace(laptop, similarity=dataclasses.replace(laptop.similarity, neighbors=0))
    assert estimates._by_rule(without, 3_000, "audio")["refine"] == 0
    store, clips = drawn.store, create_project(drawn.store, "clips", "audio", ("a", "b"))
    other = dataclasses.replace(drawn, project_id=clips.id)
    finish(other, [], config=unrefined(laptop), seconds={"train": 60.0, "propagate": 2.0}, n_items=15)
    before = estimates.estimate(store, clips.id, laptop).seconds["refine"]
    assert before == pytest.approx(60 * by_rule["refine"] / by_rule["train"])  # by the seconds of training
    finish(other, [], config=laptop, seconds={"train": 60.0, "refine": 25.0}, n_items=15)
    assert estimates.estimate(store, clips.id, laptop).seconds["refine"] == pytest.approx(25.0)
    twice = dataclasses.replace(laptop, training=dataclasses.replace(laptop.training, refine_steps=2 * steps))
    assert estimates.estimate(store, clips.id, twice).seconds["refine"] == pytest.approx(50.0)


def unrefined(config: RoundConfig) -> RoundConfig:
    return dataclasses.replace(config, training=dataclasses.replace(config.training, refine_steps=0))


def test_what_is_computed_once_per_item_is_expected_for_new_items_only(drawn):
    """Of an encoder round that encoded 15 items in 30 s, and another one of 20 items that encoded 5 in 10 s."""
    store, project_id = drawn.store, drawn.project_id
    config = preset("encoder")
    assert estimates.estimate(store, project_id, config).source == "rule"
    finish(drawn, drawn.item_ids[:2], config=config, seconds={"encode": 30.0, "train": 4.0}, n_items=15)
    first = estimates.estimate(store, project_id, config)
    assert first.source == "last round"
    assert first.seconds["encode"] == pytest.approx(30 * 0.05 + 15 * 2.0) and first.seconds["train"] == 8.0
    finish(drawn, drawn.item_ids[2:4], config=config, seconds={"encode": 1.0, "train": 4.0}, n_items=30)
    assert estimates.estimate(store, project_id, config).seconds["encode"] == pytest.approx(1.0)


def test_an_encoder_is_estimated_by_the_rate_that_another_project_measured(drawn):
    config = preset("encoder")
    by_rule = estimates.estimate(drawn.store, drawn.project_id, config).seconds["encode"]
    other = draw_project(drawn.store, 4, name="other")
    finish(other, other.item_ids[:1], config=config, seconds={"encode": 120.0}, n_items=60)
    assert estimates.estimate(drawn.store, drawn.project_id, config).seconds["encode"] == by_rule, "it has no counts"
    finish(other, other.item_ids[1:2], config=config, encoded=60, seconds={"encode": 120.0}, n_items=60)
    measured = estimates.estimate(drawn.store, drawn.project_id, config)
    assert measured.source == "rule" and measured.seconds["encode"] == pytest.approx(2.0 * 30)


def test_a_region_is_kept_as_an_artifact(drawn):
    constraint = round_requests.region_constraint(drawn.store, drawn.item_ids[:5], 0.5)
    row = round_requests.request_round(drawn.store, drawn.project_id, constraint=constraint)
    assert row.constraint["share"] == 0.5 and row.constraint["region"]["shape"] == [5]


def test_a_process_of_this_machine_that_ended_counts_as_dead_at_once(sqlite_store):
    import os

    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    for worker_id, pid in ((f"{machine()}-{done.pid}-x", done.pid), (new_worker_id(), os.getpid()), ("other-1-x", 1)):
        workers.register(sqlite_store, worker_id, host="h", pid=pid, device="cpu")
    dead = [is_dead(worker, machine()) for worker in workers.list_workers(sqlite_store)]
    assert sorted(dead) == [False, False, True]


def test_the_estimate_of_label_propagation_follows_the_measured_cost_of_a_pair(drawn):
    """0.62 ms of CPU time per clip with 200 candidates, one thread (`benchmarks.scaling`); two cores share it. Below
    200 clips each is compared with all others, above 30,000 the graph does not grow, and pictures have none."""
    config = preset("laptop")
    seconds = {n: estimates._by_rule(config, n, "audio")["propagate"] for n in (100, 2_000, 4_000, 30_000, 10**6)}
    assert seconds[4_000] - seconds[2_000] == pytest.approx(2_000 * 0.62e-3 / 2, rel=0.1)
    assert seconds[100] < 1.1 and seconds[10**6] == seconds[30_000]
    assert estimates._by_rule(config, 2_000, "image")["propagate"] == 0.0
