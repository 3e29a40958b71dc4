"""The numpy spectrogram of drawings compared with the input of the network."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from core.config import MediaConfig
from core.media import mel, mel_preview
from core.media.derivation import with_length
from tests.core.media.samples import tone

CONFIGS = {
    "1 s": MediaConfig(),
    "5 s": with_length(MediaConfig(), 5.0),
    "20 mels": MediaConfig(n_mels=20, hop=333, n_fft=1_000, f_min=0.0),
    "ultrasound": MediaConfig(sample_rate=192_000, seconds=0.3, n_fft=32_768, hop=6_144, f_max=0.0),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_it_equals_the_networks_input(config):
    length = round(config.seconds * config.sample_rate)
    noise = np.random.default_rng(0).normal(size=length).astype(np.float32) * 0.05
    clip = noise + tone(700, config.seconds, rate=config.sample_rate)[:length]
    for x in (clip, np.zeros(length, np.float32), np.pad(clip[: length // 3], (0, length - length // 3))):
        expected = mel.log_mel(torch.from_numpy(x)[None], config)[0].numpy()
        found = mel_preview.log_mel(x, config)
        assert found.shape == expected.shape == (config.n_mels, config.n_frames)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_it_needs_no_torch():
    code = "import sys, core.media.mel_preview, core.media.derivation; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
