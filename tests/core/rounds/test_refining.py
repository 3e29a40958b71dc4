"""The stage "refine": when it runs, what its targets are, and that its network is the output of the round."""

from __future__ import annotations

import dataclasses
from hashlib import sha256

import numpy as np
import pytest

from core.config import RoundConfig, SimilarityConfig, preset
from core.errors import Cancelled
from core.learning.prediction import predict
from core.media.inputs import Inputs
from core.rounds.context import StageContext
from core.rounds.outputs import LabelTrust, Predictions, PropagatedLabels, RefinedModel, TrainingResult
from core.rounds.pipeline import final_training, held_out_results, run_timed
from core.rounds.round_model import pool_targets, predict_test_items, refine_model, similarity_graph
from core.rounds.simulation import Trial
from core.rounds.simulation_plan import LabeledPool, Plan
from core.rounds.stage import Outputs, needed
from core.rounds.stages import REFINE, STAGES
from core.rows import MemoryRowCache
from core.runtime import Runtime
from core.types import UNLABELED, ignore
from tests.app.worker_processes import quick_config
from tests.core.media.samples import tone, wav
from tests.core.rounds.small_rounds import MANY, clips, context_of, pool, run, similar_clips

pytestmark = pytest.mark.usefixtures("one_thread")


def refining(steps: int = 6, **selection) -> RoundConfig:
    config = similar_clips(**selection)
    training = dataclasses.replace(config.training, refine_steps=steps, warm_steps=0)
    return dataclasses.replace(config, training=training)


def outputs_of(context: StageContext, *wanted: type) -> Outputs:
    outputs = Outputs()
    run_timed(needed(STAGES, *wanted), context, outputs)
    return outputs


def weights(model) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in model.network.state_dict().items()}


def same(first, other) -> bool:
    own, its = weights(first), weights(other)
    return all(np.array_equal(own[name], its[name]) for name in own)


def without_labels():
    snapshot, media = clips()
    return dataclasses.replace(snapshot, labels=np.full(24, UNLABELED), eligible=~snapshot.held_out), media


@pytest.mark.parametrize(
    ("taken", "config"),
    [
        (clips, similar_clips()),
        (clips, dataclasses.replace(refining(), similarity=SimilarityConfig(neighbors=0))),
        (without_labels, refining()),
        (lambda: pool(MANY), dataclasses.replace(refining(), media=quick_config().media)),
    ],
    ids=["no steps", "no graph", "no labels", "pictures"],
)
def test_a_round_without_steps_a_graph_or_a_network_is_not_refined(taken, config):
    snapshot, media = taken()
    assert "refine" not in run(snapshot, media, config).metrics["seconds"]


def test_only_the_laptop_preset_refines_and_settings_of_earlier_versions_do_not():
    steps = {name: preset(name).training.refine_steps for name in ("laptop", "encoder", "paper", "smoke")}
    assert steps.pop("laptop") > 0 and set(steps.values()) == {0}
    assert RoundConfig().training.refine_steps == 0  # what stored settings without the field take


def test_the_refined_network_predicts_and_is_measured():
    snapshot, media = clips()
    context = context_of(snapshot, media, refining())
    outputs = outputs_of(context, PropagatedLabels)
    trained, refined = outputs.get(TrainingResult).model, outputs.get(RefinedModel).model
    assert trained is not None and not same(trained, refined)
    assert final_training(outputs).model is refined
    own = predict(refined, outputs.get(Inputs), runtime=context.runtime)
    found = outputs.get(Predictions)
    np.testing.assert_array_equal(found.embeddings, own.embeddings)
    open_rows = snapshot.labels == UNLABELED
    np.testing.assert_array_equal(found.probabilities[open_rows], own.probabilities[open_rows])
    assert found.temperature == refined.temperature
    assert outputs.get(PropagatedLabels).graph is outputs.get(RefinedModel).graph
    assert [entry["step"] for entry in refined.history] == [8, 14]  # of training, then of refinement
    result = run(snapshot, media, refining())
    expected = held_out_results(context, outputs.get(Inputs), refined, outputs.get(PropagatedLabels))
    assert result.metrics["accuracy"] == expected["accuracy"] and result.metrics["seconds"]["refine"] > 0
    np.testing.assert_array_equal(result.embeddings, own.embeddings)


def test_refinement_moves_the_network_towards_the_propagated_labels():
    """With eight steps the network learns almost nothing; the graph of the tones separates the classes."""
    snapshot, media = clips()
    config = refining(steps=60)
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, refine_rate=3e-3))
    context = context_of(snapshot, media, config)
    outputs = outputs_of(context, RefinedModel)
    trained, refined, inputs = outputs.get(TrainingResult).model, outputs.get(RefinedModel).model, outputs.get(Inputs)
    truth = np.arange(24) % 3
    before, after = (
        (predict(model, inputs, runtime=context.runtime).probabilities.argmax(1) == truth).mean()
        for model in (trained, refined)
    )
    assert after > 0.9 > before


def test_photographs_are_refined_on_targets_by_patches():
    """No graph is built, test items are not used, and the refined network predicts."""
    snapshot, media = pool(MANY, held_out=6)
    config = refining(proxy="kernel")
    config = dataclasses.replace(config, media=dataclasses.replace(quick_config().media, patches=16))
    context = context_of(snapshot, media, config)
    outputs = outputs_of(context, PropagatedLabels)
    trained, refined = outputs.get(TrainingResult).model, outputs.get(RefinedModel)
    assert trained is not None and refined.graph is None and not same(trained, refined.model)
    assert final_training(outputs).model is refined.model
    own = predict(refined.model, outputs.get(Inputs), runtime=context.runtime)
    np.testing.assert_array_equal(outputs.get(Predictions).embeddings, own.embeddings)
    np.testing.assert_array_equal(outputs.get(PropagatedLabels).probabilities, outputs.get(Predictions).probabilities)
    other = tuple(sha256(bytes([row])).hexdigest() for row in range(6))
    changed = dataclasses.replace(snapshot, hashes=(*other, *snapshot.hashes[6:]))
    again = outputs_of(
        context_of(changed, media | dict.fromkeys(other, media[snapshot.hashes[7]]), config), RefinedModel
    )
    assert same(refined.model, again.get(RefinedModel).model)


def dense_propagation(graph, P: np.ndarray, labels: np.ndarray, reach: float, trust: np.ndarray) -> np.ndarray:
    """The equations of `core.similarity.propagation` as one dense linear system."""
    m = len(graph.rows)
    scale = graph.distances[:, -1].astype(np.float64)
    w, far = np.zeros((m, m)), np.full((m, m), np.inf)
    for i in range(m):
        for j, d in zip(graph.neighbors[i], graph.distances[i].astype(np.float64), strict=True):
            w[i, j] = w[j, i] = np.exp(-(d**2) / (scale[i] * scale[j]))
            far[i, j] = far[j, i] = d / graph.typical
    T = w / w.sum(1, keepdims=True) * np.exp(-((far / reach) ** 4))
    A, b = np.eye(m) - T, (1 - T.sum(1, keepdims=True)) * P
    for i in np.flatnonzero(labels != UNLABELED):
        A[i] = np.eye(m)[i] - (1 - trust[i]) * T[i] / T[i].sum()
        b[i] = trust[i] * np.eye(P.shape[1])[labels[i]]
    return np.linalg.solve(A, b)


def test_the_targets_are_the_most_probable_classes_of_propagated_predictions():
    snapshot, media = clips()
    context = context_of(snapshot, media, refining())
    outputs = outputs_of(context, TrainingResult)
    inputs, model = outputs.get(Inputs), outputs.get(TrainingResult).model
    assert model is not None
    graph = similarity_graph(context, inputs, None, ignore)
    assert graph is not None
    trust = np.ones(24, np.float32)
    trust[1] = 0.4
    found = pool_targets(context, inputs, model, graph, trust, as_classes=False)
    P = predict(model, inputs, graph.rows, runtime=context.runtime).probabilities.astype(np.float64)
    Q = dense_propagation(graph, P, snapshot.labels[graph.rows], context.config.similarity.reach, trust[graph.rows])
    Q = Q / Q.sum(1, keepdims=True)
    open_rows = np.flatnonzero((snapshot.labels == UNLABELED) & ~snapshot.held_out)
    at = np.searchsorted(graph.rows, open_rows)
    np.testing.assert_allclose(found.probabilities[open_rows], Q[at], atol=2e-3)  # an iteration with a tolerance
    np.testing.assert_array_equal(found.probabilities[:3], np.eye(3))  # labels
    np.testing.assert_allclose(found.weights, [1.0, 0.4, *np.ones(19), 0.0, 0.0, 0.0])  # test items have none
    classes = pool_targets(context, inputs, model, graph, trust)
    np.testing.assert_array_equal(classes.probabilities[open_rows], np.eye(3)[Q[at].argmax(1)])
    np.testing.assert_array_equal(classes.weights, found.weights)


def test_the_sound_of_test_items_changes_nothing_in_the_refined_network():
    """They are in no batch, no target, no graph and no statistics."""
    snapshot, media = clips()
    other = [wav(tone(2_000 + 100 * row, seconds=0.2)) for row in range(3)]
    names = tuple(sha256(one).hexdigest() for one in other)
    changed = dataclasses.replace(snapshot, hashes=(*snapshot.hashes[:21], *names))
    first, second = (
        outputs_of(context_of(taken, media | dict(zip(names, other, strict=True)), refining()), RefinedModel)
        for taken in (snapshot, changed)
    )
    assert same(first.get(RefinedModel).model, second.get(RefinedModel).model)
    assert first.get(RefinedModel).model.temperature == second.get(RefinedModel).model.temperature


def test_an_interrupted_refinement_resumes_to_the_same_weights(tmp_path):
    """Epochs of this pool have 25 steps; the run is stopped after the first, and the next call continues there."""
    snapshot, media = clips()
    context = context_of(snapshot, media, refining(steps=60))
    outputs = outputs_of(context, TrainingResult)
    needs = (outputs.get(Inputs), outputs.get(TrainingResult), outputs.find(LabelTrust))
    straight, again = refine_model(context, *needs).model, refine_model(context, *needs).model
    assert same(straight, again) and straight.history == again.history

    def stop(progress):
        assert progress.stage in ("graph", "targets", "refine")  # of names of stages, only its own
        if progress.total == 60 and progress.done > 25:
            raise Cancelled("stop")

    kept = dataclasses.replace(context, checkpoints=tmp_path)
    with pytest.raises(Cancelled):
        refine_model(dataclasses.replace(kept, report=stop), *needs)
    assert (tmp_path / "refine" / "checkpoint.safetensors").exists()
    seen: list[int] = []
    counted = dataclasses.replace(kept, report=lambda progress: seen.append(progress.done * (progress.total == 60)))
    resumed = refine_model(counted, *needs).model
    assert min(done for done in seen if done) > 25 and seen[-1] == 60
    assert same(straight, resumed) and straight.history == resumed.history


def test_a_checkpoint_of_other_targets_is_not_used(tmp_path):
    snapshot, media = clips()
    context = dataclasses.replace(context_of(snapshot, media, refining()), checkpoints=tmp_path)
    outputs = outputs_of(context, RefinedModel)
    needs = (outputs.get(Inputs), outputs.get(TrainingResult), outputs.find(LabelTrust))
    reach = dataclasses.replace(context.config.similarity, reach=0.2)
    nearer = dataclasses.replace(context, config=dataclasses.replace(context.config, similarity=reach))
    found = refine_model(nearer, *needs).model
    assert same(found, refine_model(dataclasses.replace(nearer, checkpoints=None), *needs).model)
    assert not same(found, outputs.get(RefinedModel).model)


def test_the_refined_network_predicts_the_test_items_and_the_record_of_a_trial():
    snapshot, media = clips()
    context = context_of(snapshot, media, refining())
    outputs = outputs_of(context, PropagatedLabels)
    model, inputs = outputs.get(RefinedModel).model, outputs.get(Inputs)
    stored = predict_test_items(context, inputs, final_training(outputs).model)
    own = predict(model, inputs, np.arange(21, 24), runtime=context.runtime).probabilities
    np.testing.assert_array_equal(stored["test_predictions"], own)
    truth = np.arange(24) % 3
    labeled = LabeledPool(
        kind="audio", class_names=snapshot.class_names, hashes=snapshot.hashes, truth=truth, test=snapshot.held_out
    )
    trial = Trial(
        pool=labeled, plan=Plan(start=3, batch=3, rounds=1), config=refining(strategy="uniform"), seed=0,
        read=media.__getitem__, cache=MemoryRowCache(), runtime=Runtime.create(0, "cpu"),
    )  # fmt: skip
    first, again = list(trial.run()), list(trial.run())
    assert [one.picks for one in first] == [one.picks for one in again]
    assert [one.accuracy for one in first] == [one.accuracy for one in again]
    assert all(one.seconds["refine"] > 0 for one in first)


def test_the_stage_is_between_training_and_prediction():
    names = [stage.name for stage in STAGES]
    assert names[names.index("train") : names.index("propagate") + 1] == ["train", "refine", "predict", "propagate"]
    assert REFINE.gives is RefinedModel and REFINE.split is None
