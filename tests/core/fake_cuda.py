"""A simulated cuda device: torch's FakeTensorMode computes shapes and devices and raises on a mismatch.

    with fake_cuda() as device:
        tensor = torch.zeros(3, device=device)   # fake, on cuda:0

A CPU-only torch has no device guard for cuda, which even fake tensors need; during the test, the guard of the meta
device is used. Its autograd engine cannot run backward on a device that the build lacks, so there `backward` only
gives every parameter a gradient of its own shape and device; a CUDA build traverses the graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

CUDA, META = 1, 14  # c10::DeviceType
REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"


@contextmanager
def _lent_guard() -> Iterator[None]:
    if torch.version.cuda is not None:
        yield
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    registry = (ctypes.c_void_p * 21).in_dll(library, REGISTRY)
    registry[CUDA] = registry[META]
    try:
        yield
    finally:
        registry[CUDA] = None


def _gradients_without_engine(loss: torch.Tensor, *args: object, **kwargs: object) -> None:
    pending, seen = [loss.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            variable.grad = torch.zeros_like(variable)
        pending.extend(following for following, _ in node.next_functions)


@contextmanager
def fake_cuda() -> Iterator[torch.device]:
    """The device cuda:0, with every tensor made inside being fake."""
    patches = [
        mock.patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False),
        mock.patch("torch.cuda.is_bf16_supported", lambda *args, **kwargs: True),
    ]
    if torch.version.cuda is None:
        patches.append(mock.patch.object(torch.Tensor, "backward", _gradients_without_engine))
    with _lent_guard(), FakeTensorMode(allow_non_fake_inputs=True):
        for patch in patches:
            patch.start()
        try:
            yield torch.device("cuda", 0)
        finally:
            for patch in patches:
                patch.stop()
