"""Rounds in real worker processes: joined, killed, paused, cancelled, failed and repeated."""

from __future__ import annotations

import dataclasses
import random
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from app.rounds import requests as round_requests
from app.rounds import steps
from core.errors import StoreUnusable
from core.rounds.pipeline import run_round
from core.rows import MemoryRowCache
from core.runtime import Runtime
from storage.database.checks import lock_path
from storage.labeling.pool import Pool
from storage.rounds import workers
from storage.rounds.log import RoundLog, RoundRow
from storage.system.file_lock import file_lock
from tests.app.worker_processes import Crew, Place, WorkerProcess, quick_config, until
from tests.round_pools import Drawn, draw_project

# Slow: every test starts worker processes.
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]

TIMEOUT_SECONDS = 180.0  # seconds; a busy machine is slow, not wrong
HELD = ("snapshot", "prepare", "train", "predict", "propagate", "features", "select", "map")


@pytest.fixture
def drawn(sqlite_store) -> Drawn:
    drawn = draw_project(sqlite_store, n_items=45, n_held_out=6)
    drawn.label(drawn.item_ids[6:15])
    return drawn


def place(drawn: Drawn, **more) -> Place:
    return Place(home=drawn.store.home, **more)


def log_of(drawn: Drawn) -> RoundLog:
    return RoundLog(drawn.store, drawn.project_id)


def ask(drawn: Drawn, **selection) -> RoundRow:
    return round_requests.request_round(drawn.store, drawn.project_id, config=quick_config(**selection))


def ended(drawn: Drawn, round_id: int) -> RoundRow:
    log = log_of(drawn)
    until(lambda: not log.get(round_id).unfinished, TIMEOUT_SECONDS, f"the end of round {round_id}")
    return log.get(round_id)


def picks_of(drawn: Drawn, round_id: int) -> list[int]:
    return [pick.item_id for pick in log_of(drawn).picks(round_id)]


def begun(worker: WorkerProcess, stage: str, round_id: int | None = None) -> None:
    """The stages that have begun, of the named round or of any round."""
    line = f": {stage} begins" if round_id is None else f"round {round_id}: {stage} begins"
    until(lambda: worker.lines(line), TIMEOUT_SECONDS, f"the beginning of {stage}")


def first_round(drawn: Drawn, crew: Crew) -> tuple[WorkerProcess, RoundRow]:
    worker = crew.start(place(drawn))
    row = ended(drawn, ask(drawn).id)
    assert row.status == "finished", row.error + row.log
    return worker, row


def test_a_worker_gives_the_picks_of_the_pure_function_and_the_store_shows_all_of_it(drawn, crew):
    asked = ask(drawn)
    assert ask(drawn).id == asked.id  # a second request joins
    crew.start(place(drawn))
    row = ended(drawn, asked.id)
    assert row.status == "finished", row.error + row.log
    snapshot = drawn.pool.snapshot(row)
    read = drawn.store.media.read
    pure = run_round(snapshot, quick_config(), read=read, cache=MemoryRowCache(), runtime=Runtime.create(0, "cpu"))
    assert picks_of(drawn, row.id) == pure.selection.item_ids.tolist()
    log = log_of(drawn)
    np.testing.assert_array_equal(log.arrays(row.id, "item_ids"), snapshot.item_ids)
    np.testing.assert_allclose(log.arrays(row.id, "probabilities"), pure.probabilities, atol=1e-5)
    np.testing.assert_allclose(log.arrays(row.id, "map"), pure.map_points, atol=1e-3)
    assert row.metrics["accuracy"] == pure.metrics["accuracy"]
    assert set(row.metrics["seconds"]) == set(steps.ORDER) - {"encode", "decide", "check", "refine", "rival", "finish"}
    assert Pool(drawn.store, drawn.project_id).batch().total == 4
    queue = drawn.pool.next_to_label(annotator=drawn.annotator, limit=4)
    assert [item.id for item in queue] == picks_of(drawn, row.id)  # the picks are served first, in their order
    shown = round_requests.view(drawn.store, drawn.project_id)
    assert shown is not None and shown.interruptions == 0 and shown.curves["loss"]


def test_a_round_killed_in_any_stage_resumes_and_gives_the_same_picks(drawn, crew):
    """Kill -9 at a random moment of every stage; each replay is compared with the undisturbed round. The worker that
    finishes a replay is the one that is killed in the next."""
    worker, original = first_round(drawn, crew)
    worker.kill()
    moments = random.Random(7)
    victim = crew.start(place(drawn, slow={steps.ORDER[0]: 0.3}))
    for stage, following in zip(steps.ORDER, [*steps.ORDER[1:], ""], strict=True):
        row = round_requests.request_replay(drawn.store, drawn.project_id, original.id)
        begun(victim, stage, row.id)
        time.sleep(moments.uniform(0.0, 0.6))
        victim.kill()
        heir = crew.start(place(drawn, slow={following: 0.3} if following else {}))
        row = ended(drawn, row.id)
        assert row.status == "finished", (stage, row.error, row.log)
        assert row.metrics["replay"]["same"], (stage, row.notes)
        done_before = set(steps.ORDER[: steps.ORDER.index(stage)])
        redone = {line.split(": ")[1].removesuffix(" begins") for line in heir.lines(" begins")}
        assert not redone & done_before, (stage, redone)  # finished stages are not computed again
        victim = heir
    labels = drawn.pool.counts().labeled
    assert labels == 9  # and no label was touched


def states(worker: WorkerProcess) -> set[str]:
    """The states of the process's threads, as the kernel reports them."""
    tasks = Path(f"/proc/{worker.process.pid}/task").glob("*/stat")
    return {task.read_text().rpartition(")")[2].split()[0] for task in tasks}


def pause(worker: WorkerProcess, drawn: Drawn) -> None:
    """Pause between two writes: a process that is stopped during a write keeps the SQLite file locked for all
    others."""

    home = drawn.store.home

    def free(name: str) -> bool:
        with closing(sqlite3.connect(home / name, timeout=0, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
            return True

    def all_free() -> bool:
        try:
            with file_lock(lock_path(drawn.store.url), "The write lock", seconds=0):
                return free("winnow.sqlite") and free("engine.sqlite")
        except (StoreUnusable, sqlite3.OperationalError):
            return False

    def paused() -> bool:
        worker.signal(signal.SIGSTOP)
        until(lambda: states(worker) == {"T"}, TIMEOUT_SECONDS, "the stop")  # a system call of a thread ends first
        if all_free():
            return True
        worker.signal(signal.SIGCONT)
        return False

    until(paused, TIMEOUT_SECONDS, "a moment without a write")


def stages_of_living(drawn: Drawn) -> list[str]:
    return [worker.stage for worker in workers.living_workers(drawn.store, 1.5)]


def test_a_paused_worker_is_replaced_and_writes_nothing_when_it_resumes(drawn, crew, tmp_path):
    """SIGSTOP ... SIGCONT, like a laptop that sleeps."""
    asked, gate = ask(drawn), tmp_path / "gate"
    sleeper = crew.start(place(drawn, gates={"train": gate}, stale_seconds=1.5))
    begun(sleeper, "train")
    pause(sleeper, drawn)
    heir = crew.start(place(drawn, stale_seconds=1.5))
    row = ended(drawn, asked.id)
    assert row.status == "finished"
    until(lambda: heir.lines(": finish ends"), TIMEOUT_SECONDS, "the end of the last stage")
    finished_at, picks = row.finished_at, picks_of(drawn, row.id)
    n_steps = len(log_of(drawn).progress_of(row.id))
    shown = round_requests.view(drawn.store, drawn.project_id)
    assert shown is not None and shown.interruptions == 1
    sleeper.signal(signal.SIGCONT)
    until(lambda: stages_of_living(drawn) == ["", ""], TIMEOUT_SECONDS, "the resumed worker becoming idle")
    after = log_of(drawn).get(asked.id)
    assert (after.finished_at, picks_of(drawn, asked.id)) == (finished_at, picks)
    assert len(log_of(drawn).progress_of(row.id)) == n_steps
    assert not sleeper.lines(": train ends") and not sleeper.lines(": select begins")
    heir.kill()
    gate.touch()
    replay = round_requests.request_replay(drawn.store, drawn.project_id, row.id)  # the resumed worker runs
    assert ended(drawn, replay.id).metrics["replay"]["same"]


def test_a_round_can_be_cancelled_in_every_stage_within_seconds_and_the_last_picks_stay(drawn, crew, tmp_path):
    """Every stage is held until it is cancelled: its progress reports end it. One worker has all rounds cancelled."""
    worker, first = first_round(drawn, crew)
    worker.kill()
    before = picks_of(drawn, first.id)
    gates = {stage: tmp_path / stage for stage in HELD}
    worker = crew.start(place(drawn, gates=gates))
    for stage in HELD:
        asked = ask(drawn)
        begun(worker, stage, asked.id)
        round_requests.cancel_round(drawn.store, drawn.project_id, asked.id)
        assert ended(drawn, asked.id).status == "cancelled", stage
        gates[stage].touch()
    assert Pool(drawn.store, drawn.project_id).batch().round_id == first.id
    assert picks_of(drawn, first.id) == before


def test_a_round_that_has_not_started_is_cancelled_at_once_and_never_run(drawn, crew):
    asked = ask(drawn)
    assert round_requests.cancel_round(drawn.store, drawn.project_id, asked.id).status == "cancelled"
    worker, second = first_round(drawn, crew)
    assert second.number == asked.number + 1
    assert not worker.lines(f"round {asked.id}:")


def test_a_round_that_fails_states_the_reason_and_changes_neither_model_nor_picks_nor_worker(drawn, crew):
    """A loss that is not a number; too little memory."""
    worker, first = first_round(drawn, crew)
    config = quick_config()
    wild = dataclasses.replace(config, training=dataclasses.replace(config.training, learning_rate=1e30, warm_steps=40))
    row = ended(drawn, round_requests.request_round(drawn.store, drawn.project_id, config=wild).id)
    assert row.status == "failed" and "not a number" in row.error and "\n" not in row.error
    assert "TrainingFailed" in row.log
    greedy = quick_config(n_views=1_000_000)  # 770 MB of views for each labeled item
    worker.kill()
    worker = crew.start(place(drawn, memory_bytes=500 << 20))
    row = ended(drawn, round_requests.request_round(drawn.store, drawn.project_id, config=greedy).id)
    assert row.status == "failed" and row.error.startswith("Not enough memory: ") and "iB" in row.error
    assert log_of(drawn).latest("finished").id == first.id
    assert Pool(drawn.store, drawn.project_id).batch().round_id == first.id
    assert not round_requests.request_automatic(drawn.store)  # after a failure a person decides
    assert ended(drawn, ask(drawn).id).status == "finished"  # in the same worker


def test_repeated_deaths_of_workers_in_one_stage_end_the_round_with_a_message(drawn, crew, tmp_path):
    """Like a process that the operating system kills because it uses too much memory."""
    asked = ask(drawn)
    for _ in range(5):
        worker = crew.start(place(drawn, gates={"prepare": tmp_path / "never there"}))
        begun(worker, "prepare")
        until(lambda: any(s.stage == "start" for s in log_of(drawn).progress_of(asked.id)), TIMEOUT_SECONDS)
        worker.kill()
    crew.start(place(drawn))
    row = ended(drawn, asked.id)
    assert row.status == "failed" and row.error.startswith("5 workers were lost in the stage prepare")


def test_labels_given_while_a_round_runs_wait_for_the_next_and_a_done_batch_starts_it(drawn, crew, tmp_path):
    from storage.projects.projects import update_project

    asked = ask(drawn)
    worker = crew.start(place(drawn, gates={"train": tmp_path / "gate"}))
    begun(worker, "train")
    drawn.label(drawn.item_ids[20:23])
    (tmp_path / "gate").touch()
    row = ended(drawn, asked.id)
    assert row.metrics["n_labeled"] == 9
    shown = round_requests.view(drawn.store, drawn.project_id)
    assert shown is not None and shown.labels_since == 3
    # The preset would train for longer, and lay out its map by umap, which takes seconds to load.
    short = {"training.steps": 8, "training.warm_steps": 4, "training.bank_views": 0, "map.n_neighbors": 500}
    settings = dataclasses.replace(drawn.settings, automatic_rounds=True, preset="smoke", changes=short)
    update_project(drawn.store, drawn.project_id, settings=settings)
    waiting = [i for i in picks_of(drawn, row.id) if i not in drawn.item_ids[20:23]]
    drawn.label(waiting)
    until(lambda: log_of(drawn).latest().id != row.id, TIMEOUT_SECONDS, "the automatic round")
    second = ended(drawn, log_of(drawn).latest().id)
    assert second.status == "finished" and second.metrics["n_labeled"] == 12 + len(waiting)
    assert second.metrics["previous_round"] == row.id
    hindsight = [pick.hindsight for pick in log_of(drawn).picks(row.id)]
    assert all(one["round"] == second.number and one["guess_was_wrong"] in (True, False) for one in hindsight)


def test_a_round_survives_the_loss_of_the_engine_file(drawn, crew, tmp_path):
    asked = ask(drawn)
    worker = crew.start(place(drawn, gates={"train": tmp_path / "never there"}))
    begun(worker, "train")
    worker.kill()
    (drawn.store.home / "engine.sqlite").unlink()
    crew.start(place(drawn))
    assert ended(drawn, asked.id).status == "finished"


def test_a_round_that_another_version_began_starts_again_after_the_upgrade(drawn, crew, tmp_path):
    """Steps of another version are not read; the round is computed again from its row, and gives the same picks."""
    worker, original = first_round(drawn, crew)
    worker.kill()
    replay = round_requests.request_replay(drawn.store, drawn.project_id, original.id)
    old = crew.start(place(drawn, gates={"predict": tmp_path / "never there"}, version="1"))
    begun(old, "predict")
    new = crew.start(place(drawn))
    until(lambda: len(workers.living_workers(drawn.store)) == 2, TIMEOUT_SECONDS, "both workers")
    time.sleep(0.5)
    assert not new.lines("Started again")  # a running worker keeps its round, for any version
    old.kill()
    row = ended(drawn, replay.id)
    assert row.status == "finished" and row.metrics["replay"]["same"], (row.error, row.notes)
    assert new.lines(f"Started again, because another version of the program began them: round-{replay.id}")
    assert new.lines(": snapshot begins") and new.lines(": train begins")


def test_other_strategies_can_be_compared_on_a_finished_round(drawn, crew):
    _, row = first_round(drawn, crew)
    round_requests.request_comparison(
        drawn.store, drawn.project_id, row.id, ["bico", "uniform", "consistency", "k_center"]
    )
    answer = until(
        lambda: (c := round_requests.comparison(drawn.store, row.id)) and c.status != "requested" and c,
        TIMEOUT_SECONDS,
        "an answer",
    )
    assert answer.status == "finished", answer.error
    assert answer.picks["bico"] == picks_of(drawn, row.id) and answer.overlap["bico"] == 4
    assert all(len(item_ids) == 4 for item_ids in answer.picks.values())
    round_requests.request_comparison(drawn.store, drawn.project_id, row.id, ["no such strategy"])
    answer = until(
        lambda: (c := round_requests.comparison(drawn.store, row.id)) and c.status != "requested" and c,
        TIMEOUT_SECONDS,
        "an answer",
    )
    assert answer.status == "failed" and "no such strategy" in answer.error
