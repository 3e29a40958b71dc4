"""Data-parallel training: the processes that train together and their collectives. With one process, all collectives
are the identity.

Each process takes an equal part of every batch; every process draws the random numbers of the whole batch, so
the result does not depend on the number of processes. Start them with torchrun; `join` reads the environment that
torchrun sets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from core.errors import InvalidInput

Sliceable = TypeVar("Sliceable", bound=Tensor | NDArray[Any])


@dataclass(frozen=True, slots=True)
class World:
    """The rank of this process and the number of processes."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> World:
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(rank=dist.get_rank(), size=dist.get_world_size())

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def require_divisible(self, name: str, batch: int) -> None:
        if batch % self.size:
            raise InvalidInput(f"The {name} batch of {batch} cannot be shared equally by {self.size} processes.")

    def part(self, whole: Sliceable) -> Sliceable:
        """This process's equal part of the first axis."""
        share = len(whole) // self.size
        return cast(Sliceable, whole[self.rank * share : (self.rank + 1) * share])

    def gather(self, part: Tensor) -> Tensor:
        """All parts concatenated in the order of the processes; no gradient."""
        if self.size == 1:
            return part
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts)

    def mean(self, value: Tensor) -> Tensor:
        """The mean over processes; no gradient."""
        if self.size == 1:
            return value
        total = value.clone()
        dist.all_reduce(total)
        return total / self.size


class SumOverProcesses(torch.autograd.Function):
    """y = sum of x over processes; the gradient of x is the sum of the gradients of y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


sum_over_processes: Callable[[Tensor], Tensor] = SumOverProcesses.apply


def join() -> torch.device:
    """Join the processes that torchrun started and return this one's device: its own GPU, or the CPU (gloo)."""
    has_gpu = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    if not dist.is_initialized():
        dist.init_process_group("nccl" if has_gpu else "gloo")
    return torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
