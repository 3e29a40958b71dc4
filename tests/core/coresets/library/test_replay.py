"""The replay memory's slots and loss, and the contract of every summary."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from core.coresets.library.linear import SoftmaxProblem, kernel_factor, one_hot
from core.coresets.library.replay import ReplayConfig, ReplayMemory, bilevel_summary, evidence_of, learn_task
from core.coresets.library.summaries import SUMMARIES, Evidence, gradient_matching, k_center, summarize
from core.errors import InvalidInput

pytestmark = pytest.mark.slow


def test_tasks_share_the_memory_equally_and_keep_their_first_rows():
    memory = ReplayMemory(12)
    sizes = []
    for task in range(4):
        size = memory.next_slot_size
        memory.add(torch.arange(size)[:, None] + 100.0 * task, torch.full((size,), task))
        sizes.append([len(slot.labels) for slot in memory.slots])
    assert sizes == [[12], [6, 6], [4, 4, 4], [3, 3, 3, 3]]
    assert memory.slots[0].inputs.flatten().tolist() == [0, 1, 2]
    assert memory.slots[3].inputs.flatten().tolist() == [300, 301, 302]


def test_more_tasks_than_rows_are_refused():
    memory = ReplayMemory(1)
    memory.add(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(InvalidInput, match="2 tasks"):
        memory.add(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))


def test_the_replay_loss_sums_the_weighted_mean_of_every_slot():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    memory = ReplayMemory(4)
    x, y, w = torch.randn(4, 3), torch.tensor([0, 1, 1, 0]), torch.tensor([1.0, 2.0, 0.5, 1.0])
    memory.add(x, y, w)
    memory.add(x[2:], y[2:])
    each = cross_entropy(model(x), y, reduction="none")
    expected = (each[0] * 1 + each[1] * 2) / 2 + each[2:].mean()
    torch.testing.assert_close(memory.loss(model), expected)
    assert float(ReplayMemory(4).loss(model)) == 0


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(2, 16), torch.nn.Linear(16, 4)

    def embed(self, x):
        return torch.tanh(self.hidden(x))

    def forward(self, x):
        return self.out(self.embed(x))


def tasks():
    """Two tasks of two well-separated classes each."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.tensor([[3.0, 0], [-3, 0], [0, 3], [0, -3]])
    for pair in ((0, 1), (2, 3)):
        labels = torch.tensor(pair).repeat(40)
        yield centers[labels] + 0.5 * torch.randn(80, 2, generator=generator), labels


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_replay_keeps_the_first_task_and_without_it_the_task_is_forgotten(beta):
    torch.manual_seed(0)
    model, memory = Net(), ReplayMemory(8)
    config = ReplayConfig(beta=beta, epochs=60, batch_size=40, learning_rate=0.02)
    for inputs, labels in tasks():
        learn_task(model, (inputs, labels), memory, config, generator=torch.Generator().manual_seed(0))
        rows = summarize("iCaRL", evidence_of(model, inputs, labels, 0), memory.next_slot_size)
        memory.add(inputs[rows], labels[rows])
    first, labels = next(iter(tasks()))
    kept = float((model(first).argmax(1) == labels).double().mean())
    assert kept > 0.95 if beta else kept < 0.6


def evidence(n=40, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % 4
    embeddings = generator.normal(size=(n, 5)) + labels[:, None]
    logits = generator.normal(size=(n, 4)) + 2 * np.eye(4)[labels]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return Evidence(features=embeddings**2, embeddings=embeddings, probabilities=p, labels=labels, seed=3)


@pytest.mark.parametrize("name", SUMMARIES)
@pytest.mark.parametrize("size", [1, 7, 40])
def test_every_summary_gives_distinct_rows_and_the_same_ones_again(name, size):
    rows = summarize(name, evidence(), size)
    assert rows.shape == (size,)
    assert len(set(rows.tolist())) == size
    assert rows.min() >= 0
    assert rows.max() < 40
    np.testing.assert_array_equal(rows, summarize(name, evidence(), size))


def test_each_summary_selects_by_its_named_criterion():
    e = evidence()
    p = e.probabilities
    assert summarize("max entropy", e, 1)[0] == (p * np.log(p)).sum(1).argmin()
    assert summarize("hardest", e, 1)[0] == p[np.arange(40), e.labels].argmin()
    assert np.bincount(e.labels[summarize("iCaRL", e, 8)], minlength=4).tolist() == [2, 2, 2, 2]
    far = np.array([[0.0], [1.0], [10.0], [5.2]])
    begin, second = k_center(far, 2, 0)
    assert second == abs(far - far[begin]).argmax()
    raw = np.array([[1.0, 0], [0, 8.0], [-1.0, 0], [0.9, 0.1]])  # lengths do not count
    gradients = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    target = gradients.mean(0)
    first = int(((gradients - target) ** 2).sum(1).argmin())
    pairs = [((target - (gradients[first] + gradients[row]) / 2) ** 2).sum() for row in range(4) if row != first]
    second = [row for row in range(4) if row != first][int(np.argmin(pairs))]
    assert gradient_matching(raw, 2).tolist() == [first, second]
    seeds = summarize("k-means features", e, 3)
    assert len(set(seeds.tolist())) == 3
    with pytest.raises(InvalidInput, match="no summary called"):
        summarize("luck", e, 1)


def test_last_layer_gradients_are_those_of_autograd():
    torch.manual_seed(1)
    model = Net()
    inputs, labels = torch.randn(5, 2), torch.tensor([0, 1, 2, 3, 1])
    found = evidence_of(model, inputs, labels, 0).gradients
    for row in range(5):
        model.zero_grad()
        cross_entropy(model(inputs[row : row + 1]), labels[row : row + 1]).backward()
        np.testing.assert_allclose(found[row], model.out.weight.grad.flatten().numpy(), atol=1e-6)


def test_a_bilevel_summary_covers_the_classes_in_few_rows():
    x, y = torch.cat([x for x, _ in tasks()]).double(), torch.cat([y for _, y in tasks()])
    rows = bilevel_summary(torch.exp(-0.2 * torch.cdist(x, x) ** 2), one_hot(y, 4), 4)
    assert sorted(y[rows].tolist()) == [0, 1, 2, 3]


def test_the_first_row_of_a_summary_lowers_the_loss_most_when_it_enters_alone():
    x, y = torch.cat([x for x, _ in tasks()]).double(), torch.cat([y for _, y in tasks()])
    kernel = torch.exp(-0.2 * torch.cdist(x, x) ** 2)
    problem = SoftmaxProblem(features=kernel_factor(kernel), targets=one_hot(y, 4), penalty=1e-2, tolerance=1e-10)
    nothing = torch.zeros(4, problem.features.shape[1], dtype=torch.float64)
    influence = problem.influence(nothing, torch.zeros(len(y))).scores
    drops = []
    for row in range(len(y)):
        weights = torch.zeros(len(y), dtype=torch.float64)
        weights[row] = 1e-6
        drops.append((problem.outer(nothing) - problem.outer(problem.solve(weights).parameters)) / 1e-6)
    torch.testing.assert_close(influence, torch.tensor(drops, dtype=torch.float64), rtol=1e-3, atol=1e-6)
    assert bilevel_summary(kernel, one_hot(y, 4), 1, penalty=1e-2)[0] == int(np.argmax(drops))


def test_columns_of_absent_classes_make_a_summary_cover_a_class_in_all_its_places():
    """One class in three far places, the third with few rows; the second column is a class of another task."""
    places = torch.tensor([0.0, 10.0, 20.0]).repeat_interleave(torch.tensor([20, 12, 4]))
    x = (places + 0.1 * torch.randn(36, generator=torch.Generator().manual_seed(0)))[:, None].double()
    kernel = torch.exp(-(torch.cdist(x, x) ** 2))
    rows = bilevel_summary(kernel, one_hot(torch.zeros(36), 2), 3, penalty=1e-2)
    assert sorted(places[rows].tolist()) == [0.0, 10.0, 20.0]
