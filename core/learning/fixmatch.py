"""FixMatch (Sohn et al., 2020) with distribution alignment.

    p = softmax f(weak(u)) without gradient;  q = align(p);  the guess counts where max q >= tau
    L = mean CE(y, f(x)) + lambda_u mean [max q >= tau] CE(argmax q, f(strong(u)))

Symbols: x labeled, u unlabeled inputs; f logits; tau = config.threshold.

Departures and details: the labeled batch is augmented strongly too, which matters with few labels; the weak pass
normalizes with its own batch's statistics and updates the running ones, so that these see undistorted inputs as well.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from core.learning.alignment import align
from core.learning.methods import Losses, Step, accuracy_of


def loss(step: Step) -> Losses:
    with torch.no_grad():
        guesses = step.network(step.unlabeled.weak()).float().softmax(1)  # (b_u, C)
        if step.config.align != "off":
            guesses = align(guesses, step.prior, step.state, step.world)
        confidence, guess = guesses.max(1)
        counts = (confidence >= step.config.threshold).float()
    n_labeled = len(step.targets)
    logits = step.network(torch.cat([step.labeled.strong(), step.unlabeled.strong()])).float()
    unlabeled = F.cross_entropy(logits[n_labeled:], guess, reduction="none")
    return Losses(
        labeled=F.cross_entropy(logits[:n_labeled], step.targets),
        unlabeled=(counts * unlabeled).mean(),
        weight=step.ramped_weight,
        accuracy=accuracy_of(logits[:n_labeled], step.targets),
        confidence=confidence.mean(),
        used=counts.mean(),
    )
