"""torchaudio loads beside every build of torch, through one module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
@pytest.mark.skipif(torch.version.cuda is not None, reason="a CUDA torch loads the unchanged torchaudio")
def test_beside_a_cpu_only_torch_the_stand_in_makes_torchaudio_usable_and_is_still_needed():
    plain = run("import torchaudio")
    assert plain.returncode != 0 and "_torchaudio" in plain.stderr, "the stand-in is no longer needed: remove it"
    clean = run(
        "from core.media.torchaudio_import import transforms, functional; import torch, torchaudio\n"
        "assert transforms.MelSpectrogram()(torch.zeros(1, 16000)).shape[1] == 128\n"
        "try: functional.forced_align(torch.zeros(1,2,3), torch.zeros(1,1), None, None)\n"
        "except RuntimeError as error: assert 'does not load' in str(error)\n"
        "else: raise SystemExit('forced_align did not refuse')"
    )
    assert clean.returncode == 0, clean.stderr


@pytest.mark.slow
def test_every_cuda_build_of_torch_gets_the_stand_in():
    """torchaudio compares its CUDA version with torch's and refuses another one; the stand-in has no such check."""
    pretended = run(
        "import torch; torch.version.cuda = '12.6'\n"
        "from core.media.torchaudio_import import transforms; import torchaudio\n"
        "for torch.version.cuda in ('12.6', '99.1'):\n"
        "    assert torchaudio._extension._check_cuda_version() is None\n"
        "    assert transforms.MelSpectrogram()(torch.zeros(1, 16000)).shape[1] == 128"
    )
    assert pretended.returncode == 0, pretended.stderr


@pytest.mark.slow
def test_a_torchaudio_that_was_imported_before_stays():
    pretended = run(
        "import sys, types, torch\n"
        "fake = types.ModuleType('torchaudio'); fake.functional = fake.transforms = 'the real ones'\n"
        "sys.modules['torchaudio'] = fake\n"
        "from core.media import torchaudio_import\n"
        "assert torchaudio_import.transforms == 'the real ones'\n"
        "assert 'torchaudio._extension' not in sys.modules"
    )
    assert pretended.returncode == 0, pretended.stderr
