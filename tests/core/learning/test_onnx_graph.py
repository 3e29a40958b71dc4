"""The ONNX graph in onnxruntime gives what the network gives in torch, from the clip or picture to probabilities."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

from core.config import MediaConfig, TrainingConfig
from core.errors import InvalidInput
from core.learning.models import TrainedModel
from core.learning.networks.layers import Network
from core.learning.networks.registry import NetworkShape, fresh_network
from core.learning.onnx_graph import InputSettings, build_onnx
from core.media.audio import clip_length
from core.media.mel import log_mel
from core.runtime import Runtime

RUNTIME = Runtime.create(3, "cpu")
MEAN, SCALE = np.array([0.31, 0.5, 0.44], np.float32), np.array([0.2, 0.25, 0.05], np.float32)


def model_of(name: str, channels: int, n_classes: int = 5, temperature: float = 1.7) -> TrainedModel:
    """Random weights, and running statistics as after some training."""
    shape = NetworkShape(name=name, channels=channels, n_classes=n_classes)
    network = fresh_network(shape, RUNTIME)
    network.train()
    with torch.no_grad():
        for _ in range(3):
            network(torch.randn(16, channels, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 + 0.5)
    return TrainedModel(network=network.eval(), shape=shape, config=TrainingConfig(), temperature=temperature)


def expected(model: TrainedModel, pictures: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with torch.no_grad():
        embedding = model.network.embed(pictures)
        logits = model.network.head(embedding)
    return (logits / model.temperature).softmax(1).numpy(), logits.numpy(), embedding.numpy()


def outputs(model: TrainedModel, settings: InputSettings, values: np.ndarray) -> list[np.ndarray]:
    proto = build_onnx(model, settings, {"round": "4"})
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map == {"round": "4"}
    return session.run(["probabilities", "logits", "embedding"], {session.get_inputs()[0].name: values})


def clips(config: MediaConfig, n: int) -> np.ndarray:
    """Chirps with noise, one of them silent and one a single click."""
    rng = np.random.default_rng(0)
    t = np.arange(clip_length(config)) / config.sample_rate
    made = [np.sin(2 * np.pi * (200 + 300 * k) * t * (1 + t)) + 0.01 * rng.standard_normal(len(t)) for k in range(n)]
    made[0][:] = 0
    made[1][:] = 0
    made[1][len(t) // 3] = 1
    return (np.stack(made) / 1.2).astype(np.float32)


@pytest.mark.parametrize(
    "config",
    [
        MediaConfig(),
        MediaConfig(
            sample_rate=8_000, seconds=0.73, n_fft=400, hop=160, n_mels=40, f_min=0.0, f_max=9_000.0, floor=-6.0
        ),
        MediaConfig(sample_rate=32_000, seconds=2.5, n_fft=1024, hop=320, n_mels=64, f_max=14_000.0),
    ],
    ids=["default", "odd sizes", "long clips"],
)
def test_the_mel_front_end_is_in_the_graph(config):
    model, waveforms = model_of("resnet-small", 1), clips(config, 6)
    settings = InputSettings(kind="audio", media=config, mean=np.zeros(1, np.float32), scale=np.ones(1, np.float32))
    found = outputs(model, settings, waveforms)
    wanted = expected(model, log_mel(torch.from_numpy(waveforms), config)[:, None])
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet-small", "wrn-10-1", "wrn-16-2"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_normalized_in_the_graph(name, channels):
    model, config = model_of(name, channels), MediaConfig(image_size=24, channels=channels)
    pictures = np.random.default_rng(1).integers(0, 256, (7, 24, 24, channels), np.uint8)
    mean, scale = MEAN[:channels], SCALE[:channels]
    found = outputs(model, InputSettings(kind="image", media=config, mean=mean, scale=scale), pictures)
    normalized = torch.from_numpy((pictures.astype(np.float32) / np.float32(255) - mean) / scale)
    for one, other in zip(found, expected(model, normalized.permute(0, 3, 1, 2)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4, rtol=1e-4)


def test_an_unknown_network_is_refused():
    class Other(Network):
        width = 4

    shape = NetworkShape(name="other", channels=1, n_classes=2)
    model = TrainedModel(network=Other(), shape=shape, config=TrainingConfig())
    settings = InputSettings(kind="image", media=MediaConfig(channels=1), mean=MEAN[:1], scale=SCALE[:1])
    with pytest.raises(InvalidInput, match="other has no ONNX form"):
        build_onnx(model, settings)
