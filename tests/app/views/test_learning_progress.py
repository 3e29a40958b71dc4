"""Learning progress over finished rounds and the map of a round, compared with counts made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from app.views import map_layers
from app.views.figures import charts
from app.views.figures.map import map_figure
from app.views.learning_progress import accuracy_words, advice, learning_progress, worst_confusion
from core.config import RoundConfig
from core.types import PickReason, Selection
from storage.projects.classes import merge_classes
from storage.projects.deletion import request_deletion, run_deletion
from storage.rounds.log import RoundLog
from tests.storage.pools import Made, make_pool


def finished(
    made: Made,
    predicted: list[int],
    picks: list[int],
    accuracy: float | None = None,
    earlier: bool = False,
    second_looks: tuple[int, ...] = (),
) -> int:
    """A finished round that predicts class predicted[k] for item k, and whose picks are the items at `picks`."""
    log = RoundLog(made.store, made.project_id)
    row = log.request(RoundConfig())
    log.start(row.id)
    probabilities = np.full((len(predicted), 3), 0.1, np.float32)
    probabilities[np.arange(len(predicted)), predicted] = 0.8
    ids = np.array([made.items[place] for place in picks], np.int64)
    selection = Selection(
        item_ids=ids,
        scores=np.ones(len(ids), np.float32),
        strategy="bico",
        reasons=tuple(
            PickReason(order=k + 1, score=1.0, stands_for=3, second_look=place in second_looks)
            for k, place in enumerate(picks)
        ),
    )
    metrics: dict[str, object] = {"has_model": True, "class_names": ["robin", "wren", "owl"], "n_held_out": 0}
    if accuracy is not None:
        metrics |= {} if earlier else {"accuracy_measure": "inductive", "accuracy_with_propagation": 0.95}
        metrics |= {"accuracy": accuracy, "n_held_out": 100, "confusion": [[5, 1, 0], [0, 6, 0], [2, 0, 4]]}
    places = np.stack([np.arange(len(predicted)), np.zeros(len(predicted))], 1).astype(np.float32)
    arrays = {"item_ids": np.array(made.items, np.int64), "probabilities": probabilities, "map": places}
    log.finish(row.id, arrays=arrays, selection=selection, metrics=metrics)
    return row.id


def test_wrong_predictions_are_counted_among_labeled_picks_only(sqlite_store):
    made = make_pool(sqlite_store, 6)
    round_id = finished(made, [0, 1, 2, 0, 1, 2], picks=[0, 1, 2])
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    made.pool.label(made.items[1], made.classes[2], annotator=made.ann)
    made.pool.label(made.items[5], made.classes[0], annotator=made.ann)
    found = learning_progress(made.store, made.project_id).on_picks[round_id]
    assert (found.labeled, found.wrong) == (2, 1)


def test_second_looks_do_not_count_as_predictions_of_the_batch(sqlite_store):
    """Their items had labels before the round, which trained on them."""
    made = make_pool(sqlite_store, 6)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    round_id = finished(made, [0, 1, 2, 0, 1, 2], picks=[0, 1], second_looks=(0,))
    assert round_id not in learning_progress(made.store, made.project_id).on_picks
    made.pool.label(made.items[1], made.classes[2], annotator=made.ann)
    found = learning_progress(made.store, made.project_id).on_picks[round_id]
    assert (found.labeled, found.wrong) == (1, 1)


def test_a_predicted_class_that_was_merged_counts_as_its_target(sqlite_store):
    made = make_pool(sqlite_store, 3)
    round_id = finished(made, [1, 1, 1], picks=[0])
    merge_classes(made.store, made.project_id, made.classes[1], made.classes[0], by=made.ann)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    assert learning_progress(made.store, made.project_id).on_picks[round_id].wrong == 0


def test_accuracy_on_test_items_and_on_picks_are_never_mixed(sqlite_store):
    made = make_pool(sqlite_store, 4)
    finished(made, [0, 0, 0, 0], picks=[0])
    made.pool.label(made.items[0], made.classes[1], annotator=made.ann)
    before = learning_progress(made.store, made.project_id)
    assert (before.measure, [point.share for point in before.curve]) == ("picks", [0.0])
    finished(made, [0, 0, 0, 0], picks=[1], accuracy=0.8)
    after = learning_progress(made.store, made.project_id)
    assert (after.measure, [point.correct for point in after.curve]) == ("test items", [80])


def test_advice_says_stop_only_after_two_batches_within_the_interval(sqlite_store):
    made = make_pool(sqlite_store, 6)
    for pick, accuracy in enumerate((0.6, 0.9)):
        finished(made, [0] * 6, picks=[pick], accuracy=accuracy)
    assert advice(learning_progress(made.store, made.project_id)).startswith("Keep going")
    finished(made, [0] * 6, picks=[2], accuracy=0.91)
    assert advice(learning_progress(made.store, made.project_id)).startswith("Keep going")
    finished(made, [0] * 6, picks=[3], accuracy=0.91)
    assert "you can stop here" in advice(learning_progress(made.store, made.project_id))


def test_the_worst_confusion_is_named():
    counts = np.array([[5, 1, 0], [0, 6, 0], [2, 0, 4]])
    assert worst_confusion(counts, ["robin", "wren", "owl"]) == ("owl", "robin", 2)
    assert worst_confusion(np.eye(3, dtype=np.int64), ["a", "b", "c"]) is None


@pytest.mark.parametrize(("successes", "n", "low", "high"), [(8, 10, 0.4902, 0.9433), (0, 20, 0.0, 0.1611)])
def test_the_interval_is_the_wilson_interval(successes, n, low, high):
    """Values from the published formula, computed by hand."""
    assert charts.wilson(successes, n) == pytest.approx((low, high), abs=5e-4)


def test_the_map_shows_current_labels_at_the_positions_of_the_round(sqlite_store):
    made = make_pool(sqlite_store, 5)
    round_id = finished(made, [0, 1, 2, 0, 1], picks=[3, 1])
    before = map_layers.map_layers(made.store, made.project_id, round_id)
    assert before is not None and before.label.tolist() == [-1] * 5
    made.pool.label(made.items[3], made.classes[2], annotator=made.bob)
    after = map_layers.map_layers(made.store, made.project_id, round_id)
    assert after is not None
    assert after.label.tolist() == [-1, -1, -1, 2, -1]
    assert after.label_round.tolist() == [-1, -1, -1, 1, -1]
    assert after.annotator_names[after.annotator[3]] == "Bob"
    assert after.picks.tolist() == [3, 1]
    figure = map_figure(after, "Prediction", (), dark=True)
    assert [list(trace.customdata) for trace in figure.data] == [
        [made.items[k] for k in (0, 2, 4, 1)],  # picks last: a click among neighbors opens them
        [made.items[3]],
        [made.items[3], made.items[1]],
    ]


def test_deleted_items_are_neither_drawn_nor_selected(sqlite_store):
    made = make_pool(sqlite_store, 5)
    round_id = finished(made, [0, 1, 2, 0, 1], picks=[3, 1])
    made.pool.label(made.items[4], made.classes[2], annotator=made.bob)
    run_deletion(made.store, request_deletion(made.store, made.project_id, "birds", [made.items[0], made.items[3]]).id)
    found = map_layers.map_layers(made.store, made.project_id, round_id)
    assert found is not None
    assert found.drawn.tolist() == [1, 2, 4] and found.picks.tolist() == [1] and set(found.names) == {1, 2, 4}
    assert found.label.tolist() == [-1, -1, -1, -1, 2] and found.held_out.tolist() == [True, False, False, True, False]


@pytest.mark.parametrize("coloring", ["Prediction", "Label", "Confidence", "Round", "Annotator"])
def test_every_coloring_gives_every_item_a_color(sqlite_store, coloring):
    made = make_pool(sqlite_store, 4)
    round_id = finished(made, [0, 1, 2, 0], picks=[0])
    made.pool.label(made.items[0], made.classes[2], annotator=made.ann)
    found = map_layers.map_layers(made.store, made.project_id, round_id)
    assert found is not None
    figure = map_figure(found, coloring, (), dark=False)
    colors = [color for trace in figure.data[:2] for color in trace.marker.color]
    assert len(colors) == 4 and all(color.startswith("#") and len(color) == 7 for color in colors)


def test_an_area_contains_the_points_inside_its_polygon():
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, (500, 2)).astype(np.float32)
    circle = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    within = map_layers.inside(points, 0.7 * np.cos(circle), 0.7 * np.sin(circle))
    distance = np.linalg.norm(points, axis=1)
    clear = np.abs(distance - 0.7) > 0.01
    assert np.array_equal(within[clear], (distance < 0.7)[clear])


@pytest.mark.parametrize("n_labeled", [0, 100, 150_000, 199_000, 200_000])
def test_a_huge_map_draws_a_stated_sample_that_keeps_labels_and_picks(n_labeled):
    """The number of drawn points is bounded; areas are resolved on all items."""
    label = np.full(200_000, -1)
    label[:n_labeled] = 1
    drawn = map_layers.drawn_rows(label, np.array([199_999, 7]), 200_000)
    size = map_layers.SAMPLED_POINTS
    assert len(drawn) == len(set(drawn.tolist())) and size <= len(drawn) <= size + 2 and 199_999 in drawn
    shown = int((label[drawn] != -1).sum())
    if n_labeled == 100:
        assert np.isin(np.arange(100), drawn).all()
    elif 0 < n_labeled < 200_000:
        assert abs(shown - max(size // 2, size - (200_000 - n_labeled))) <= 2
        thirds = np.histogram(drawn[label[drawn] != -1], 3, (0, n_labeled))[0]
        assert thirds.min() > 0.28 * shown, "labeled items are a random sample, not the first ones"


def test_names_cannot_become_markup_on_a_chart(sqlite_store):
    """Plotly interprets some HTML in texts."""
    made = make_pool(sqlite_store, 2, name="<a href='http://x'>")
    round_id = finished(made, [0, 1], picks=[0])
    found = map_layers.map_layers(made.store, made.project_id, round_id)
    assert found is not None
    hovers = [text for trace in map_figure(found, "Label", (), dark=False).data for text in trace.hovertext]
    assert all("<a" not in text for text in hovers)
    bars = charts.class_counts([1, 2, 3], ("<b>x</b>", "b", "c"), dark=False).data[0]
    assert [str(name) for name in bars.x] == ["&lt;b&gt;x&lt;/b&gt;", "b", "c"]


def test_the_accuracy_of_earlier_versions_is_marked_and_never_in_one_curve_with_the_inductive_one(sqlite_store):
    made = make_pool(sqlite_store, 6)
    first = finished(made, [0] * 6, picks=[0], accuracy=0.99, earlier=True)
    found = learning_progress(made.store, made.project_id)
    assert (found.measure, len(found.curve), found.n_earlier) == ("earlier measure", 1, 0)
    assert found.with_propagation is None
    second = finished(made, [0] * 6, picks=[1], accuracy=0.7)
    found = learning_progress(made.store, made.project_id)
    assert [point.share for point in found.curve] == [0.7] and found.measure == "test items"
    assert (found.n_earlier, found.gain, found.with_propagation) == (1, None, 0.95)
    log = RoundLog(made.store, made.project_id)
    assert accuracy_words(log.get(first)) == "99.0 % (earlier measure)"
    assert accuracy_words(log.get(second)) == "70.0 %"
