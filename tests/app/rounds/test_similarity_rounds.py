"""Rounds on similar clips, step by step: the similarity graph reaches predictions, picks and comparisons."""

from __future__ import annotations

import dataclasses
import shutil
import uuid
from hashlib import sha256

import numpy as np
import pytest

from app.jobs.model_export import export_model
from app.rounds.comparison import compare
from app.rounds.requests import request_replay
from app.rounds.steps import ORDER, SPLIT, perform, perform_unit
from app.rounds.stored_round import StoredRound
from core.config import MediaConfig, RoundConfig, SimilarityConfig
from core.errors import Cancelled
from core.kernels.nystrom import KernelFeatures
from core.rounds.outputs import CandidateFeatures, NoCommon, Predictions, PropagatedLabels, RefinedModel
from core.rounds.stages import PREDICT
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
from tests.core.media.samples import tone, wav

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = tuple(name for stage in ORDER for name in ((f"plan {stage}", stage) if stage in SPLIT else (stage,)))
TONES = ("low", "middle", "high")


def config_of(**selection) -> RoundConfig:
    return dataclasses.replace(
        quick_config(**({"proxy": "similarity", "uncertainty_power": 1.0} | selection)),
        media=MediaConfig(seconds=0.25),
        similarity=SimilarityConfig(neighbors=4),
    )


@pytest.fixture
def project(sqlite_store: Store) -> tuple[Store, int]:
    return sqlite_store, make_project(sqlite_store)


def make_project(store: Store) -> int:
    """24 tones of three pitches, two of each labeled."""
    project = create_project(store, "tones", "audio", TONES)
    rng = np.random.default_rng(0)
    sounds = [wav(tone(300 * (1 + 2 * (i % 3)) * rng.uniform(0.97, 1.03), seconds=0.2)) for i in range(24)]
    ids = add_items(store, project, [(f"{i}.wav", sound) for i, sound in enumerate(sounds)])
    classes = [row.id for row in list_classes(store, project.id)]
    events = [
        LabelInput(uuid=str(uuid.uuid4()), item_id=ids[i], kind="label", class_id=classes[i % 3]) for i in range(6)
    ]
    Pool(store, project.id).apply(events, annotator=annotator_named(store, "Ann").id)
    return project.id


def ask(project: tuple[Store, int], config: RoundConfig) -> tuple[Store, RoundRow]:
    store, project_id = project
    log = RoundLog(store, project_id)
    row = log.request(config)
    log.start(row.id)
    return store, log.get(row.id)


@pytest.fixture
def asked(project) -> tuple[Store, RoundRow]:
    return ask(project, config_of())


def through(store: Store, row: RoundRow, steps: tuple[str, ...], results: dict | None = None) -> dict:
    """The results of these steps; each reads what the previous steps stored."""
    results = {} if results is None else results
    for step in steps:
        found = perform(step, StoredRound(store, row, results, ignore))
        results[step] = dataclasses.replace(found, seconds=0.1).to_dict()
    return results


def refuse(*args, **more):
    raise AssertionError("kernel features were computed")


def test_joined_units_give_the_predictions_of_one_piece(asked):
    store, row = asked
    results = through(store, row, STEPS[: STEPS.index("predict") + 1])
    of = StoredRound(store, row, results, ignore)
    whole = of.outputs.get(Predictions)
    assert PREDICT.split is not None
    common = PREDICT.split.prepare(of.context, *of.outputs.take(PREDICT.needs))
    assert common == NoCommon()
    plan = results["plan predict"] | {"common": {}}
    divided = StoredRound(store, row, results | {"plan predict": plan}, ignore)
    units = [perform_unit("predict", divided, start, start + 8).output for start in (0, 8, 16)]
    joined = perform("predict", divided, [unit for unit in units if unit is not None])
    found = StoredRound(store, row, results | {"predict": joined.to_dict()}, ignore).outputs.get(Predictions)
    np.testing.assert_allclose(found.probabilities, whole.probabilities, atol=1e-5)
    np.testing.assert_allclose(found.embeddings, whole.embeddings, atol=1e-4)
    assert found.has_model and whole.has_model


def refining_config(steps: int = 6) -> RoundConfig:
    config = config_of()
    return dataclasses.replace(config, training=dataclasses.replace(config.training, refine_steps=steps))


def test_a_round_stores_and_exports_the_refined_network_and_a_replay_gives_the_same(project, tmp_path):
    store, row = ask(project, refining_config())
    results = through(store, row, STEPS)
    log = RoundLog(store, row.project_id)
    finished, model = log.get(row.id), log.artifact(row.id, "model")
    assert model.sha256 == results["refine"]["output"]["model"]["sha256"]
    assert model.sha256 != results["train"]["output"]["model"]["sha256"]
    assert finished.metrics["seconds"]["refine"] == 0.1 and finished.metrics["history"][-1]["step"] == 14
    export_model(store, row.project_id, tmp_path / "model")
    assert sha256((tmp_path / "model" / "model.safetensors").read_bytes()).hexdigest() == model.sha256
    replay = request_replay(store, row.project_id, row.id)
    log.start(replay.id)
    through(store, log.get(replay.id), STEPS)
    assert log.artifact(replay.id, "model").sha256 == model.sha256
    assert log.get(replay.id).metrics["replay"]["same"]
    for kind in ("probabilities", "embeddings", "map"):
        np.testing.assert_array_equal(log.arrays(replay.id, kind), log.arrays(row.id, kind))


def test_a_step_that_lost_its_worker_refines_to_the_same_network(project):
    """From the stored results of the previous steps, in another object, like another worker."""
    store, row = ask(project, refining_config(steps=60))
    before = through(store, row, STEPS[: STEPS.index("refine")])

    def stop(progress):
        if progress.stage == "refine" and progress.total == 60 and progress.done > 25:
            raise Cancelled("stop")

    with pytest.raises(Cancelled):
        perform("refine", StoredRound(store, row, before, stop))
    resumed = perform("refine", StoredRound(store, row, before, ignore))
    shutil.rmtree(StoredRound(store, row, before, ignore).checkpoints())
    straight = perform("refine", StoredRound(store, row, before, ignore))
    assert resumed.output is not None and straight.output is not None
    opened = [
        StoredRound(store, row, before | {"refine": one.to_dict()}, ignore).outputs.get(RefinedModel).model
        for one in (resumed, straight)
    ]
    for name, value in opened[0].network.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), opened[1].network.state_dict()[name].numpy(), err_msg=name)


def test_labels_propagate_over_the_whole_pool_and_keep_the_given_ones(asked):
    store, row = asked
    results = through(store, row, STEPS[: STEPS.index("propagate") + 1])
    of = StoredRound(store, row, results, ignore)
    own, after = of.outputs.get(Predictions).probabilities, of.outputs.get(PropagatedLabels)
    assert after.graph is not None and after.graph.neighbors.shape == (24, 4)
    labels = of.context.snapshot.labels
    assert np.abs(own - after.probabilities)[labels == UNLABELED].max() > 1e-3
    np.testing.assert_array_equal(after.probabilities[labels != UNLABELED].argmax(1), labels[labels != UNLABELED])


def test_a_round_on_similar_clips_computes_no_kernel_features_and_can_be_compared(asked, monkeypatch):
    store, row = asked
    monkeypatch.setattr(KernelFeatures, "prepare", refuse)
    results = through(store, row, STEPS)
    log = RoundLog(store, row.project_id)
    finished = log.get(row.id)
    assert finished.status == "finished"
    assert results["features"]["output"] is None and "features" not in finished.metrics["seconds"]
    skipped = {"encode", "decide", "check", "refine", "features", "rival", "finish"}
    assert set(finished.metrics["seconds"]) == set(ORDER) - skipped
    changed = results["propagate"]["output"]["n_changed"]
    assert changed > 0
    assert f"{changed} of 24 predictions were changed by label propagation." in finished.notes
    real = [pick.item_id for pick in log.picks(row.id)]
    answer = compare(store, finished, comparisons.request(store, row.id, ["bico", "uniform", "k_center"]))
    assert answer.picks["bico"] == real and len(answer.picks["uniform"]) == 4 == len(answer.picks["k_center"])


def test_a_comparison_computes_features_that_the_round_did_not_keep(project):
    """The same round with and without its feature artifacts gives the same comparison."""
    store, row = ask(project, config_of(proxy="kernel"))
    through(store, row, STEPS)
    finished = RoundLog(store, row.project_id).get(row.id)
    wanted = comparisons.request(store, row.id, ["bico", "margin"])
    expected = compare(store, finished, wanted)
    real_artifact = RoundLog.artifact
    computed: list[type] = []

    def without_features(self, round_id, kind):
        if kind in ("features", "kernel", "candidate_rows"):
            computed.append(CandidateFeatures)
            raise_not_found(kind)
        return real_artifact(self, round_id, kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoundLog, "artifact", without_features)
        assert compare(store, finished, wanted).picks == expected.picks
    assert computed
    assert expected.picks["bico"] == [pick.item_id for pick in RoundLog(store, row.project_id).picks(row.id)]


def raise_not_found(kind: str) -> None:
    from core.errors import NotFound

    raise NotFound(f"No {kind}.")


@pytest.mark.slow
def test_landmarks_outlast_rounds_that_compute_no_features(project):
    """Kernel, similarity graph, kernel: the third round uses the landmarks of the first."""
    store, first = ask(project, config_of(proxy="kernel"))
    through(store, first, STEPS)
    _, second = ask(project, config_of())
    through(store, second, STEPS)
    _, third = ask(project, config_of(proxy="kernel"))
    results = through(store, third, STEPS[:-1])
    log = RoundLog(store, third.project_id)
    assert StoredRound(store, third, results, ignore).start.previous_round == second.id
    assert results["features"]["output"]["fitted"]["sha256"] == log.artifact(first.id, "kernel").sha256


def test_steps_open_the_previous_model_only_to_train(project, monkeypatch):
    from app.rounds import stored_round

    store, first = ask(project, config_of())
    through(store, first, STEPS)
    _, second = ask(project, config_of())
    load, loaded = stored_round.load_model, []
    step = ""

    def watch(*args):
        loaded.append(step)
        return load(*args)

    monkeypatch.setattr(stored_round, "load_model", watch)
    results: dict = {}
    for step in STEPS:
        through(store, second, (step,), results)
    assert loaded == ["train"]
    assert RoundLog(store, second.project_id).get(second.id).metrics["previous_round"] == first.id


def test_the_check_reads_what_earlier_rounds_predicted_from_the_newest_on(project):
    """Also for a replay, which reads the rounds before the original. Removed predictions are left out."""
    store, project_id = project
    pool, classes = Pool(store, project_id), [row.id for row in list_classes(store, project_id)]
    ids = [item.id for item in pool.items()]
    finished = []
    for number in range(3):
        _, row = ask(project, config_of())
        results = through(store, row, STEPS)
        finished.append(row)
        pool.label(ids[6 + number], classes[(6 + number) % 3], annotator=annotator_named(store, "Ann").id)
    of = StoredRound(store, row, {name: results[name] for name in ("snapshot",)}, ignore)
    second, first = of.context.previous.load_predictions()
    assert [int((one.labels != UNLABELED).sum()) for one in (first, second)] == [6, 7]
    log = RoundLog(store, project_id)
    np.testing.assert_array_equal(second.load_probabilities(), log.arrays(finished[1].id, "probabilities"))
    np.testing.assert_array_equal(second.item_ids, of.context.snapshot.item_ids)
    assert second.class_names == TONES
    replay = log.get(request_replay(store, project_id, finished[2].id).id)
    log.start(replay.id)
    again = StoredRound(store, replay, through(store, replay, STEPS[:1]), ignore)
    assert len(list(again.context.previous.load_predictions())) == 2
    log.file(finished[1].id, "probabilities").unlink()
    removed, left = of.context.previous.load_predictions()
    assert removed.load_probabilities() is None and left.load_probabilities() is not None
