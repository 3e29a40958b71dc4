"""Training on the labeled items alone: cross-entropy, with augmentation or (`augment=False`) on clean inputs."""

from __future__ import annotations

import torch.nn.functional as F

from core.learning.methods.step import Losses, Step, accuracy_of


def loss(step: Step) -> Losses:
    """The cross-entropy of one training step on labeled items."""
    pictures = step.labeled.strong() if step.config.augment else step.labeled.clean()
    logits = step.network(pictures).float()
    zero = logits.new_zeros(())
    return Losses(
        labeled=F.cross_entropy(logits, step.targets),
        unlabeled=zero,
        weight=0.0,
        accuracy=accuracy_of(logits, step.targets),
        confidence=logits.detach().softmax(1).amax(1).mean(),
        used=zero,
    )
