"""Agreement between annotators against numbers worked out by hand."""

from __future__ import annotations

import pytest

from storage.database.store import Store
from storage.labeling.agreement import agreement, disagreements
from storage.projects.classes import merge_classes
from tests.storage.pools import event, make_pool


def alpha_by_hand(pairs: list[tuple[str, str]]) -> float:
    """1 - observed / expected disagreement for two annotators, nominal, from the definition."""
    values = [value for pair in pairs for value in pair]
    n = len(values)
    observed = sum(left != right for left, right in pairs) * 2 / n
    different = sum(values[i] != values[j] for i in range(n) for j in range(n) if i != j)
    return 1 - observed / (different / (n * (n - 1)))


def test_alpha_overall_and_per_class(store: Store) -> None:
    made = make_pool(store, 8, labels_per_item=2)
    robin, wren, owl = made.classes
    given = [(robin, robin), (robin, wren), (wren, wren), (owl, owl), (owl, robin), (wren, wren)]
    for item, (ann, bob) in zip(made.items, given, strict=False):
        made.pool.label(item, ann, annotator=made.ann)
        made.pool.label(item, bob, annotator=made.bob)
    made.pool.label(made.items[7], robin, annotator=made.ann)
    found = agreement(store, made.project_id)
    names = [(str(one), str(other)) for one, other in given]
    assert found.alpha == pytest.approx(alpha_by_hand(names))
    for class_id in made.classes:
        either = [tuple("this" if one == str(class_id) else "other" for one in pair) for pair in names]
        assert found.per_class[class_id] == pytest.approx(alpha_by_hand(either))  # type: ignore[arg-type]
    assert (found.n_items, found.n_labels, found.share_equal) == (6, 12, pytest.approx(4 / 6))

    assert [one.item_id for one in disagreements(store, made.project_id)] == [made.items[1], made.items[4]]
    assert disagreements(store, made.project_id)[0].labels == {made.ann: robin, made.bob: wren}
    made.pool.apply([event(made.items[1], "decide", wren)], annotator=made.bob)
    assert [one.item_id for one in disagreements(store, made.project_id)] == [made.items[4]]
    assert len(disagreements(store, made.project_id, include_decided=True)) == 2
    merge_classes(store, made.project_id, robin, owl)
    assert disagreements(store, made.project_id) == []


def test_without_shared_items_there_is_no_alpha(store: Store) -> None:
    made = make_pool(store, 3, labels_per_item=2)
    assert agreement(store, made.project_id).alpha is None
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    made.pool.label(made.items[0], made.classes[0], annotator=made.bob)
    found = agreement(store, made.project_id)
    assert (found.alpha, found.n_items, found.share_equal) == (None, 1, 1.0)
