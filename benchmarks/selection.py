"""Speed and exactness of `core.coresets.bilevel.greedy` against the reference schedule, and large pools.

The reference is the schedule of the paper's public implementation on the same arrays and the same thread: for every
pick 7,500 Adam steps at 1e-3 on softmax regression and 100 conjugate-gradient steps on Hessian products by double
backward. Adam's cost per step is constant, so a part of the steps is timed for the first pick and for the last, whose
problem is larger, and the ten picks are extrapolated from the two.

    python -m benchmarks.selection [--golden DIR] [--steps 750] [--only exact|large] [--rows 100000]

Prints one JSON object as its last line. `speed_ratio` is CPU time over CPU time. Ours is the median of five runs after
a first one, which takes longer and is reported by itself.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core.coresets.bilevel import greedy

ADAM_STEPS, CG_STEPS = 7_500, 100
BLOCK = 10_000
REPEATS = 5  # of our implementation; the median is used


def reference_seconds(rows: torch.Tensor, targets: torch.Tensor, golden: dict[str, Any], steps: int) -> float:
    """CPU seconds of one pick by the reference schedule for these inner rows, extrapolated from `steps` steps."""
    pool, pool_targets = torch.from_numpy(golden["pool_features"]), torch.from_numpy(golden["pool_targets"])
    model = torch.nn.Linear(rows.shape[1], targets.shape[1])
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    penalty = float(golden["penalty"])

    def inner() -> torch.Tensor:
        squares = torch.stack([(p * p).sum() for p in parameters]).sum()
        return torch.nn.functional.cross_entropy(model(rows), targets) + 0.5 * penalty * squares

    start = time.process_time()
    for _ in range(steps):
        optimizer.zero_grad()
        inner().backward()
        optimizer.step()
    adam = (time.process_time() - start) * ADAM_STEPS / steps
    start = time.process_time()
    outer = torch.nn.functional.cross_entropy(model(pool), pool_targets)
    target = torch.cat([g.flatten() for g in torch.autograd.grad(outer, parameters)])
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(inner(), parameters, create_graph=True)])
    value, residual = torch.zeros_like(target), target.clone()
    direction = residual.clone()
    cg_steps = max(1, CG_STEPS * steps // ADAM_STEPS)
    for _ in range(cg_steps):
        image = torch.autograd.grad(gradient, parameters, grad_outputs=direction, retain_graph=True)
        product = torch.cat([g.flatten() for g in image])
        before = residual @ residual
        alpha = before / (direction @ product)
        value, residual = value + alpha * direction, residual - alpha * product
        direction = residual + (residual @ residual / before) * direction
    return adam + (time.process_time() - start) * CG_STEPS / cg_steps


def exact(golden_file: Path, steps: int) -> dict[str, Any]:
    """Ten picks on a real problem: time against the reference, picks and outer losses against the exact ones."""
    with np.load(golden_file) as arrays:
        golden = {name: arrays[name] for name in arrays.files}
    views = dict(zip(golden["view_ids"].tolist(), golden["view_features"], strict=True))
    ids, m = golden["pool_ids"], len(golden["exact_picks"])

    def ours() -> Any:
        return greedy(
            golden["base_features"],
            golden["base_targets"],
            golden["pool_features"],
            golden["pool_targets"],
            m,
            float(golden["penalty"]),
            views=lambda row: views[int(ids[row])],
        )

    times = []
    for _ in range(1 + REPEATS):
        start = time.process_time()
        result = ours()
        times.append(time.process_time() - start)
    seconds = float(np.median(times[1:]))
    first = torch.from_numpy(golden["base_features"]), torch.from_numpy(golden["base_targets"])
    joined = [torch.from_numpy(views[int(ids[row])]) for row in result.rows[:-1]]
    labels = [
        torch.from_numpy(golden["pool_targets"][row]).expand(len(rows), -1)
        for row, rows in zip(result.rows[:-1], joined, strict=True)
    ]
    last = torch.cat([first[0], *joined]), torch.cat([first[1], *labels])
    reference = m / 2 * (reference_seconds(*first, golden, steps) + reference_seconds(*last, golden, steps))
    return {
        "speed_ratio": round(reference / seconds, 1),
        "cpu_seconds": round(seconds, 3),
        "first_cpu_seconds": round(times[0], 3),
        "reference_cpu_seconds": round(reference, 1),
        "picks_match": bool(np.array_equal(ids[result.rows], golden["exact_picks"])),
        "worst_outer_loss_excess": float(np.max(result.outer_losses - golden["exact_outer"])),
        "worst_outer_loss_difference": float(np.max(np.abs(result.outer_losses - golden["exact_outer"]))),
        "all_converged": not result.problems(),
    }


def large(n: int = 100_000, q: int = 512, n_classes: int = 10, m: int = 10) -> dict[str, Any]:
    """A synthetic pool in the form of kernel features: ten clusters, decaying spectrum; 20 labeled rows of 16 views."""
    draw = np.random.default_rng(0)
    spectrum = (1.0 / np.sqrt(1 + np.arange(q))).astype(np.float32)
    centers = draw.normal(size=(n_classes, q)).astype(np.float32)
    classes = draw.integers(0, n_classes, n)
    pool = np.empty((n, q), np.float32)
    for begin in range(0, n, BLOCK):  # in blocks, so that the peak of memory is that of the selection
        part = pool[begin : begin + BLOCK]
        draw.standard_normal(dtype=np.float32, out=part)
        part += centers[classes[begin : begin + BLOCK]]
        part *= spectrum / 4
    logits = draw.standard_normal((n, n_classes), dtype=np.float32) + 2 * np.eye(n_classes, dtype=np.float32)[classes]
    targets = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    del logits

    def views(row: int) -> np.ndarray:
        noise = np.random.default_rng(row).standard_normal((16, q), dtype=np.float32)
        return pool[row] + 0.3 * noise * spectrum / 4

    labeled = np.arange(20)
    base = np.concatenate([views(int(row)) for row in labeled])
    base_targets = np.repeat(np.eye(n_classes, dtype=np.float32)[classes[labeled]], 16, 0)
    before, wall = time.process_time(), time.perf_counter()
    result = greedy(base, base_targets, pool, targets, m, 1e-4, views=views)
    return {
        "large_pool_rows": n,
        "large_pool_wall_seconds": round(time.perf_counter() - wall, 2),
        "large_pool_cpu_seconds": round(time.process_time() - before, 2),
        "large_pool_converged": not result.problems(),
        "peak_resident_gigabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=Path, default=Path("golden"))
    parser.add_argument("--steps", type=int, default=750, help="timed Adam steps of 7,500")
    parser.add_argument("--only", choices=("exact", "large"))
    parser.add_argument("--rows", type=int, default=100_000, help="of the large pool, 512 features each")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    if arguments.only != "exact":
        results |= large(arguments.rows)
    torch.set_num_threads(1)
    if arguments.only != "large":
        results |= exact(arguments.golden / "bico_q2048.npz", arguments.steps)
        small = exact(arguments.golden / "bico_q512.npz", arguments.steps)
        results |= {f"q512_{name}": value for name, value in small.items()}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
