"""The public data sets of the experiments, from the folder given with --data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Split = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]
"""x_train, y_train, x_test, y_test; labels are class positions."""


def mnist(data: Path) -> Split:
    """(n, 28, 28), normalized with the usual mean 0.1307 and deviation 0.3081."""
    z = np.load(data / "mnist" / "mnist.npz")
    x, xt = ((z[k].astype(np.float32) / 255 - 0.1307) / 0.3081 for k in ("x_train", "x_test"))
    return x, z["y_train"].astype(np.int64), xt, z["y_test"].astype(np.int64)


def cifar10(data: Path) -> Split:
    """(n, 3, 32, 32) in [-1, 1]: 4,000 to train, 1,000 to test, original pixels."""
    z = np.load(data / "cifar10" / "cifar10_exact_4k.npz")
    x, xt = (z[k].astype(np.float32).transpose(0, 3, 1, 2) / 127.5 - 1 for k in ("x_train", "x_test"))
    return x, z["y_train"].astype(np.int64), xt, z["y_test"].astype(np.int64)


def libsvm(data: Path, name: str) -> Split:
    """(n, d) with labels 0 and 1; columns centered and scaled by the training part."""
    z = np.load(data / "libsvm" / f"{name}.npz")
    if "is_test" in z:
        test = z["is_test"]
        x, y, xt, yt = z["x"][~test], z["y"][~test], z["x"][test], z["y"][test]
    else:
        x, y, xt, yt = z["x_train"], z["y_train"], z["x_test"], z["y_test"]
    x, xt = x.astype(np.float32), xt.astype(np.float32)
    center, scale = x.mean(0), x.std(0) + 1e-6
    return (x - center) / scale, (y > 0).astype(np.int64), (xt - center) / scale, (yt > 0).astype(np.int64)


def rows_per_class(labels: NDArray[np.int64], each: int, seed: int) -> NDArray[np.int64]:
    """`each` random rows of every class, shuffled."""
    generator = np.random.default_rng(seed)
    chosen = [generator.permutation(np.flatnonzero(labels == c))[:each] for c in np.unique(labels)]
    return generator.permutation(np.concatenate(chosen))
