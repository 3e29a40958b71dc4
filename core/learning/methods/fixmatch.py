"""FixMatch (Sohn et al., 2020) with distribution alignment and, optionally, a threshold that follows the confidence.

    p = softmax f(weak(u)) without gradient;  q = align(p);  the pseudo-label is used where max q >= tau
    L = mean CE(y, f(x)) + lambda_u mean [max q >= tau] CE(argmax q, f(strong(u)))
    tau = config.threshold, or with `adapt_threshold` (FreeMatch, Wang et al., 2023)
    tau <- 0.99 tau + 0.01 mean max q from tau = 1/C, at most config.threshold

Symbols: x labeled, u unlabeled inputs; f logits; C classes.

Departures and details: the labeled batch is augmented strongly too, which matters with few labels; the weak pass
normalizes with its own batch's statistics and updates the running ones, so that these include undistorted inputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from core.learning.methods.alignment import align
from core.learning.methods.step import Losses, Step, accuracy_of

DECAY = 0.99  # of the adaptive threshold, per batch


def threshold(step: Step, confidence: Tensor) -> Tensor | float:
    """tau after this batch of confidences (b_u,); `step.state["threshold"]` stores it."""
    if not step.config.adapt_threshold:
        return step.config.threshold
    n_classes = step.targets.shape[1]
    before = step.state.get("threshold", torch.full_like(confidence[0], 1 / n_classes))
    step.state["threshold"] = before.lerp(step.world.mean(confidence.mean()), 1 - DECAY)
    return step.state["threshold"].clamp_max(step.config.threshold)


def loss(step: Step) -> Losses:
    """The losses of one training step, by the module's docstring."""
    with torch.no_grad():
        predictions = step.network(step.unlabeled.weak()).float().softmax(1)  # (b_u, C)
        if step.config.align != "off":
            predictions = align(predictions, step.prior, step.state, step.world)
        confidence, guess = predictions.max(1)
        counts = (confidence >= threshold(step, confidence)).float()
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
