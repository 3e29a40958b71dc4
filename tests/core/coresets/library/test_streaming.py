"""Merge-reduce's trace, its bounds, and the two reservoirs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.coresets.library.streaming import ClassBalancedReservoir, MergeReduce, Reservoir
from core.errors import InvalidInput


def first(rows, weights, size):
    return np.arange(size)


def test_three_slots_over_seven_steps_follow_the_papers_figure():
    buffer = MergeReduce(3, 2, first)
    trace = []
    for step in range(7):
        buffer.add(np.arange(10 * step, 10 * step + 5))
        trace.append(buffer.stands_for)
    assert trace == [[1], [1, 1], [1, 1, 1], [2, 1, 1], [2, 2, 1], [2, 2, 2], [4, 2, 1]]
    assert buffer.rows.tolist() == [0, 1, 40, 41, 60, 61]
    assert buffer.weights.tolist() == [4, 4, 2, 2, 1, 1]


def test_a_merge_passes_both_slots_with_the_numbers_that_they_represent():
    calls = []

    def reduce(rows, weights, size):
        calls.append((rows.tolist(), weights.tolist(), size))
        return np.arange(len(rows))[-size:]

    buffer = MergeReduce(1, 2, reduce)
    for step in range(3):
        buffer.add(np.array([2 * step, 2 * step + 1]))
    assert calls == [([0, 1, 2, 3], [1, 1, 1, 1], 2), ([2, 3, 4, 5], [2, 2, 1, 1], 2)]
    assert buffer.rows.tolist() == [4, 5]
    assert buffer.stands_for == [3]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.lists(st.integers(0, 9), max_size=60))
def test_the_buffer_is_bounded_and_every_batch_is_represented_once(n_slots, slot_size, sizes):
    buffer = MergeReduce(n_slots, slot_size, first)
    start = 0
    for size in sizes:
        buffer.add(np.arange(start, start + size))
        start += size
        assert len(buffer.slots) <= n_slots
        assert len(buffer.rows) <= n_slots * slot_size
        assert buffer.stands_for == sorted(buffer.stands_for, reverse=True)
    assert sum(buffer.stands_for) == sum(size > 0 for size in sizes)
    assert len(set(buffer.rows.tolist())) == len(buffer.rows)


def test_a_buffer_without_room_is_refused():
    with pytest.raises(InvalidInput, match="0 slots"):
        MergeReduce(0, 5, first)


def test_a_reservoir_keeps_every_row_with_the_same_probability():
    counts = np.zeros(40)
    for seed in range(2000):
        reservoir = Reservoir(8, np.random.default_rng(seed))
        reservoir.add(np.arange(40))
        counts[reservoir.rows] += 1
    # 2,000 draws at 8/40: standard deviation 18 around 400
    assert abs(counts - 400).max() < 5 * 18


def test_a_balanced_reservoir_keeps_rare_classes_whole():
    labels = np.array([0] * 500 + [1] * 6 + [2] * 300 + [0] * 200)
    balanced = ClassBalancedReservoir(30, np.random.default_rng(0))
    for part in np.array_split(np.arange(len(labels)), 10):
        balanced.add(part, labels[part])
    kept = np.bincount(labels[balanced.rows])
    assert kept.sum() == 30
    assert kept[1] == 6
    assert abs(int(kept[0]) - int(kept[2])) <= 2


def trace_of(n_slots: int, n_batches: int, **settings) -> list[list[int]]:
    buffer, trace = MergeReduce(n_slots, 2, first, **settings), []
    for step in range(n_batches):
        buffer.add(np.arange(10 * step, 10 * step + 5))
        trace.append(buffer.stands_for)
    return trace


def printed_index(beta: list[int], s: int) -> int:
    """select_index of Algorithm 3, literally: positions count from 1, `beta` has s + 1 values."""
    if s == 1 or beta[s - 2] > beta[s - 1]:
        return s
    return next(i for i in range(1, s + 1) if beta[i - 1] == beta[i])


def printed_trace(s: int, n_batches: int) -> list[list[int]]:
    beta: list[int] = []
    trace = []
    for _ in range(n_batches):
        beta.append(1)
        if len(beta) > s:
            k = printed_index(beta, s)
            beta[k - 1] += beta.pop(k)
        trace.append(list(beta))
    return trace


def test_four_slots_follow_the_printed_rule_by_hand():
    assert trace_of(4, 15)[4:] == [
        [2, 1, 1, 1], [2, 2, 1, 1], [4, 1, 1, 1], [4, 2, 1, 1], [4, 2, 2, 1], [4, 2, 2, 2], [4, 4, 2, 1], [4, 4, 2, 2],
        [8, 2, 2, 1], [8, 2, 2, 2], [8, 4, 2, 1],
    ]  # fmt: skip


def test_ten_slots_follow_the_printed_rule_by_hand():
    ones = [1] * 7
    assert trace_of(10, 17)[9:] == [
        [1, 1, 1, *ones], [2, 1, 1, *ones], [2, 2, 1, *ones], [4, 1, 1, *ones], [4, 2, 1, *ones], [4, 2, 2, *ones],
        [4, 4, 1, *ones], [8, 1, 1, *ones],
    ]  # fmt: skip


@pytest.mark.parametrize("s", [1, 2, 3, 4, 5, 7, 10])
def test_the_printed_rule_agrees_with_the_pseudocode(s):
    assert trace_of(s, 200) == printed_trace(s, 200)


def test_the_other_rule_keeps_the_numbers_close_to_each_other():
    assert trace_of(4, 9, rule="fewest")[4:] == [[2, 1, 1, 1], [2, 2, 1, 1], [2, 2, 2, 1], [2, 2, 2, 2], [4, 2, 2, 1]]
    assert trace_of(3, 40, rule="fewest") == trace_of(3, 40)
