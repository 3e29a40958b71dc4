"""The buffer of a stream: bounded, balanced, deterministic, and the candidates that rounds get from it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from core.config import KernelConfig, MediaConfig, RoundConfig, SelectionConfig
from core.coresets import design
from core.coresets.library.streaming import Reservoir
from core.rounds import stream_buffer
from core.rounds.candidates import choose_candidates
from core.rounds.context import StageContext
from core.rows import MemoryRowCache
from core.runtime import Runtime
from core.types import PoolSnapshot
from tests.round_pools import picture

SIZE = 90


@pytest.fixture(scope="module")
def stream() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(features, classes, order): ten digits, each rarer than the one before; 447 items."""
    x, y = load_digits(return_X_y=True)
    rows = [np.flatnonzero(y == c)[: max(4, int(180 * 0.6**c))] for c in range(10)]
    return x.astype(np.float32) / 16, y, np.random.default_rng(0).permutation(np.concatenate(rows))


def through(order: np.ndarray, features: np.ndarray, seen: list[int] | None = None) -> list:
    slots: list = []
    step = stream_buffer.slot_size(SIZE)

    def look(rows: np.ndarray) -> np.ndarray:
        if seen is not None:
            seen.append(len(rows))
        return features[rows]

    for start in range(0, len(order), step):
        slots = stream_buffer.add_batch(slots, order[start : start + step], SIZE, look)
    return slots


def held(slots: list) -> np.ndarray:
    return np.concatenate([slot.rows for slot in slots])


def test_the_buffer_and_every_read_of_features_stay_bounded_for_a_long_stream(stream):
    features, _, order = stream
    seen: list[int] = []
    slots = through(np.concatenate([order, order + 0, order[::-1]]), features, seen)
    step = stream_buffer.slot_size(SIZE)
    assert len(held(slots)) + step <= SIZE and len(slots) <= stream_buffer.N_SLOTS
    assert max(seen) <= 2 * step and max(seen) > step
    assert sum(slot.batches for slot in slots) == -(-3 * len(order) // step)


def test_no_row_is_dropped_while_all_rows_fit(stream):
    features, _, order = stream
    few = order[: stream_buffer.N_SLOTS * stream_buffer.slot_size(SIZE)]
    assert sorted(held(through(few, features))) == sorted(few)


def test_rare_classes_have_a_larger_share_than_a_reservoir_gives_them(stream):
    """The share of the five rarest classes, against the mean of ten reservoirs of the same size, and no repeats."""
    features, y, order = stream
    kept = held(through(order, features))
    assert len(set(kept.tolist())) == len(kept)
    reservoirs = []
    for seed in range(10):
        reservoir = Reservoir(len(kept), np.random.default_rng(seed))
        reservoir.add(order)
        reservoirs.append(float((y[reservoir.rows] >= 5).mean()))
    assert (y[kept] >= 5).mean() > 1.5 * np.mean(reservoirs) and (y[kept] >= 5).mean() > max(reservoirs)
    assert set(y[kept]) == set(range(10))
    assert np.bincount(y[kept]).max() / len(kept) < 0.8 * (y[order] == 0).mean()


def test_the_same_stream_leaves_the_same_buffer(stream):
    features, _, order = stream
    first, again = (through(order[:200], features) for _ in range(2))
    assert [slot.rows.tolist() for slot in first] == [slot.rows.tolist() for slot in again]


def test_a_row_counts_as_the_number_of_rows_that_it_represents():
    """The weighted criterion equals that of a pool where each row is repeated."""
    Z = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    copies = torch.tensor([1, 3, 2, 1, 1, 4])
    prior = design.Prior()
    weighted = design.criterion_matrix(Z, prior, copies.double())
    assert torch.allclose(weighted, design.criterion_matrix(Z.repeat_interleave(copies, 0), prior))
    chosen = design.greedy(Z, 3, prior, stands_for=copies.numpy().astype(float))
    repeated = design.greedy(Z.repeat_interleave(copies, 0), 3, prior)
    origin = np.repeat(np.arange(6), copies.numpy())
    assert chosen.rows.tolist() == origin[repeated.rows].tolist() and np.allclose(chosen.gains, repeated.gains)


def test_equal_items_and_one_item_are_reduced_without_a_fault():
    kept = stream_buffer.select_by_design(np.ones((6, 4), np.float32), np.ones(6), 3)
    assert len(set(kept.tolist())) == 3


def test_the_feature_extractor_gives_features_whose_products_are_the_kernel():
    """With as many landmarks as items, Nyström features are exact: their products are the values of the kernel."""
    from core.kernels.networks import by_name
    from core.kernels.ntk import kernel
    from core.media.inputs import prepare

    data = {f"{i:064x}": picture(i % 3, i) for i in range(9)}
    cache, media = MemoryRowCache(), MediaConfig(image_size=16, channels=1)
    eye = stream_buffer.FeatureExtractor(
        kind="image", media=media, kernel=KernelConfig(n_landmarks=64, tolerance=1e-12), read=data.__getitem__,
        cache=cache, device=torch.device("cpu"),
    )  # fmt: skip
    found = eye.features(list(data))
    inputs = prepare(list(data), data.__getitem__, "image", media, cache)
    clean = torch.from_numpy(np.asarray(inputs.clean.take(np.arange(9)), np.float32))
    exact = np.asarray(kernel(clean, None, by_name("scnn"), backend="torch"))
    assert np.allclose(found @ found.T, exact, rtol=1e-3, atol=1e-4)


def pool(n: int) -> PoolSnapshot:
    no = np.zeros(n, np.bool_)
    return PoolSnapshot(
        kind="image", class_names=("a", "b"), item_ids=np.arange(n) + 1, hashes=("0" * 64,) * n,
        labels=np.where(np.arange(n) < 5, 0, -1), held_out=no, held_out_labels=np.full(n, -1),
        eligible=np.arange(n) >= 5,
    )  # fmt: skip


@dataclasses.dataclass
class Seen:
    readable: np.ndarray


def candidates_of(offered: np.ndarray | None, region: np.ndarray | None = None):
    n = 400
    context = StageContext(
        snapshot=pool(n), config=RoundConfig(selection=SelectionConfig(batch_size=10)), read=lambda sha: b"",
        cache=MemoryRowCache(), runtime=Runtime.create(0, "cpu"), offered=offered, region=region,
    )  # fmt: skip
    return choose_candidates(context, Seen(np.ones(n, np.bool_)))


def test_rounds_choose_from_the_rows_of_the_buffer_and_say_so():
    offered = np.arange(400) % 10 == 7
    found = candidates_of(offered)
    assert found.rows.tolist() == [*range(5), *np.flatnonzero(offered & (np.arange(400) >= 5))]
    assert found.notes == ("Picked from 40 of 395 unlabeled items, the candidate pool of the folder.",)
    assert len(candidates_of(None).rows) == 400


def test_an_exhausted_buffer_and_a_region_are_filled_up_within_bounds():
    nearly_empty = np.arange(400) < 8  # three of them still wait
    found = candidates_of(nearly_empty).rows
    assert set(found) >= {5, 6, 7} and 10 <= len(found) - 5 <= 3 + 10
    region = np.arange(400) >= 390
    with_region = candidates_of(np.arange(400) % 10 == 7, region).rows
    assert set(range(390, 400)) <= set(with_region)
