"""Mixed precision on CUDA: bfloat16 where the GPU computes in it, else float16 with a scaled loss. The CPU
uses float32, which is faster there."""

from __future__ import annotations

import torch

from core.config import TrainingConfig
from core.runtime import Runtime


def half_type(runtime: Runtime) -> torch.dtype:
    if torch.cuda.is_available() and torch.cuda.get_device_capability(runtime.device) < (8, 0):
        return torch.float16
    return torch.bfloat16


def autocast(runtime: Runtime, config: TrainingConfig) -> torch.autocast:
    enabled = config.amp and runtime.is_cuda
    return torch.autocast(runtime.device.type, dtype=half_type(runtime), enabled=enabled)


def loss_scaler(runtime: Runtime, config: TrainingConfig) -> torch.amp.GradScaler:
    """Scales the loss only where float16 would underflow; elsewhere it does nothing."""
    needed = config.amp and runtime.is_cuda and half_type(runtime) is torch.float16
    return torch.amp.GradScaler(runtime.device.type, enabled=needed)
