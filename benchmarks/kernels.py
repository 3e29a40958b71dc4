"""Kernel entries per CPU second compared with neural-tangents in one run, and the speed-up by a second thread.

    python -m benchmarks.kernels [--out FILE] [--quick]

Both sides compute the tangent kernel of the same random 32x32x1 float32 images on one thread, both are warmed up (our
loops compiled, theirs compiled by jit) and count CPU time; the best of several repeats is used, because the machine may
be busy. Threads are compared in wall time; short runs of one and two threads alternate, and the best of each is used.
neural-tangents is installed in a separate environment, `.venv-bench`, created at first use.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-bench"
PINS = ("neural-tangents==0.6.5", "jax==0.4.30", "jaxlib==0.4.30")

# name: (items on each side for them, for us); their global average pooling needs one pair at a time
SIZES = {
    "scnn": (32, 256),
    "cntk6_flatten": (32, 192),
    "wrn": (24, 96),
    "gap": (1, 4),
    "wrn_gap": (0, 8),
    "myrtle5": (0, 3),
}

THEIRS = """
import json, sys, time, warnings
warnings.filterwarnings("ignore")
import numpy as np, jax
from jax import random
from neural_tangents import stax

def block(stride=1, first=False):
    conv = lambda s=1: stax.Conv(1, (3, 3), (s, s), padding="SAME", W_std=1.0, b_std=0.0)
    main = stax.serial(stax.Relu(), conv(stride), stax.Relu(), conv())
    return stax.serial(stax.FanOut(2), stax.parallel(main, conv(stride) if first else stax.Identity()), stax.FanInSum())

def network(name):
    conv5 = stax.Conv(1, (5, 5), padding="SAME", W_std=1.0, b_std=0.05)
    conv3 = stax.Conv(1, (3, 3), padding="SAME", W_std=2**0.5, b_std=0.0)
    dense = stax.Dense(1, W_std=1.0, b_std=0.05)
    if name == "scnn":
        return stax.serial(conv5, stax.Relu(), conv5, stax.Relu(), stax.Flatten(), dense, stax.Relu(), dense)
    if name == "wrn":
        groups = [block(s if i == 0 else 1, i == 0) for s in (1, 2, 2) for i in range(4)]
        first = stax.Conv(1, (3, 3), padding="SAME", W_std=1.0, b_std=0.0)
        return stax.serial(first, *groups, stax.Flatten(), stax.Dense(1, W_std=1.0, b_std=0.0))
    bridge = stax.GlobalAvgPool() if name == "gap" else stax.Flatten()
    return stax.serial(*[conv3, stax.Relu()] * 6, bridge, stax.Dense(1, W_std=1.0, b_std=0.0))

rates, values = {}, {}
for name, n, repeats in json.loads(sys.argv[1]):
    kernel = jax.jit(lambda a, b, f=network(name)[2]: f(a, b, "ntk"))
    x = np.random.default_rng(0).normal(size=(2 * n, 32, 32, 1)).astype(np.float32)
    values[name] = float(kernel(x[:n], x[n:]).block_until_ready()[0, 0])
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        kernel(x[:n], x[n:]).block_until_ready()
        best = min(best, time.process_time() - start)
    rates[name] = n * n / best
print(json.dumps({"rates": rates, "values": values}))
"""


def environment() -> Path:
    """The Python interpreter that has neural-tangents; its environment is created if it is missing."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    found = subprocess.run([python, "-c", "import neural_tangents"], capture_output=True)
    if found.returncode:
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PINS]
        subprocess.run(install, check=True, stdout=sys.stderr)
    return python


def their_rates(repeats: int) -> dict[str, Any]:
    """Entries per CPU second of neural-tangents, on one core."""
    python = environment()
    plan = [[name, n, repeats if name != "gap" else 2] for name, (n, _) in SIZES.items() if n]
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    variables = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [python, "-c", THEIRS, json.dumps(plan)], env=variables, capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(f"neural-tangents failed:\n{run.stderr[-2000:]}")
    return dict(json.loads(run.stdout.strip().splitlines()[-1]))


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def our_rates(repeats: int) -> dict[str, Any]:
    """Entries per CPU second of the fused path, on one thread."""
    import numpy as np

    from core.kernels import networks
    from core.kernels.fused import fused_kernel

    made = {
        "scnn": networks.scnn(),
        "cntk6_flatten": networks.cntk6(),
        "wrn": networks.wrn(4),
        "gap": networks.cntk6("gap"),
        "wrn_gap": networks.wrn(4, "gap"),
        "myrtle5": networks.myrtle5(),
    }
    rates, values = {}, {}
    for name, (theirs, n) in SIZES.items():
        n_first = theirs or 1
        x = np.random.default_rng(0).normal(size=(2 * n_first, 32, 32, 1)).astype(np.float32)
        values[name] = float(fused_kernel(x[:1], x[n_first : n_first + 1], made[name], n_threads=1)[0, 0])
        x = np.random.default_rng(1).normal(size=(2 * n, 32, 32, 1)).astype(np.float32)
        seconds = best_seconds(lambda x=x, n=n, name=name: fused_kernel(x[:n], x[n:], made[name], n_threads=1), repeats)
        rates[name] = n * n / seconds
    return {"rates": rates, "values": values}


def threads_ratio(repeats: int) -> float:
    """Best wall time of one thread over the best of two; short runs alternate, so that load affects both equally."""
    import numpy as np

    from core.kernels import networks
    from core.kernels.fused import fused_kernel

    x = np.random.default_rng(2).normal(size=(560, 32, 32, 1)).astype(np.float32)

    def wall(n_threads: int) -> float:
        start = time.perf_counter()
        fused_kernel(x[:280], x[280:], networks.scnn(), n_threads=n_threads)
        return time.perf_counter() - start

    times = [(wall(1), wall(2)) for _ in range(4 * repeats)]
    return min(one for one, _ in times) / min(two for _, two in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the result to this file")
    parser.add_argument("--quick", action="store_true", help="two repeats instead of seven")
    arguments = parser.parse_args()
    repeats = 2 if arguments.quick else 7
    theirs = their_rates(repeats)
    ours = our_rates(repeats)
    result: dict[str, Any] = {
        f"{name}_ratio": round(ours["rates"][name] / rate, 1) for name, rate in theirs["rates"].items()
    }
    result["threads_ratio"] = round(threads_ratio(repeats), 2)
    result["cost_of_scnn"] = {name: round(ours["rates"]["scnn"] / rate, 1) for name, rate in ours["rates"].items()}
    result["entries_per_cpu_second"] = {name: round(rate, 1) for name, rate in ours["rates"].items()}
    result["their_entries_per_cpu_second"] = {name: round(rate, 1) for name, rate in theirs["rates"].items()}
    result["largest_difference"] = max(abs(ours["values"][n] / v - 1) for n, v in theirs["values"].items())
    text = json.dumps(result)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
