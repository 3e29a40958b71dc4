"""The head of `core.learning.head` in the form of a network: features of an encoder (B, d, 1, 1) -> logits.

`embed` gives the rows of the head's space, which selection and the map use.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from core.learning.head import Head
from core.learning.networks.layers import Linear, Network


class HeadNetwork(Network):
    """z = unit(components^T (x - mean)), logits = W z + offsets."""

    mean: Tensor
    components: Tensor

    def __init__(self, n_features: int, n_dimensions: int, n_classes: int) -> None:
        super().__init__()
        self.width = n_dimensions
        self.register_buffer("mean", torch.zeros(n_features))
        self.register_buffer("components", torch.zeros(n_features, n_dimensions))
        self.head = Linear(n_dimensions, n_classes)

    def embed(self, pictures: Tensor) -> Tensor:
        return F.normalize((pictures.flatten(1).float() - self.mean) @ self.components, dim=1)


def network_of(head: Head) -> HeadNetwork:
    """The head as a network with the same logits."""
    (n_features, n_dimensions), n_classes = head.space.components.shape, len(head.weights)
    network = HeadNetwork(n_features, n_dimensions, n_classes)
    with torch.no_grad():
        network.mean.copy_(torch.from_numpy(head.space.mean))
        network.components.copy_(torch.from_numpy(head.space.components))
        network.head.weight.copy_(torch.from_numpy(head.weights))
        network.head.bias.copy_(torch.from_numpy(head.offsets))
    return network.eval()
