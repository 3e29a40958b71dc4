"""A round on clips that sound alike, stage by stage: what is alike reaches the guesses, the picks and comparisons."""

from __future__ import annotations

import dataclasses
import uuid

import numpy as np
import pytest

from app.rounds.comparison import compare
from app.rounds.stage_outputs import open_array, open_similarity_graph, put_similarity_graph
from app.rounds.steps import StageContext, perform, perform_unit
from core.config import MediaConfig, SimilarityConfig
from core.types import UNLABELED, ignore
from storage.database.store import Store
from storage.labeling.events import LabelInput
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import create_project
from storage.rounds import comparisons
from storage.rounds.log import RoundLog, RoundRow
from tests.app.sample_store import add_items
from tests.app.worker_processes import quick_config
from tests.core.clusters import clusters, graph_of
from tests.core.media.samples import tone, wav

pytestmark = pytest.mark.usefixtures("one_thread")

STAGES = ("snapshot", "prepare", "train", "plan predict", "predict", "plan features", "features", "select", "map")
TONES = ("low", "middle", "high")


@pytest.fixture
def asked(sqlite_store: Store) -> tuple[Store, RoundRow]:
    """24 tones of three pitches, two of each labeled, and a round that listens for what is alike."""
    store = sqlite_store
    project = create_project(store, "tones", "audio", TONES)
    rng = np.random.default_rng(0)
    sounds = [wav(tone(300 * (1 + 2 * (i % 3)) * rng.uniform(0.97, 1.03), seconds=0.2)) for i in range(24)]
    ids = add_items(store, project, [(f"{i}.wav", sound) for i, sound in enumerate(sounds)])
    classes = [row.id for row in list_classes(store, project.id)]
    events = [
        LabelInput(uuid=str(uuid.uuid4()), item_id=ids[i], kind="label", class_id=classes[i % 3]) for i in range(6)
    ]
    Pool(store, project.id).apply(events, annotator=annotator_named(store, "Ann").id)
    config = dataclasses.replace(
        quick_config(proxy="similarity", uncertainty_power=1.0),
        media=MediaConfig(seconds=0.25),
        similarity=SimilarityConfig(neighbors=4),
    )
    log = RoundLog(store, project.id)
    row = log.request(config)
    log.start(row.id)
    return store, log.get(row.id)


def through(store: Store, row: RoundRow, stages: tuple[str, ...], parcels: dict) -> dict:
    for stage in stages:
        parcels[stage] = perform(stage, StageContext(store, row, parcels, ignore)) | {"seconds": 0.1}
    return parcels


def test_units_that_are_joined_settle_on_the_same_guesses_as_one_piece(asked):
    store, row = asked
    parcels = through(store, row, STAGES[:5], {})
    bench = StageContext(store, row, parcels, ignore)
    units = [perform_unit("predict", bench, start, start + 8) for start in (0, 8, 16)]
    assert all(unit["likeness"] is None for unit in units)
    joined = perform("predict", bench, units)
    whole = bench.guesses()
    assert whole.likeness is not None and whole.likeness.neighbors.shape == (24, 4)
    np.testing.assert_allclose(open_array(store.artifacts, joined["probabilities"]), whole.probabilities, atol=1e-5)
    own = np.concatenate([open_array(store.artifacts, unit["probabilities"]) for unit in units])
    labels = bench.snapshot.labels
    assert np.abs(own - whole.probabilities)[labels == UNLABELED].max() > 1e-3
    np.testing.assert_array_equal(whole.probabilities[labels != UNLABELED].argmax(1), labels[labels != UNLABELED])


def test_a_finished_round_keeps_what_was_alike_and_comparisons_choose_on_it(asked):
    store, row = asked
    parcels = through(store, row, STAGES, {})
    through(store, row, ("finish",), parcels)
    finished = RoundLog(store, row.project_id).get(row.id)
    assert finished.status == "finished"
    changed = parcels["predict"]["changed"]
    assert changed > 0
    assert f"{changed} of 24 predictions were changed by label propagation." in finished.notes
    real = [pick.item_id for pick in RoundLog(store, row.project_id).picks(row.id)]
    asked_for = comparisons.request(store, row.id, ["bico", "uniform"])
    answer = compare(store, finished, asked_for)
    assert answer.picks["bico"] == real and len(answer.picks["uniform"]) == 4


def test_a_likeness_survives_its_file(sqlite_store):
    likeness = graph_of(clusters()[0])
    back = open_similarity_graph(sqlite_store.artifacts, put_similarity_graph(sqlite_store.artifacts, likeness))
    for name in ("rows", "neighbors", "distances"):
        np.testing.assert_array_equal(getattr(back, name), getattr(likeness, name))
    assert back.typical == likeness.typical
    assert open_similarity_graph(sqlite_store.artifacts, put_similarity_graph(sqlite_store.artifacts, None)) is None
