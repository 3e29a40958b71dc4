"""Networks by name: "resnet-small", "wrn-DEPTH-WIDTH" such as "wrn-28-10", or "head-DIMENSIONS" on an encoder."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from core.errors import InvalidInput
from core.learning.networks.head import HeadNetwork
from core.learning.networks.layers import Network, draw_weights, to_device
from core.learning.networks.small_resnet import SmallResNet
from core.learning.networks.wide_resnet import WideResNet
from core.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkShape:
    """What must be equal for two networks to exchange weights."""

    name: str
    channels: int
    n_classes: int


def new_network(shape: NetworkShape) -> Network:
    """A network on the host, with uninitialized weights."""
    if shape.name == "resnet-small":
        return SmallResNet(shape.channels, shape.n_classes)
    if found := re.fullmatch(r"wrn-(\d+)-(\d+)", shape.name):
        return WideResNet(int(found[1]), int(found[2]), shape.channels, shape.n_classes)
    if found := re.fullmatch(r"head-(\d+)", shape.name):
        return HeadNetwork(shape.channels, int(found[1]), shape.n_classes)
    raise InvalidInput(f"There is no network {shape.name!r}; use resnet-small or wrn-DEPTH-WIDTH, as in wrn-28-10.")


def fresh_network(shape: NetworkShape, runtime: Runtime) -> Network:
    """A network on the runtime's device, with weights drawn from its seed."""
    network = new_network(shape)
    draw_weights(network, torch.Generator().manual_seed(runtime.seed_for("weights")))
    return to_device(network, runtime.device)
