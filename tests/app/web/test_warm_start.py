"""The project that was labeled last is in memory before its first request."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from app.views import predictions, tile_order
from app.views.similarity import neighbors
from app.web.warm_start import read_last_labeled, start_reading
from storage.labeling.browsing import item_columns
from storage.labeling.state_arrays import states_in_memory
from storage.projects.projects import get_project
from tests.app.finished_rounds import finish_round
from tests.storage.pools import make_pool


def test_the_project_labeled_last_is_read_and_no_other(sqlite_store):
    others, last = make_pool(sqlite_store, 6, name="first"), make_pool(sqlite_store, 8, name="second")
    for made in (others, last):
        finish_round(sqlite_store, get_project(sqlite_store, made.project_id), picks=[0])
        made.pool.label(made.items[1], made.classes[0], annotator=made.ann)
    assert read_last_labeled(sqlite_store) == last.project_id
    states = states_in_memory(sqlite_store, last.project_id)
    assert states is not None and states.n_items == 8
    assert states_in_memory(sqlite_store, others.project_id) is None
    assert [key for key in predictions._cached if key[0] == sqlite_store.url] == [(sqlite_store.url, 2)]
    assert [key for key in neighbors._indexes if key[0] == sqlite_store.url] == [(sqlite_store.url, 2, 0)]
    kept = tile_order._kept[sqlite_store.url, last.project_id]
    assert set(kept.orders) == {"sure", "unsure", "queue", "name"} and kept.predicted is not None
    names = item_columns._kept[sqlite_store]
    assert names.project_id == last.project_id and len(names.names) == 8 and len(names._by_name) == 1


def test_a_store_without_labels_or_with_a_damaged_round_starts(sqlite_store):
    assert read_last_labeled(sqlite_store) is None
    made = make_pool(sqlite_store, 6)
    finish_round(sqlite_store, get_project(sqlite_store, made.project_id), picks=[0])
    made.pool.label(made.items[1], made.classes[0], annotator=made.ann)
    for path in sqlite_store.artifacts.folder.rglob("*.npy"):
        path.write_bytes(b"damaged")
    thread = start_reading(sqlite_store)
    thread.join(60)
    assert not thread.is_alive()


# Names are read with pyarrow, which imports pandas in the middle of a request. Here that import is held until a
# figure is drawn.
DRAW_DURING_IMPORT = """
import sys, threading
import app.web.server
from app.views.figures.charts import class_counts

class_counts([1], ["a"], dark=False)  # plotly has loaded all it needs
entered, drawn = threading.Event(), threading.Event()

class Pause:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("pandas.") and threading.current_thread() is thread:
            entered.set()
            drawn.wait(60)

def read_names():
    import pyarrow
    pyarrow.array(["a name"])
    entered.set()

sys.meta_path.insert(0, Pause())
thread = threading.Thread(target=read_names)
thread.start()
entered.wait(60)
try:
    class_counts([1, 2], ["a", "b"], dark=False)
finally:
    drawn.set()
    thread.join()
"""


@pytest.mark.slow(3)
def test_a_chart_is_drawn_while_another_thread_reads_names_for_the_first_time(tmp_path):
    values = os.environ | {"WINNOW_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", DRAW_DURING_IMPORT], env=values, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
