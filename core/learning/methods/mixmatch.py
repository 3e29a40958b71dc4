"""MixMatch (Berthelot et al., 2019), Algorithm 1 and eq. 2-5.

    q_b  = sharpen(1/K sum_k softmax f(u_hat_{b,k}), T),   sharpen(p, T)_i = p_i^(1/T) / sum_j p_j^(1/T)
    W    = shuffle(X_hat, U_hat);   X' = mix(X_hat_i, W_i),  U' = mix(U_hat_i, W_{i+|X|})
    mix  : l ~ Beta(alpha, alpha), l' = max(l, 1 - l);  x' = l' x_1 + (1 - l') x_2, the same for targets, l per example
    L    = 1/|X'| sum CE(p, f(x)) + lambda_u / (C |U'|) sum |q - softmax f(u)|^2,   lambda_u ramped up linearly

Symbols: X_hat, U_hat augmented labeled and unlabeled inputs; K = n_augmentations; T = sharpening; alpha = mix_alpha.

Departures and details: `config.batch_norm` decides which batches set the statistics of batch normalization.
"interleaved" is the authors' code: K + 1 passes of equal batches with labeled and unlabeled examples in equal
shares; only the first updates the running statistics. "joint" is one pass over everything. The pass that computes label
guesses (the paper's term) updates nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from core.learning.methods.step import Losses, Step, accuracy_of
from core.learning.networks.layers import kept_statistics


def sharpen(probabilities: Tensor, T: float) -> Tensor:
    powered = probabilities ** (1 / T)
    return powered / powered.sum(1, keepdim=True)


def mix(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """share * first + (1 - share) * second, one share (B,) per example."""
    share = share.reshape(-1, *[1] * (first.dim() - 1))
    return share * first + (1 - share) * second


def guess_labels(step: Step, views: list[Tensor]) -> Tensor:
    """(b_u, C) sharpened mean prediction over the views; no gradient."""
    with torch.no_grad(), kept_statistics(step.layers):
        predictions = [step.network(view).float().softmax(1) for view in views]
    return sharpen(torch.stack(predictions).mean(0), step.config.sharpening)


def mixed_batch(step: Step) -> tuple[Tensor, Tensor, Tensor]:
    """X' and U' (b + K b_u, C, H, W), their targets (b + K b_u, n_classes), and the label guesses q (b_u,
    n_classes)."""
    views = [step.unlabeled.standard() for _ in range(step.config.n_augmentations)]
    guesses = guess_labels(step, views)
    labeled = step.labeled.standard()
    world = step.world
    own_inputs = [labeled, *views]
    own_targets = [step.targets] + [guesses] * len(views)
    everyone = torch.cat([world.gather(part) for part in own_inputs])
    all_targets = torch.cat([world.gather(part) for part in own_targets])
    shuffled = torch.from_numpy(step.rng.permutation(len(everyone))).to(labeled.device)
    alpha = step.config.mix_alpha
    drawn = torch.from_numpy(step.rng.beta(alpha, alpha, len(everyone)).astype("float32")).to(labeled.device)
    share = torch.maximum(drawn, 1 - drawn)
    mixed = mix(everyone, everyone[shuffled], share)
    mixed_targets = mix(all_targets, all_targets[shuffled], share)
    sizes = [len(part) * world.size for part in own_inputs]
    return (
        torch.cat([world.part(part) for part in mixed.split(sizes)]),
        torch.cat([world.part(part) for part in mixed_targets.split(sizes)]),
        guesses,
    )


def interleaved_order(n: int, n_batches: int) -> Tensor:
    """(n,) positions, every n_batches-th first: each of n_batches equal batches has an equal share of every source."""
    return torch.cat([torch.arange(start, n, n_batches) for start in range(n_batches)])


def forward(step: Step, mixed: Tensor) -> Tensor:
    """Logits of all mixed inputs, with batch normalization as in the module docstring."""
    if step.config.batch_norm == "joint":
        return step.network(mixed).float()
    n_batches = step.config.n_augmentations + 1
    order = interleaved_order(len(mixed), n_batches).to(mixed.device)
    logits = []
    for number, batch in enumerate(mixed[order].chunk(n_batches)):
        if number == 0:
            logits.append(step.network(batch).float())
        else:
            with kept_statistics(step.layers):
                logits.append(step.network(batch).float())
    return torch.cat(logits)[order.argsort()]


def loss(step: Step) -> Losses:
    """The losses of one training step, by the module's docstring."""
    mixed, targets, guesses = mixed_batch(step)
    logits = forward(step, mixed)
    n_labeled = len(step.targets)
    unlabeled = (logits[n_labeled:].softmax(1) - targets[n_labeled:]).square().mean()
    return Losses(
        labeled=F.cross_entropy(logits[:n_labeled], targets[:n_labeled]),
        unlabeled=unlabeled,
        weight=step.ramped_weight,
        accuracy=accuracy_of(logits[:n_labeled], step.targets),
        confidence=guesses.amax(1).mean(),
        used=torch.ones_like(unlabeled),
    )
