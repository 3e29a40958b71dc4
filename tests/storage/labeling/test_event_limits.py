"""The limits of stored values, at their edges, and events that depend on others of their batch."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from core.errors import InvalidInput
from storage.database.store import Store
from storage.exporting.rows import ExportOptions
from storage.projects.class_rows import COLORS, color_of
from storage.projects.classes import add_class, rename_class
from tests.storage.pools import Made, event, make_pool


@pytest.fixture
def made(sqlite_store: Store) -> Made:
    return make_pool(sqlite_store, 3)


def test_an_action_can_be_undone_once_within_one_batch(made: Made):
    label = event(made.items[0], class_id=made.classes[0])
    undos = [event(made.items[0], "undo", undoes=label.uuid) for _ in range(2)]
    results = made.pool.apply([label, *undos], annotator=made.ann)
    assert [one.accepted for one in results] == [True, True, False]
    assert results[2].reason == "This was already undone."


def test_one_uuid_in_two_spellings_is_one_event(made: Made):
    name = str(uuid.uuid4())
    for spelling in (name.upper(), name, f"{{{name}}}"):
        one = event(made.items[0], class_id=made.classes[0], uuid=spelling)
        assert [result.accepted for result in made.pool.apply([one], annotator=made.ann)] == [True]
    assert [row.uuid for row in made.pool.history(made.items[0])] == [name]


@pytest.mark.parametrize(
    ("given", "stored"), [(0.0, 0.0), (0.5, 0.5), (9.9e8, 9.9e8), (1e9, None), (-0.001, None), (None, None)]
)
def test_seconds_are_stored_when_they_are_a_measurement(made: Made, given, stored):
    made.pool.apply([event(made.items[0], class_id=made.classes[0], seconds=given)], annotator=made.ann)
    assert made.pool.history(made.items[0])[0].seconds == stored


def test_the_first_second_of_the_epoch_is_a_valid_time(made: Made):
    at = datetime(1970, 1, 1, tzinfo=UTC)
    [result] = made.pool.apply([event(made.items[0], class_id=made.classes[0], at=at)], annotator=made.ann)
    assert result.accepted, result.reason


@pytest.mark.parametrize("item", [2**63, 2**63 - 1, -(2**63), -(2**63) - 1])
def test_item_numbers_beyond_the_database_are_refused(made: Made, item: int):
    [result] = made.pool.apply([event(item, class_id=made.classes[0])], annotator=made.ann)
    assert not result.accepted and "is not in this project" in result.reason


def test_names_of_classes_have_a_longest_length(made: Made, sqlite_store: Store):
    assert len(rename_class(sqlite_store, made.project_id, made.classes[0], "n" * 1_000).name) == 1_000
    for change in (
        lambda: rename_class(sqlite_store, made.project_id, made.classes[1], "n" * 1_001),
        lambda: add_class(sqlite_store, made.project_id, "m" * 1_001),
    ):
        with pytest.raises(InvalidInput):
            change()


def test_colors_beyond_the_palette_have_medium_lightness_and_differ_from_their_neighbors():
    assert [color_of(place) for place in range(len(COLORS))] == list(COLORS)
    beyond = [color_of(place) for place in range(len(COLORS), 200)]
    for one, following in pairwise(beyond):
        values, others = ([int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in (one, following))
        assert abs((max(values) + min(values)) / 510 - 0.55) < 0.01
        assert abs((max(values) - min(values)) / 255 - 0.45) < 0.01  # saturation 0.5
        assert max(abs(a - b) for a, b in zip(values, others, strict=True)) > 50


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_every_confidence_from_zero_to_one_can_be_the_bound_of_pseudo_labels(share: float):
    assert ExportOptions(format="csv", pseudo_above=share).pseudo_above == share
    with pytest.raises(InvalidInput, match="from 0 to 1"):
        ExportOptions(format="csv", pseudo_above=1.001 if share else -0.001)
