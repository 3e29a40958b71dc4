"""Runtimes of the parts of the method (Table 8), as ratios on one thread.

Left: coresets of 100 and 400 out of 1,000 pictures with tangent-kernel proxies, q = 512; right: one implicit gradient
of a wide ResNet without a proxy, by the stochastic Neumann series of 100 terms. The paper measures kernels and
networks on a GPU and selection on a CPU; here everything runs on a CPU, so only ratios within one column are
comparable. The small size has WRN-16-1 and 512 pictures on the right side, the full size WRN-16-4 and 4,000.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from core.coresets.library.linear import SoftmaxProblem, one_hot, with_bias
from core.coresets.library.stochastic import NetworkProblem, SeriesConfig
from core.coresets.library.variants import forward
from core.kernels.networks import scnn, wrn
from core.kernels.nystrom import fit
from core.learning.networks.layers import draw_weights
from core.learning.networks.wide_resnet import WideResNet
from experiments.datasets import cifar10
from experiments.record import Arguments, Record, run, say

PAPER = {"scnn": (5.1, 29.8, 150.6), "wrn-16": (40.2, 31.0, 154.4), "network": (29.4, 18.9, 70.8)}


def timed(work: Callable) -> tuple:
    begin = time.process_time()
    found = work()
    return found, time.process_time() - begin


def proxies(x: np.ndarray, y: np.ndarray) -> dict[str, tuple[float, float, float]]:
    """CPU seconds of the kernel and of coresets of 100 and 400, by network; with compiled code loaded before."""
    pictures = np.ascontiguousarray(x[:1000].transpose(0, 2, 3, 1))
    targets = one_hot(torch.from_numpy(y[:1000]), 10, torch.float32)
    found = {}
    for name, network in {"scnn": scnn(), "wrn-16": wrn(2)}.items():
        fit(pictures[:4], network).transform(pictures[:2])
        features, kernel_seconds = timed(lambda network=network: fit(pictures[:512], network).transform(pictures))
        Z = with_bias(torch.from_numpy(features / np.sqrt(np.square(features).sum(1).mean())))
        problem = SoftmaxProblem(features=Z, targets=targets, penalty=1e-4, mean=True, tolerance=1e-4)
        _, hundred = timed(lambda problem=problem: forward(problem, 100, start=[0]))
        _, four_hundred = timed(lambda problem=problem: forward(problem, 400, start=[0]))
        found[name] = (kernel_seconds, hundred, four_hundred)
        say(f"{name}: kernel {kernel_seconds:.1f} s, 100 rows {hundred:.1f} s, 400 rows {four_hundred:.1f} s")
    return found


def network_parts(x: np.ndarray, y: np.ndarray, width: int) -> tuple[float, float, float]:
    """CPU seconds of the outer gradient, the Neumann series and the rows' derivatives."""
    model = WideResNet(16, width, 3, 10)
    draw_weights(model, torch.Generator().manual_seed(0))
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)

    def loss(outputs, wanted):
        return F.cross_entropy(outputs, wanted, reduction="none")

    problem = NetworkProblem(
        model=model, inputs=inputs, targets=targets, loss=loss, train=lambda w: torch.zeros(0),
        series=SeriesConfig(terms=100, scale=1e-3, batch=32, pass_batch=64),
    )  # fmt: skip
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    gradient, outer = timed(lambda: problem.outer_gradient(theta))
    solved, series = timed(lambda: problem.inverse_product(theta, torch.ones(len(x)), gradient))
    _, rows = timed(lambda: problem.row_derivatives(theta, solved))
    say(f"outer gradient {outer:.1f} s, series {series:.1f} s, row derivatives {rows:.1f} s")
    return outer, series, rows


def main(arguments: Arguments) -> Record:
    torch.set_num_threads(1)
    x, y, _, _ = cifar10(arguments.data)
    n, width = (512, 1) if arguments.small else (4_000, 4)
    found = {**proxies(x, y), "network": network_parts(x[:n], y[:n], width)}
    rows = [{"part": name, "seconds": values, "paper_seconds": PAPER[name]} for name, values in found.items()]
    claims = {
        "kernel of wrn-16 over scnn": [found["wrn-16"][0] / found["scnn"][0], 40.2 / 5.1],
        "coreset of 400 over 100, scnn": [found["scnn"][2] / found["scnn"][1], 150.6 / 29.8],
        "coreset of 400 over 100, wrn-16": [found["wrn-16"][2] / found["wrn-16"][1], 154.4 / 31.0],
        "row derivatives over outer gradient": [found["network"][2] / found["network"][0], 70.8 / 29.4],
        "series over outer gradient": [found["network"][1] / found["network"][0], 18.9 / 29.4],
    }
    return Record(rows, {"n": n, "width": width}, claims)


if __name__ == "__main__":
    run("runtimes", main)
