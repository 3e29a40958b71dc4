"""Networks: the published sizes, drawn on the host, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.errors import InvalidInput
from core.learning.networks.layers import BatchNorm, kept_statistics
from core.learning.networks.registry import NetworkShape, fresh_network, new_network
from core.runtime import Runtime


def n_parameters(name: str, channels: int = 3, n_classes: int = 10) -> int:
    with torch.device("meta"):
        network = new_network(NetworkShape(name=name, channels=channels, n_classes=n_classes))
    return sum(parameter.numel() for parameter in network.parameters())


def wide_resnet_count(depth: int, width: int) -> int:
    """Zagoruyko and Komodakis' architecture, counted by hand: weights of convolutions, two per norm channel, head."""
    total, n_in = 3 * 16 * 9, 16
    for n_out in (16 * width, 32 * width, 64 * width):
        for block in range((depth - 4) // 6):
            total += 2 * n_in + 9 * n_in * n_out + 2 * n_out + 9 * n_out * n_out
            total += n_in * n_out if block == 0 and (n_in != n_out or n_out > 16 * width) else 0
            n_in = n_out
    return total + 2 * n_in + n_in * 10 + 10


@pytest.mark.parametrize("depth, width", [(10, 1), (16, 2), (28, 2), (28, 10)])
def test_wide_resnets_have_the_published_number_of_parameters(depth, width):
    assert n_parameters(f"wrn-{depth}-{width}") == wide_resnet_count(depth, width)
    if (depth, width) == (28, 10):
        assert round(n_parameters("wrn-28-10") / 1e6, 1) == 36.5


def test_the_small_resnet_has_78_thousand_parameters():
    assert 77_000 < n_parameters("resnet-small", channels=1) < 79_000


@pytest.mark.parametrize("name", ["wrn-27-10", "wrn-28-0", "vgg", "wrn-28"])
def test_other_names_are_refused(name):
    with pytest.raises(InvalidInput):
        n_parameters(name)


@pytest.mark.parametrize("name", ["resnet-small", "wrn-10-1"])
@pytest.mark.parametrize("size", [(32, 32), (40, 157), (17, 9)])
def test_networks_take_any_input_size(name, size):
    network = fresh_network(NetworkShape(name=name, channels=1, n_classes=3), Runtime.create(0, "cpu"))
    pictures = torch.zeros(2, 1, *size)
    assert network(pictures).shape == (2, 3)
    assert network.embed(pictures).shape == (2, network.width)


def test_weights_follow_from_the_seed_alone_and_leave_the_global_generator_alone():
    shape = NetworkShape(name="resnet-small", channels=1, n_classes=3)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, second, other = (fresh_network(shape, Runtime.create(seed, "cpu")) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)
    drawn = first.get_submodule("blocks.2.conv2").weight
    assert drawn.std().item() == pytest.approx(np.sqrt(2 / (64 * 9)), rel=0.05)


def test_statistics_can_be_kept_while_training():
    layer = BatchNorm(3)
    batch = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(0)) + 5
    with kept_statistics(layer):
        normalized = layer(batch)
    assert torch.equal(layer.running_mean, torch.zeros(3)) and layer.momentum == 0.1
    torch.testing.assert_close(normalized.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
