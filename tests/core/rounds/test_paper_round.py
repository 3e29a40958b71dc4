"""One round of the paper's method on a tiny pool of clips: MixMatch, tangent-kernel coresets, augmented views.

The picks are compared with an independent computation: kernel entries in float64 by the plain torch path, features by
an eigendecomposition, the inner problem by dense Newton steps, the implicit gradient by a dense solve.
"""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest
import torch

from core.config import MediaConfig, RoundConfig, preset
from core.kernels.networks import wrn
from core.kernels.ntk import kernel
from core.media.inputs import prepare
from core.media.views import views
from core.rounds.pipeline import run_round
from core.rows import MemoryRowCache
from core.runtime import Runtime
from core.types import UNLABELED, PoolSnapshot
from tests.core.media.samples import tone, wav

pytestmark = pytest.mark.usefixtures("one_thread")
N, N_LABELED, N_TEST, CLASSES = 26, 3, 2, ("low", "middle", "high")
MEDIA = MediaConfig(seconds=0.25)


def paper_config(noise_folder: str = "") -> RoundConfig:
    """The `paper` preset with a network, a kernel and numbers of steps, views and picks for a test."""
    config = preset("paper")
    training = dataclasses.replace(
        config.training, network="resnet-small", steps=12, epochs=0, labeled_batch=6, unlabeled_batch=6
    )
    return dataclasses.replace(
        config,
        training=training,
        media=dataclasses.replace(MEDIA, noise_folder=noise_folder),
        kernel=dataclasses.replace(config.kernel, block_size=1, n_landmarks=64, tolerance=1e-4),
        selection=dataclasses.replace(config.selection, n_views=3, batch_size=3, penalty=1e-2),
    )


def clip(row: int) -> bytes:
    rng = np.random.default_rng(row)
    sound = tone(250.0 * 3 ** (row % 3) * rng.uniform(0.8, 1.25), seconds=0.2)
    return wav(sound + 0.1 * rng.standard_normal(len(sound)).astype(np.float32))


def pool() -> tuple[PoolSnapshot, dict[str, bytes]]:
    data = [clip(row) for row in range(N)]
    hashes = tuple(hashlib.sha256(one).hexdigest() for one in data)
    rows, truth = np.arange(N), np.arange(N) % 3
    test = rows >= N - N_TEST
    labels = np.where(rows < N_LABELED, truth, UNLABELED)
    snapshot = PoolSnapshot(
        kind="audio", class_names=CLASSES, item_ids=rows + 100, hashes=hashes, labels=labels, held_out=test,
        held_out_labels=np.where(test, truth, UNLABELED), eligible=(labels == UNLABELED) & ~test,
    )  # fmt: skip
    return snapshot, dict(zip(hashes, data, strict=True))


def dense_influence(base, base_targets, rows, targets, penalty: float):
    """(n,) -dG/dw of all rows and G: theta = (C, q + 1) with a penalized bias, mean losses; everything dense."""
    Z, X = (torch.cat([a, a.new_ones(len(a), 1)], 1) for a in (base, rows))
    C, q = targets.shape[1], Z.shape[1]

    def inner(theta):
        logits = Z @ theta.view(C, q).T
        loss = torch.logsumexp(logits, 1) - (base_targets * logits).sum(1)
        return loss.mean() + penalty / 2 * theta.square().sum()

    def losses(theta):
        logits = X @ theta.view(C, q).T
        return torch.logsumexp(logits, 1) - (targets * logits).sum(1)

    theta = torch.zeros(C * q, dtype=torch.float64)
    for _ in range(20):
        H = torch.autograd.functional.hessian(inner, theta)
        theta = theta - torch.linalg.solve(H, torch.func.grad(inner)(theta))
    H = torch.autograd.functional.hessian(inner, theta)
    direction = torch.linalg.solve(H, torch.func.grad(lambda t: losses(t).mean())(theta))
    return (torch.func.jacrev(losses)(theta) @ direction / len(Z)).numpy(), float(losses(theta).mean())


def dense_features(snapshot: PoolSnapshot, media: dict[str, bytes], config: RoundConfig):
    """Rows of the pool (n, q) and (row) -> (A, q) of its views; every pool item is a landmark."""
    inputs = prepare(snapshot.hashes, media.__getitem__, "audio", config.media, MemoryRowCache())
    inputs = dataclasses.replace(inputs, augmentation=config.augmentation)
    part_of_pool = np.flatnonzero(~snapshot.held_out)
    clean = inputs.clean.take(part_of_pool).astype(np.float64)
    values, vectors = np.linalg.eigh(kernel(clean, None, wrn(1), backend="torch"))
    kept = values > config.kernel.tolerance * values[-1]
    project = vectors[:, kept] / np.sqrt(values[kept])

    def of(pictures: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(kernel(pictures.astype(np.float64), clean, wrn(1), backend="torch") @ project)

    n_views = config.selection.n_views
    return of(clean), lambda row: of(views(inputs, np.array([row]), n_views)[0])


@pytest.mark.slow
def test_a_round_of_mixmatch_and_tangent_kernel_coresets_picks_what_dense_algebra_picks():
    (snapshot, media), config = pool(), paper_config()
    result = run_round(
        snapshot, config, read=media.__getitem__, cache=MemoryRowCache(), runtime=Runtime.create(0, "cpu")
    )
    assert not np.isclose(result.probabilities[N_LABELED : N - N_TEST].max(1), 1.0).all()  # soft pseudo-labels
    features, views_of = dense_features(snapshot, media, config)
    targets = torch.from_numpy(result.probabilities[: N - N_TEST].astype(np.float64))
    chosen = list(range(N_LABELED))
    picks = result.selection.item_ids - 100
    outer = []
    for reason, pick in zip(result.selection.reasons, picks, strict=True):
        base = torch.cat([views_of(row) for row in chosen])
        base_targets = targets[chosen].repeat_interleave(config.selection.n_views, 0)
        scores, loss = dense_influence(base, base_targets, features, targets, config.selection.penalty)
        outer.append(loss)
        scores[chosen] = -np.inf
        assert pick == scores.argmax()
        assert reason.score == pytest.approx(scores.max(), rel=2e-2)
        assert reason.outer_before == pytest.approx(loss, rel=1e-3)
        chosen.append(int(pick))
    assert all(pick < N - N_TEST for pick in picks) and outer[-1] < outer[0]


@pytest.mark.slow
def test_the_round_uses_the_noise_recordings_and_the_printed_augmentation(tmp_path):
    snapshot, media = pool()
    (tmp_path / "hum.wav").write_bytes(wav(tone(50, seconds=3.0)))
    chosen = {}
    cache = MemoryRowCache()  # shared: features of views with other settings must not be read from it
    for name, config in {"generated": paper_config(), "recorded": paper_config(str(tmp_path))}.items():
        result = run_round(snapshot, config, read=media.__getitem__, cache=cache, runtime=Runtime.create(0, "cpu"))
        chosen[name] = [reason.outer_before for reason in result.selection.reasons]
    assert chosen["generated"] != chosen["recorded"]
