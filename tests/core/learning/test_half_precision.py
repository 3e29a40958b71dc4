"""float16, as on GPUs without bfloat16, emulated on the CPU: the front end, the losses and the statistics of batch
normalization stay finite and close to float32."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from core.config import AugmentationConfig, MediaConfig
from core.learning import learner as learner_module
from core.learning.distributed import World
from core.learning.networks import layers
from core.learning.networks.layers import BatchNorm
from core.learning.training import train
from core.media.augment_audio import augment_waveforms, view_pictures, warp_pictures
from core.media.mel import log_mel, mel_power
from core.media.noise import noise_clips
from core.runtime import Runtime
from tests.core.learning.pools import N_CLASSES, SMALL, clip_pool, some_labels

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = MediaConfig()
LARGEST_HALF = 65_504.0


def half() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.float16)


def loud_clips(n: int = 4) -> torch.Tensor:
    time = torch.arange(16_000) / 16_000
    return torch.stack([torch.sin(2 * torch.pi * (300.0 + 200 * k) * time) for k in range(n)])


def test_the_power_of_a_loud_clip_exceeds_float16_and_its_picture_is_that_of_float32():
    clips = loud_clips()
    spectrum = torch.stft(clips, 2048, 512, window=torch.hann_window(2048), return_complex=True)
    assert spectrum.abs().square().max() > LARGEST_HALF  # what overflowed
    expected = log_mel(clips, CONFIG)
    with half():
        found = log_mel(clips, CONFIG)
        from_half = log_mel(clips.half(), CONFIG)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(from_half, log_mel(clips.half().float(), CONFIG))
    with half():
        assert torch.isfinite(mel_power(1e3 * clips, CONFIG)).all()


@pytest.mark.parametrize("level", ["normalized", "kept"])
def test_augmentation_is_that_of_float32(level):
    clips, noise = loud_clips(), torch.from_numpy(noise_clips(CONFIG))
    rng = np.random.default_rng(0)
    draws = torch.from_numpy(rng.random((4, 10), dtype=np.float32))
    warps = torch.from_numpy(rng.random((4, 8), dtype=np.float32))
    ranges = AugmentationConfig(level=level)

    def made() -> list[torch.Tensor]:
        pictures = view_pictures(clips, draws, noise, CONFIG, ranges)
        return [augment_waveforms(clips, draws, noise, CONFIG), pictures, warp_pictures(pictures[:, None], warps, 1.0)]

    expected = made()
    with half():
        found = made()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("method", ["mixmatch", "fixmatch", "supervised"])
def test_training_in_float16_stays_finite(monkeypatch, method):
    inputs, classes = clip_pool()
    monkeypatch.setattr(learner_module, "autocast", lambda runtime, config: half())
    config = dataclasses.replace(SMALL, method=method, steps=6, bank_views=0, batch_norm="interleaved")
    config = dataclasses.replace(config, labeled_batch=8, unlabeled_batch=8)
    metrics = []
    model = train(
        inputs, some_labels(classes, 2), N_CLASSES, config, runtime=Runtime.create(0, "cpu"),
        report=lambda progress: metrics.append(progress.metrics),
    )  # fmt: skip
    losses = [one["loss"] for one in metrics if one]
    assert losses and np.isfinite(losses).all()
    assert all(torch.isfinite(value).all() for value in model.network.state_dict().values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batch_norm_across_processes_keeps_the_variance_of_values_with_a_large_mean(monkeypatch, dtype):
    """Two processes with the same batch: mean 30, deviation 0.3. E[x^2] - mean^2 in bfloat16 is 0 or below."""
    monkeypatch.setattr(World, "current", classmethod(lambda cls: cls(rank=0, size=2)))
    monkeypatch.setattr(layers, "sum_over_processes", lambda x: 2 * x)
    generator = torch.Generator().manual_seed(0)
    x = (30 + 0.3 * torch.randn(64, 3, 8, 8, generator=generator)).to(dtype)
    naive = x.square().mean(dim=(0, 2, 3)) - x.mean(dim=(0, 2, 3)).square()
    exact = x.double().var(dim=(0, 2, 3), unbiased=False)
    assert ((naive.double() - exact).abs() > 0.5 * exact).any()
    norm = BatchNorm(3)
    with torch.autocast("cpu", dtype=dtype):
        found = norm(x)
    assert found.dtype == dtype
    mean = x.double().mean(dim=(0, 2, 3))
    expected = (x.double() - mean[:, None, None]) / (exact + norm.eps).sqrt()[:, None, None]
    torch.testing.assert_close(found.double(), expected, atol=0.05, rtol=0.01)
    torch.testing.assert_close(norm.running_var.double(), 0.9 + 0.1 * exact, atol=1e-3, rtol=0)
