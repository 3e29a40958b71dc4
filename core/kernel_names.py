"""The kernels of the settings by name, each with a sentence that includes its cost. This module imports no torch."""

from __future__ import annotations

# Shown beside the choice. Costs are CPU time per kernel entry at 32x32, as printed by `benchmarks.kernels`.
KERNEL_NETWORKS: dict[str, str] = {
    "scnn": "Two 5x5 convolutions: the default, and the cheapest convolutional kernel.",
    "fnn": "Two dense layers on the flattened input: a fraction of scnn's cost, without spatial structure.",
    "wrn": "Wide residual network that flattens, the authors' proxy for active learning. About 8 times scnn.",
    "wrn-gap": "The same with global average pooling. On a CPU about 700 times scnn: hours where scnn takes a minute.",
    "cntk6": "Six 3x3 convolutions that flatten. About 3 times scnn.",
    "cntk6-gap": "Six 3x3 convolutions with global average pooling. On a CPU about 3,500 times scnn: for a few hundred "
    "items and landmarks, or for a GPU.",
    "cntk6-gap-fast": "cntk6-gap by quadrature: entries within about 1 %. On a CPU about 160 times scnn.",
    "myrtle5": "Four convolutions with average pooling. On a CPU about 4,500 times scnn: for a few hundred items and "
    "landmarks, or for a GPU.",
    "rbf": "Gaussian of the distance between inputs: negligible cost.",
    "linear": "Inner product of inputs: negligible cost.",
}
