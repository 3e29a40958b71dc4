"""The device of a computation, and random generators derived from one seed by purpose.

A round stores one seed. Every random draw uses the generator of its purpose, `Runtime.generator("purpose")`. An
additional draw therefore changes no other result, and a round can be replayed from its row.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def in_float32(function: Function) -> Function:
    """A decorator that turns mixed precision off within the function and converts half-precision positional arguments
    to float32, for values outside the range of float16, such as powers of waveforms and variances."""

    @functools.wraps(function)
    def computed(*args: Any, **kwargs: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        halves = (torch.float16, torch.bfloat16)
        full = [a.float() if isinstance(a, torch.Tensor) and a.dtype in halves else a for a in args]
        with torch.autocast(tensors[0].device.type, enabled=False):
            return function(*full, **kwargs)

    return cast(Function, computed)


def seed_for(seed: int, purpose: str) -> int:
    """A 63-bit seed that depends on the round's seed and the purpose alone."""
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def default_device() -> torch.device:
    """`WINNOW_DEVICE` if set, else CUDA if available, else the CPU."""
    if named := os.environ.get("WINNOW_DEVICE"):
        return torch.device(named)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True, slots=True)
class Runtime:
    """The device and the seed of a computation."""

    seed: int
    device: torch.device

    @classmethod
    def create(cls, seed: int, device: str | torch.device | None = None) -> Runtime:
        return cls(seed=seed, device=torch.device(device) if device is not None else default_device())

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def seed_for(self, purpose: str) -> int:
        return seed_for(self.seed, purpose)

    def generator(self, purpose: str) -> torch.Generator:
        """A torch generator on the device."""
        return torch.Generator(device=self.device).manual_seed(self.seed_for(purpose))

    def numpy_generator(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(self.seed_for(purpose))
