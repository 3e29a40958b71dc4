"""Weighted coresets of 1 to 50 rows of the scikit-learn digits with a kernel proxy, against recorded outer losses.

The recorded run (tests/golden/representer_digits_weighted.npz) is of an independent implementation; start row and the
200 candidates of every step are the same. Small and full are the same size.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from core.coresets.library.linear import SoftmaxProblem, kernel_factor, one_hot
from core.coresets.library.weighted import PursuitConfig, build_coreset
from experiments.record import Arguments, Record, curves, run

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "representer_digits_weighted.npz"
CORRECTIONS, SHORTLIST = 30, 12


def main(arguments: Arguments) -> Record:
    golden = np.load(GOLDEN)
    X = torch.tensor(golden["X"])
    kernel = torch.exp(-float(golden["gamma"]) * torch.cdist(X, X) ** 2)
    targets = one_hot(torch.tensor(golden["y"]), 10)
    problem = SoftmaxProblem(features=kernel_factor(kernel), targets=targets, penalty=2e-4, mean=True, tolerance=1e-4)
    candidates = torch.tensor(golden["candidates"])
    config = PursuitConfig(size=50, corrections=CORRECTIONS, shortlist=SHORTLIST)
    found = build_coreset(problem, golden["start_ind"].tolist(), config, candidates=lambda size: candidates[size])
    rows = [
        {"size": size, "method": method, "outer": float(losses[size - 1])}
        for method, losses in (("Winnow", found.outer), ("recorded", golden["outer_loss"]))
        for size in range(1, 51)
    ]
    ahead = np.array(found.outer) <= golden["outer_loss"]
    claims = {"sizes_at_least_as_good": int(ahead.sum()), "of": 50, "outer_at_50": found.outer[-1],
              "recorded_at_50": float(golden["outer_loss"][-1])}  # fmt: skip
    figure = curves(rows, "size", "outer", by="method", title="Weighted coresets of digits, kernel proxy: outer loss")
    return Record(rows, {"corrections": CORRECTIONS, "shortlist": SHORTLIST}, claims, figure)


if __name__ == "__main__":
    run("representer_digits", main)
