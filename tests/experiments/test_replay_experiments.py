"""The replay and transfer experiments on tiny synthetic pictures: memories are replayed, and sets are as described."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from core.coresets.library.linear import SoftmaxProblem, one_hot
from core.coresets.library.replay import ReplayConfig, bilevel_summary, learn_task
from experiments.paper import multiclass_logistic, network_transfer
from experiments.record import Arguments, Parts
from experiments.replay import continual, split_cifar, streaming_imbalanced, streaming_rivals, variational_continual
from experiments.replay.digit_networks import PENALTY, Convolutional, Dense, dense_ntk, dropped
from experiments.replay.gradient_selection import gradient_cosines
from experiments.replay.replay_memories import bilevel_choice
from experiments.replay.together import DenseStack, Learner, learn_together, learner

pytestmark = pytest.mark.slow


def pictures(labels: torch.Tensor, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A small pattern per class on a large one that all share, so that a new task overwrites an earlier one."""
    patterns = torch.randn(11, *shape, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(len(labels), *shape, generator=torch.Generator().manual_seed(seed))
    return 2 * patterns[10] + 0.5 * patterns[labels] + 0.3 * noise


def two_tasks(n: int, shape: tuple[int, ...] = (1, 28, 28)) -> list[tuple[torch.Tensor, ...]]:
    tasks = []
    for low in (0, 2):
        y, yt = low + torch.arange(n) % 2, low + torch.arange(40) % 2
        tasks.append((pictures(y, shape, low + 1), y, pictures(yt, shape, low + 2), yt))
    return tasks


@pytest.mark.parametrize("method", ["gradient selection", "exemplar streaming"])
def test_the_memory_of_a_stream_holds_the_first_task(method):
    tasks = two_tasks(250)
    learners = [learner(partial(Dense, 30), 100, beta, 0) for beta in (10.0, 0.0)]
    if method == "exemplar streaming":
        found = streaming_rivals.exemplar_streaming(tasks, learners)
    else:
        found = streaming_rivals.gradient_selection(tasks, learners, [0, 0], streaming_rivals.EQUAL_STEPS)
    assert found[0] > found[1] + 20


def test_beta_of_an_imbalanced_stream_is_chosen_on_rows_that_no_stream_contains(monkeypatch, tmp_path):
    y = np.arange(40_000) % 10
    x = np.arange(40_000, dtype=np.float32)[:, None, None] * np.ones((1, 2, 2), np.float32)
    monkeypatch.setattr(streaming_imbalanced, "mnist", lambda data: (x, y, x[:50] + 0.5, y[:50]))
    learned, tuning, tests = streaming_imbalanced.stream(Arguments("small", tmp_path, tmp_path), seed=3)
    assert np.bincount(learned[1] // 2).tolist() == [200, 200, 200, 200, 2_000]
    assert (learned[1][:200] // 2 == 0).all() and (learned[1][-2_000:] // 2 == 4).all()
    assert np.bincount(tuning[1] // 2).tolist() == [400] * 5
    numbers = [set(rows[0][:, 0, 0, 0].tolist()) for rows in (learned, tuning, tests)]
    assert len(numbers[0]) == 2_800 and len(numbers[1]) == 2_000
    assert not numbers[0] & numbers[1] and not numbers[2] & (numbers[0] | numbers[1])


def test_networks_trained_together_learn_as_in_separate_trainings():
    x, y, _, _ = two_tasks(40)[0]
    together, alone = ([without_dropout(seed) for seed in (0, 1)] for _ in range(2))
    before = [part.clone() for part in together[0].network.parameters()]
    learn_together(together, x, y, ReplayConfig(beta=0.0, epochs=3, batch_size=16))
    for one in alone:
        config = ReplayConfig(beta=one.beta, epochs=3, batch_size=16)
        learn_task(one.network, (x, y), one.memory, config, generator=one.generator)
    for own, other in zip(together, alone, strict=True):
        for part, expected in zip(own.network.parameters(), other.network.parameters(), strict=True):
            torch.testing.assert_close(part, expected, atol=1e-5, rtol=1e-4)
    after = together[0].network.parameters()
    assert all((part - start).abs().max() > 1e-3 for part, start in zip(after, before, strict=True))


def without_dropout(seed: int) -> Learner:
    """Networks without dropout, with a memory of two slots."""
    one = learner(partial(Dense, 20), 20, 3.0, seed)
    for part in one.network.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    for slot in range(2):
        labels = (torch.arange(10) + slot) % 5
        one.memory.add(pictures(labels, (1, 28, 28), 10 * seed + slot), labels)
    return one


def test_cosines_of_a_stack_are_those_of_its_networks_gradients():
    x, y, _, _ = two_tasks(12)[0]
    networks = [without_dropout(seed).network for seed in (0, 1)]
    found = DenseStack(networks).cosines(x.flatten(1).expand(2, -1, -1), y.expand(2, -1))
    for own, network in zip(found, networks, strict=True):
        torch.testing.assert_close(own, gradient_cosines(network, x, y), atol=1e-5, rtol=1e-4)


def test_dropout_keeps_the_expected_share_and_mean():
    torch.manual_seed(0)
    found = dropped(torch.ones(3, 200, 101), 0.2)
    assert set(found.unique().tolist()) == {0.0, 1.25}
    np.testing.assert_allclose((found == 0).double().mean((1, 2)), 0.2, atol=0.01)


def test_parts_are_measured_once(tmp_path):
    measured = []

    def measure():
        measured.append(1)
        return [{"value": np.float64(0.5)}]

    for _ in range(2):
        assert Parts(tmp_path, {"n": 3}).rows("seed 0", measure) == [{"value": 0.5}]
    assert len(measured) == 1
    with (tmp_path / "parts.jsonl").open("a") as file:
        file.write('\n{"part": "seed 1", "rows": [')  # interrupted
    assert len(Parts(tmp_path, {"n": 3}).known) == 1
    Parts(tmp_path, {"n": 4}).rows("seed 0", measure)
    assert len(measured) == 2


def test_coresets_bring_the_first_task_back_in_variational_learning():
    tasks = two_tasks(120)
    scale = {"width": 30, "epochs": 100, "coreset_epochs": 150, "rate": 1e-3}
    found = {}
    for method in ("without coresets", "uniform"):
        rows = [variational_continual.chosen_rows(method, tasks, "split", seed) for seed in (0, 1, 2)]
        found[method] = np.array(variational_continual.learn(tasks, rows, scale, (0, 1, 2)))
    assert (found["uniform"] > found["without coresets"]).all()
    assert (found["uniform"] - found["without coresets"]).mean() > 5


def test_the_kept_choice_is_the_beginning_of_a_longer_one():
    x, y, _, _ = two_tasks(60)[0]
    choose = bilevel_choice(dense_ntk)
    longer = choose(None, x, y, 12)
    for size in (1, 5, 12):
        alone = bilevel_summary(dense_ntk(x), one_hot(y, 10), size, penalty=PENALTY)
        assert choose(None, x, y, size).tolist() == alone.tolist() == longer[:size].tolist()


def test_beta_is_chosen_on_the_rows_for_tuning_and_not_on_the_test_rows():
    rows = [
        {"beta": beta, "seed": seed, "tuning": tuning, "accuracy": accuracy}
        for beta, tuning, accuracy in ((1.0, 60.0, 10.0), (10.0, 50.0, 90.0))
        for seed in (0, 1)
    ]
    assert continual.at_better_beta(rows) == rows[:2]


@pytest.mark.parametrize("make", [continual.split, continual.permuted])
def test_rows_for_tuning_are_in_no_task_and_not_in_the_test_part(monkeypatch, tmp_path, make):
    x, xt = (torch.rand(n, 14, 14, generator=torch.Generator().manual_seed(n)).numpy() for n in (400, 100))
    y, yt = np.arange(400) % 10, np.arange(100) % 10
    monkeypatch.setattr(continual, "pictures", lambda arguments: (x, y, xt, yt))
    arguments = Arguments("small", tmp_path, tmp_path)
    tasks, others = (make(arguments, 50, 30, tuning=tuning) for tuning in (False, True))
    kinds = {len(np.unique(labels)) for _, _, _, labels in (*tasks, *others)}
    assert kinds == ({2} if make is continual.split else {10})
    pixels = {True: np.sort(x.reshape(400, -1), 1), False: np.sort(xt.reshape(100, -1), 1)}  # in any order
    for (learned, labels, tests, _), (again, same, tuning, _) in zip(tasks, others, strict=True):
        assert torch.equal(learned, again) and torch.equal(labels, same)
        own, held, tested = (rows_of(np.sort(part.flatten(1).numpy(), 1)) for part in (learned, tuning, tests))
        assert not own & held and held <= rows_of(pixels[True]) and tested <= rows_of(pixels[False])
        assert len(tuning) == len(tests)


def rows_of(pictures: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in pictures}


def test_split_cifar_takes_each_tasks_own_bilevel_rows(monkeypatch):
    monkeypatch.setattr(split_cifar, "MEMORY", 8)
    tasks = two_tasks(40, (3, 16, 16))
    orders = split_cifar.bilevel_orders(tasks)
    for low, (x, y, _, _) in zip((0, 2), tasks, strict=True):
        chosen = split_cifar.chooser("bilevel", orders, 0)(None, x, y, 4)
        assert chosen.tolist() == orders[low][:4].tolist()
        assert len(set(orders[low].tolist())) == 8
    scale = {"channels": (4, 8), "width": 16, "epochs": 3}
    first, again, without = (
        split_cifar.study(m, tasks, orders, scale, [10.0], 0) for m in ("bilevel", "bilevel", split_cifar.WITHOUT)
    )
    assert first == again
    assert (without[0]["method"], without[0]["beta"]) == (split_cifar.WITHOUT, 0.0)
    assert 0 <= without[0]["accuracy"] <= 100


def test_the_convolutional_network_takes_pictures_of_any_size():
    for picture in ((1, 28), (3, 32), (3, 16)):
        outputs = Convolutional((4, 8), 16, 0.5, picture)(torch.zeros(2, picture[0], picture[1], picture[1]))
        assert outputs.shape == (2, 10)


def test_transferred_sets_have_their_size_and_train_other_networks():
    y = torch.arange(80) % 4
    x, xt, yt = pictures(y, (3, 8, 8), 1), pictures(y, (3, 8, 8), 2), y
    scale = network_transfer.SMALL | {"coreset": 24, "start": 8, "batch": 8, "steps": 12, "terms": 4}
    sets = network_transfer.chosen_sets(x, y, scale, 0)
    assert {name: len(set(rows.tolist())) for name, rows in sets.items()} == {
        "bilevel": 24, "uniform": 24, "k-center, embeddings": 24, "forgetting": 24, "all rows": 80,
    }  # fmt: skip
    assert sets["bilevel"][:8].tolist() == sets["uniform"][:8].tolist()  # from the same random rows
    scale = scale | {"steps": 40}
    for make in network_transfer.TARGETS.values():
        found = network_transfer.trained_on(make, np.arange(80), (x, y, xt, yt), scale, 0)
        assert found["accuracy"] > 60 and found["outer"] < 1.5


def test_weights_of_the_sum_fit_the_same_model_as_those_of_the_mean():
    draw = torch.Generator().manual_seed(0)
    features, targets = torch.randn(30, 4, generator=draw).double(), one_hot(torch.arange(30) % 3, 3)
    weights = torch.rand(30, generator=draw).double()
    weights[::3] = 0
    weights /= weights.sum()
    mean, total = (
        SoftmaxProblem(features=features, targets=targets, penalty=1e-2, mean=mean, tolerance=1e-9)
        for mean in (True, False)
    )
    found = mean.solve(multiclass_logistic.for_the_mean(weights)).parameters
    torch.testing.assert_close(found, total.solve(weights).parameters, atol=1e-6, rtol=1e-6)
