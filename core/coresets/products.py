"""Matrix products. On a CPU with AVX-512 they use code that oneDNN generates for the processor.

On a CPU, torch multiplies float32 matrices with MKL, which does not use AVX-512 on every processor that has it. oneDNN,
which is also part of torch, generates code for the processor and for the shape of the product; the first product of a
shape takes about half a millisecond longer. Small products, other precisions, other devices and products that are
differentiated are torch's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST = 2**21  # multiplications, below which the cost of a call outweighs the gain
WIDE, NARROW = 64, 16  # columns of a tile


def _generates() -> bool:
    operators = torch.ops.mkldnn if torch.backends.mkldnn.is_available() else None
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and hasattr(operators, "_linear_pointwise")


GENERATES = _generates()


def matmul(A: Tensor, B: Tensor) -> Tensor:
    """A B (m, n) for A (m, k) and B (k, n)."""
    if not _generated(A) or len(A) * B.numel() <= LEAST or A.requires_grad or B.requires_grad:
        return (B.T @ A.T).T if B.shape[1] < len(A) else A @ B  # few rows first are several times faster
    if not (B.is_contiguous() or B.T.is_contiguous()):  # for others oneDNN has plain loops only
        B = B.contiguous()
    product: Tensor = torch.ops.mkldnn._linear_pointwise(A, B.T, None, "none", [], "")  # A (B^T)^T
    return product


def tiled(A: Tensor, B: Tensor) -> Tensor:
    """A B as `matmul`, in tiles of a fixed number of columns, so that code generated once serves every n."""
    n = B.shape[1]
    if not _generated(A) or len(A) * B.numel() <= LEAST:
        return matmul(A, B)
    width = NARROW if n <= NARROW else WIDE
    tiles = list(B.T.split(width))
    tiles[-1] = torch.nn.functional.pad(tiles[-1], (0, 0, 0, -n % width))
    return torch.cat([matmul(A, tile.T) for tile in tiles], 1)[:, :n]


def _generated(A: Tensor) -> bool:
    return GENERATES and type(A) is Tensor and A.dtype == torch.float32 and A.device.type == "cpu"
