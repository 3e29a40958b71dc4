"""Distillation of given labels of the pool into the network (Hinton et al., 2015; Iscen et al., 2019).

    L = mean CE(y, f(strong(x))) + mean w CE(q, f(view(u)))

Symbols: x labeled, u unlabeled inputs; y labels; f logits; q the given label of u, soft or one-hot, constant over all
steps; w its weight; view: weak for the first half of the batch, strong for the others.

Departures and details: Iscen et al. weigh labels by their certainty; here the caller chooses the weights. Half of the
views are weak, so that the running statistics of batch normalization include undistorted inputs, as they do in
`core.learning.methods.fixmatch`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from core.errors import InvalidInput
from core.learning.methods.step import Losses, Step, accuracy_of


def loss(step: Step) -> Losses:
    """The losses of one training step, by the module's docstring."""
    if step.given_targets is None or step.given_weights is None:
        raise InvalidInput("Distillation needs given labels of the unlabeled items.")
    n_labeled = len(step.targets)
    logits = step.network(torch.cat([step.labeled.strong(), step.unlabeled.weak_and_strong()])).float()
    unlabeled = F.cross_entropy(logits[n_labeled:], step.given_targets, reduction="none")
    return Losses(
        labeled=F.cross_entropy(logits[:n_labeled], step.targets),
        unlabeled=(step.given_weights * unlabeled).mean(),
        weight=1.0,
        accuracy=accuracy_of(logits[:n_labeled], step.targets),
        confidence=step.given_targets.amax(1).mean(),
        used=step.given_weights.mean(),
    )
