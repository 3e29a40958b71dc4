"""A SQLite store is moved to PostgreSQL completely, also if the first run was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import func, select

from core.config import RoundConfig
from core.errors import Conflict
from core.types import Selection
from storage.database import move as store_move
from storage.database.schema import LabelEvent
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.classes import add_class, merge_classes
from storage.rounds import simulations
from storage.rounds.log import RoundLog
from tests.storage.pools import Made, add_items, event, make_pool

pytestmark = pytest.mark.postgres


def lived_in(store: Store, n_items: int = 40) -> Made:
    """Labels, an undo, a merge into a later class, a round with arrays and picks, notes with odd characters."""
    made = make_pool(store, n_items)
    late = add_class(store, made.project_id, "late 🦉 '=x").id
    merge_classes(store, made.project_id, made.classes[0], late, by=made.ann)
    for item in made.items[:10]:
        made.pool.label(item, made.classes[0], annotator=made.ann, note="ü\n\"'", seconds=0.1 + 0.2)
    made.pool.undo(annotator=made.ann)
    made.pool.apply([event(made.items[11], "skip"), event(made.items[12], "flag")], annotator=made.bob)
    rounds = RoundLog(store, made.project_id)
    for _ in range(2):
        row = rounds.request(RoundConfig(), by=made.ann, replay_of=None)
        picks = Selection(item_ids=np.array(made.items[20:23]), scores=np.array([0.1, 1 / 3, 2.0]), strategy="bico")
        rounds.finish(row.id, arrays={"map": np.arange(8.0).reshape(4, 2)}, selection=picks, metrics={"accuracy": 0.1})
    rounds.request(RoundConfig(seed=2), replay_of=row.id)
    simulation = simulations.request(store, made.project_id, {"seeds": 1}, {"preset": "smoke"})
    simulations.add(store, simulation, {"strategy": "bico", "seed": 0, "round": 0, "accuracy": 1 / 3})
    return made


def test_a_moved_store_has_the_same_content_and_can_be_used(
    sqlite_store: Store, postgres_url: str, tmp_path: Path
) -> None:
    made = lived_in(sqlite_store)
    made.pool.next_to_label(annotator=made.ann, limit=3)
    with Store.open(postgres_url, tmp_path / "elsewhere") as target:
        report = store_move.move(sqlite_store, target)
        assert report.tables["label_events"].n_rows == 13
        assert report.n_files == 1
        moved = Pool(target, made.project_id)
        assert moved.counts() == made.pool.counts()
        assert moved.items(limit=None) == made.pool.items(limit=None)
        assert moved.history(made.items[0]) == made.pool.history(made.items[0])
        before, after = made.pool.snapshot(), moved.snapshot()
        assert np.array_equal(before.labels, after.labels) and before.class_names == after.class_names
        newest = RoundLog(target, made.project_id).latest("finished")
        assert newest is not None
        assert np.array_equal(RoundLog(target, made.project_id).arrays(newest.id, "map"), np.arange(8.0).reshape(4, 2))

        assert moved.label(made.items[30], made.classes[1], annotator=made.bob).accepted, (
            "new ids continue after the copied ones"
        )
        [simulated] = simulations.listed(target, made.project_id)
        assert simulations.records(target, simulated.id)[0]["accuracy"] == 1 / 3
        assert simulations.request(target, made.project_id, {"seeds": 1}, {}) > simulated.id
        assert moved.history(made.items[30])[0].sequence > 13
        add_items(target, made.project_id, ["new after the move"])


def test_moving_twice_changes_nothing_and_brings_what_was_added(
    sqlite_store: Store, postgres_url: str, tmp_path: Path
) -> None:
    made = lived_in(sqlite_store)
    with Store.open(postgres_url, tmp_path / "elsewhere") as target:
        first = store_move.move(sqlite_store, target)
        assert store_move.move(sqlite_store, target).tables == first.tables
        made.pool.label(made.items[31], made.classes[1], annotator=made.bob)
        made.pool.undo(annotator=made.ann)
        store_move.move(sqlite_store, target)
        assert Pool(target, made.project_id).counts() == made.pool.counts()
        assert Pool(target, made.project_id).rebuild() == 0


def test_a_target_with_other_projects_is_refused(sqlite_store: Store, postgres_url: str, tmp_path: Path) -> None:
    lived_in(sqlite_store)
    with Store.open(postgres_url, tmp_path / "elsewhere") as target:
        other = make_pool(target, 3, name="frogs")
        with pytest.raises(Conflict, match="already holds 1 project that did not come from this store"):
            store_move.move(sqlite_store, target)
        assert other.pool.counts().total == 3


MOVER = """
import sys, time
from pathlib import Path
from storage.database import move as moving
from storage.database.store import Store
moving.BLOCK = 20
def tell(progress):
    if progress.note != "label_events":
        print(progress.stage, progress.note, flush=True)
        return
    write_block = moving._write_block
    def write_some_and_wait(target, table, block):
        write_block(target, table, block[:5])
        print("some label events", flush=True)
        time.sleep(600)  # it never ends by itself, however late the kill comes
    moving._write_block = write_some_and_wait
with Store.open(home=Path(sys.argv[1])) as source, Store.open(sys.argv[2], Path(sys.argv[3])) as target:
    moving.move(source, target, tell)
"""


def test_a_killed_move_is_completed_by_running_it_again(sqlite_store: Store, postgres_url: str, tmp_path: Path) -> None:
    """Kill -9 while label events are being copied."""
    made = lived_in(sqlite_store, 300)
    elsewhere = tmp_path / "elsewhere"
    Store.open(postgres_url, elsewhere).close()
    command = [sys.executable, "-c", MOVER, str(sqlite_store.home), postgres_url, str(elsewhere)]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "some label events\n":
                break
        process.send_signal(signal.SIGKILL)
    with Store.open(postgres_url, elsewhere) as target:
        with target.read() as connection:
            assert connection.execute(select(func.count()).select_from(LabelEvent)).scalar_one() == 5
        report = store_move.move(sqlite_store, target)
        with sqlite_store.read() as old, target.read() as new:
            for table in store_move.moved_tables():
                assert store_move.table_sum(old, table) == store_move.table_sum(new, table) == report.tables[table.name]
        assert Pool(target, made.project_id).counts() == made.pool.counts()
