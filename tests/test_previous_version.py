"""A store, its rounds and its exports, made by version 0.1.0, open and replay in this version.

The fixture contains two projects with finished and unfinished rounds, exports of both, and the values that version
0.1.0 reported for them (`expected.json`). `tests/fixtures/version_0_1/README.md` describes how it was made.
"""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.rounds import requests as round_requests
from app.simulation import requests as simulation_requests
from app.views.cards.pick_table import pick_table
from app.views.learning_progress import learning_progress
from app.views.map_layers import map_layers
from app.views.predictions import newest_predictions
from storage.database.store import Store
from storage.importing.open import open_source
from storage.importing.run import ImportOptions, locator, run_import
from storage.labeling.pool import Pool
from storage.projects.classes import list_classes
from storage.projects.projects import create_project, get_project
from storage.rounds import comparisons
from storage.rounds.log import RoundLog, RoundRow
from tests.app.worker_processes import Place, crew_in, until

FIXTURE = Path(__file__).parent / "fixtures" / "version_0_1" / "store.zip"
KINDS = {"pictures": "image", "clips": "audio"}
TIMEOUT_SECONDS = 240.0

Expected = dict[str, Any]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("version_0_1")
    with zipfile.ZipFile(FIXTURE) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def expected(unpacked: Path) -> Expected:
    return json.loads((unpacked / "expected.json").read_text())


@pytest.fixture(scope="module")
def old_store(unpacked: Path) -> Iterator[Store]:
    """The store, opened once (and migrated if this version has a newer schema). The tests below only add to it."""
    with Store.open(home=unpacked / "home") as store:
        yield store


def labels_of(store: Store, project_id: int) -> dict[str, str]:
    """item name -> class name, of everything a person labeled."""
    pool = Pool(store, project_id)
    snapshot = pool.snapshot()
    names = {item.id: item.name for item in pool.items(limit=None)}
    pairs = zip(snapshot.item_ids, snapshot.labels, strict=True)
    return {names[int(item_id)]: snapshot.class_names[label] for item_id, label in pairs if label >= 0}


def finished_rounds(store: Store, project_id: int) -> list[RoundRow]:
    rows = RoundLog(store, project_id).list()
    return [row for row in rows if row.status == "finished" and row.replay_of is None]


@pytest.mark.parametrize("name", KINDS)
def test_labels_counts_and_classes_are_unchanged(old_store, expected, name):
    project, said = get_project(old_store, name), expected[name]
    pool = Pool(old_store, project.id)
    counts = {key: value for key, value in dataclasses.asdict(pool.counts()).items() if key in said["counts"]}
    per_class = {str(class_id): n for class_id, n in counts.pop("per_class").items()}
    assert counts == {key: value for key, value in said["counts"].items() if key != "per_class"}
    assert per_class == said["counts"]["per_class"]
    assert list(pool.class_names()) == said["class_names"]
    assert labels_of(old_store, project.id) == said["labels"]
    assert (project.settings.preset, project.settings.batch_size) == ("smoke", 3)


def test_the_merged_class_still_counts_as_its_successor_and_the_undone_label_does_not_count(old_store):
    project = get_project(old_store, "pictures")
    classes = {row.name: row for row in list_classes(old_store, project.id, include_inactive=True)}
    assert set(classes) == {"bars", "blobs", "checks", "stripes"} and not classes["stripes"].active
    pool = Pool(old_store, project.id)
    items = {item.name: item for item in pool.items(limit=None)}
    given = [event for event in pool.history(items["06.png"].id) if event.class_id == classes["stripes"].id]
    assert len(given) == 1  # stored with the class that was given
    assert [event.kind for event in pool.history(items["14.png"].id)] == ["label", "undo"]
    assert "14.png" not in labels_of(old_store, project.id)


def test_rebuilding_the_projections_of_the_events_changes_nothing(old_store, expected):
    for name in KINDS:
        project = get_project(old_store, name)
        assert Pool(old_store, project.id).rebuild() == 0
        assert labels_of(old_store, project.id) == expected[name]["labels"]


@pytest.mark.parametrize("name", KINDS)
def test_the_settings_picks_and_results_of_rounds_read_as_before(old_store, expected, name):
    project = get_project(old_store, name)
    log = RoundLog(old_store, project.id)
    for said in expected[name]["rounds"]:
        row = log.get(said["id"])
        assert (row.number, row.config.seed, row.config.selection.strategy) == (
            said["number"],
            said["seed"],
            said["strategy"],
        )
        assert row.config.similarity.neighbors == said["neighbors"]  # stored as `likeness.neighbors`
        assert row.config.selection.proxy == {"alike": "similarity"}.get(said["proxy"], said["proxy"])
        assert [pick.item_id for pick in log.picks(row.id)] == said["picks"]
        if said["status"] == "finished":
            assert row.metrics.get("accuracy") == said["accuracy"] and list(row.notes) == said["notes"]


@pytest.mark.parametrize("name", KINDS)
def test_finished_rounds_show_on_train_map_and_the_table_of_picks(old_store, name):
    project = get_project(old_store, name)
    rows = finished_rounds(old_store, project.id)
    shown = learning_progress(old_store, project.id)
    assert [row.id for row in shown.rounds] == sorted(row.id for row in rows)
    assert len(shown.curve) == sum(bool(row.metrics.get("has_model")) for row in rows) > 0
    newest = max(rows, key=lambda row: row.id)
    found = newest_predictions(old_store, project.id)
    assert found is not None
    shares = found.class_probabilities(list_classes(old_store, project.id))
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-4)
    drawn = map_layers(old_store, project.id, newest.id)
    assert drawn is not None and drawn.n_items == 24
    assert len(pick_table(old_store, project.id, newest.id)) == 3
    view = round_requests.view(old_store, project.id, newest.id)
    assert view is not None and view.round.status == "finished" and view.curves["loss"]


def test_the_simulation_and_the_comparison_show_their_results(old_store):
    project = get_project(old_store, "pictures")
    (simulation,) = simulation_requests.listed(old_store, project.id)
    assert simulation.status == "finished" and simulation.complete
    records = simulation_requests.records(old_store, simulation.id)
    assert [(record.strategy, record.seed, record.n_labels) for record in records] == [
        ("uniform", 0, 3),
        ("uniform", 0, 6),
    ]
    newest = max(finished_rounds(old_store, project.id), key=lambda row: row.id)
    answer = comparisons.get(old_store, newest.id)
    assert answer is not None and answer.status == "finished" and answer.overlap["bico"] == 3


@pytest.mark.parametrize("format_", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("name", KINDS)
def test_an_export_is_imported_again_with_the_same_labels(old_store, unpacked, expected, name, format_):
    copy = create_project(old_store, f"{name} from {format_}", KINDS[name])
    source = open_source(unpacked / "exports" / f"{name}-{format_}", locate=locator(old_store))
    try:
        done = run_import(old_store, copy.id, source, ImportOptions(classes="add"))
    finally:
        source.close()
    assert done.imported == expected[name]["counts"]["labeled"] + expected[name]["counts"]["held_out"]
    assert labels_of(old_store, copy.id) == expected[name]["labels"]
    assert Pool(old_store, copy.id).counts().held_out == expected[name]["counts"]["held_out"]


@pytest.fixture(scope="module")
def worked(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A second copy of the store after a worker of this version has served it: the rounds that version 0.1.0 left
    unfinished have ended, and every finished round was replayed."""
    folder = tmp_path_factory.mktemp("worked")
    with zipfile.ZipFile(FIXTURE) as archive:
        archive.extractall(folder)
    with Store.open(home=folder / "home") as store, crew_in(folder) as crew:
        projects = [get_project(store, name) for name in KINDS]
        crew.start(Place(home=store.home))
        for project in projects:
            until(lambda p=project: all_ended(store, p.id), TIMEOUT_SECONDS, f"the end of the rounds of {project.name}")
            for row in finished_rounds(store, project.id):
                if row.id <= 5:  # later rounds are not the fixture's
                    asked = round_requests.request_replay(store, project.id, row.id)
                    until(lambda p=project: all_ended(store, p.id), TIMEOUT_SECONDS, f"the end of replay {asked.id}")
        yield store


def all_ended(store: Store, project_id: int) -> bool:
    return not any(row.unfinished for row in RoundLog(store, project_id).list())


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_finished_round_replays_to_the_same_picks(worked, expected, name):
    log = RoundLog(worked, get_project(worked, name).id)
    before = {said["id"]: said["picks"] for said in expected[name]["rounds"] if said["status"] == "finished"}
    replays = {row.replay_of: row for row in log.list() if row.replay_of in before}
    assert set(replays) == set(before)
    for original, row in replays.items():
        assert row.status == "finished", row.error + row.log
        assert [pick.item_id for pick in log.picks(row.id)] == before[original]
        assert row.metrics["replay"]["same"]


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_round_that_the_upgrade_interrupted_ends_with_picks_or_with_a_message(worked, expected, name):
    """One was requested and never started; the worker of the other was killed during the stage "train"."""
    log = RoundLog(worked, get_project(worked, name).id)
    (left,) = [said for said in expected[name]["rounds"] if said["status"] in ("requested", "running")]
    row = log.get(left["id"])
    assert row.status in ("finished", "failed")
    if row.status == "finished":
        assert len(log.picks(row.id)) == 3
    else:
        assert row.error.endswith(".") and "\n" not in row.error and "start" in row.error.lower()
    if left["status"] == "requested":
        assert row.status == "finished", row.error + row.log
    newest = round_requests.view(worked, row.project_id, row.id)
    assert newest is not None and not newest.waiting_for_worker
