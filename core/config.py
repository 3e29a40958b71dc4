"""Frozen settings of a round: validated when made, the same after a trip through JSON, with named presets.

What a round stores is `to_json(config)`; `from_json` of an older row fills fields added since with their defaults and
refuses fields it does not know, by name.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from core.errors import InvalidInput

Preset = Literal["auto", "paper", "laptop", "smoke"]
Config = TypeVar("Config")


def require(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidInput(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaConfig:
    """From bytes to network input. Audio defaults are the paper's: 1 s at 16 kHz -> 32x32 log-mel."""

    sample_rate: int = 16_000
    seconds: float = 1.0
    n_fft: int = 2048  # 128 ms
    hop: int = 512  # 32 ms
    n_mels: int = 32
    f_min: float = 20.0
    f_max: float = 8_000.0
    floor: float = -4.5  # log10 power below the clip's maximum
    noise_folder: str = ""  # background noise for augmentation; empty: generated white, pink and brown noise
    image_size: int = 32
    image_fit: Literal["stretch", "crop"] = "stretch"  # to a square: all of the picture, or its central square
    channels: Literal[1, 3] = 3  # of pictures; audio always has one
    flip: bool = False  # mirror images left to right in augmentation: only where a mirrored item keeps its class

    def __post_init__(self) -> None:
        require(
            1_000 <= self.sample_rate <= 192_000,
            f"A sample rate of {self.sample_rate} Hz is not supported; use 1,000 to 192,000 Hz.",
        )
        require(0.05 <= self.seconds <= 60, f"Clips of {self.seconds} s are not supported; use 0.05 to 60 s.")
        require(16 <= self.n_fft <= 65_536, f"A window of {self.n_fft} samples is not supported; use 16 to 65,536.")
        require(1 <= self.hop <= self.n_fft, f"A hop of {self.hop} samples must lie between 1 and the window.")
        require(4 <= self.n_mels <= 256, f"{self.n_mels} mel bins are not supported; use 4 to 256.")
        require(
            0 <= self.f_min < min(self.f_max, self.sample_rate / 2),
            f"The mel bins from {self.f_min} to {self.f_max} Hz leave no band below {self.sample_rate / 2} Hz.",
        )
        require(-12 <= self.floor <= -0.5, f"A floor of {self.floor} is not supported; use -12 to -0.5.")
        require(8 <= self.image_size <= 512, f"An image size of {self.image_size} is not supported; use 8 to 512.")


# What people read beside the choice. Costs are CPU time per kernel entry at 32x32, as `benchmarks.kernels` prints them.
KERNEL_NETWORKS: dict[str, str] = {
    "scnn": "Two 5x5 convolutions. The default and the cheapest convolutional kernel: its cost is the unit below.",
    "fnn": "Two dense layers on the flattened input: a fraction of scnn's cost, and blind to where things are.",
    "wrn": "Wide residual network that flattens, the authors' proxy for active learning. About 8 times scnn.",
    "wrn-gap": "The same with global average pooling. On a CPU about 700 times scnn: hours where scnn takes a minute.",
    "cntk6": "Six 3x3 convolutions that flatten. About 3 times scnn.",
    "cntk6-gap": "Six 3x3 convolutions with global average pooling. On a CPU about 3,500 times scnn: for a few hundred "
    "items and landmarks, or for a GPU.",
    "myrtle5": "Four convolutions with average pooling. On a CPU about 4,500 times scnn: for a few hundred items and "
    "landmarks, or for a GPU.",
    "rbf": "Gaussian of the distance between inputs: next to no cost.",
    "linear": "Inner product of inputs: next to no cost.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """The proxy's kernel and its Nyström features. What each network costs: `KERNEL_NETWORKS`."""

    network: str = "scnn"
    block_size: int = 4  # blocks in each group of wrn and wrn-gap
    n_landmarks: int = 2048
    landmarks: Literal["uniform", "leverage"] = "uniform"
    landmark_seed: int = 0
    tolerance: float = 1e-6  # directions of K_QQ below tolerance * largest eigenvalue are dropped

    def __post_init__(self) -> None:
        known = ", ".join(KERNEL_NETWORKS)
        require(self.network in KERNEL_NETWORKS, f"There is no kernel called {self.network!r}; choose one of {known}.")
        require(1 <= self.block_size <= 16, f"The kernel's block size is {self.block_size}; use 1 to 16.")
        require(self.n_landmarks >= 1, f"{self.n_landmarks} landmarks were asked for; use at least 1.")
        require(0 < self.tolerance < 1, f"The kernel's tolerance is {self.tolerance}; use more than 0 and less than 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionConfig:
    """Which strategy, how many, and what the bilevel proxy is."""

    strategy: str = "bico"
    batch_size: int = 10
    penalty: float = 1e-4
    n_views: int = 16  # augmented views of each labeled or chosen item in the inner problem (the paper: 100)
    max_candidates: int = 100_000  # above this many unlabeled items a seeded sample stands for the pool
    proxy: Literal["kernel", "embedding", "alike"] = "kernel"  # alike: diffusion over alike items; else as kernel
    doubt: float = 0.0  # bico: power of (1 - margin of the guess), an item's weight in the outer loss; 0: all alike
    max_pairwise: int = 8_192  # items of a matrix of all pairs; more are sampled (prob_cover, herding, typiclust)
    near_duplicate: float = 0.05  # share of the typical distance below which two items count as one; 0: only equals

    def __post_init__(self) -> None:
        require(self.batch_size >= 1, f"The batch size is {self.batch_size}; use at least 1.")
        require(self.penalty > 0, f"The penalty is {self.penalty}; it must be above 0.")
        require(self.n_views >= 0, f"{self.n_views} views were asked for; use 0 (none) or more.")
        require(0 <= self.doubt <= 20, f"The power of doubt is {self.doubt}; use 0 (all items alike) to 20.")
        require(self.max_candidates >= 100, f"At most {self.max_candidates} candidates is too few; use 100 or more.")
        require(self.max_pairwise >= 100, f"At most {self.max_pairwise} pairwise items is too few; use 100 or more.")
        require(
            0 <= self.near_duplicate < 1,
            f"Near-duplicates at {self.near_duplicate} of the typical distance; use 0 to below 1.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityConfig:
    """Clips that sound alike, and how far guesses and labels reach over them (`core.similarity.propagation`)."""

    neighbors: int = 0  # most alike items that a guess is compared with; 0: guesses are the model's own
    reach: float = 0.7  # share of the pool's typical distance beyond which two items no longer count as alike

    def __post_init__(self) -> None:
        require(0 <= self.neighbors <= 100, f"{self.neighbors} alike items were asked for; use 0 (none) to 100.")
        require(
            0 < self.reach <= 2,
            f"PoolPredictions reach {self.reach} of the typical distance; use more than 0, at most 2.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MapConfig:
    """The two-dimensional map of the pool."""

    source: Literal["embeddings", "features"] = "embeddings"
    n_neighbors: int = 15
    min_dist: float = 0.1
    max_points: int = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The learner. The defaults are nearly the `laptop` preset; `preset()` gives the named combinations."""

    method: Literal["fixmatch", "mixmatch", "supervised"] = "fixmatch"
    network: str = "resnet-small"  # or "wrn-DEPTH-WIDTH", such as "wrn-28-10"
    steps: int = 2_100  # 0: `epochs` passes over the unlabeled items
    warm_steps: int = 0  # steps of a round that starts from the previous round's model; 0: every round starts anew
    epochs: int = 0
    contrast_steps: int = 0  # steps of a warm-up without labels before a network starts anew; 0: none
    contrast_batch: int = 128  # items of such a step, each in two views
    warm_share: float = 1.0  # of the learning rate, for the layers a warm-up has taught; the head takes all of it
    labeled_batch: int = 16
    unlabeled_batch: int = 48
    balance: bool = True  # labeled batches hold the classes in the shares of `align`'s prior, not of the labels
    learning_rate: float = 2e-3  # AdamW, cosine to 0
    warmup_steps: int = 20
    weight_decay: float = 1e-3
    ema_decay: float = 0.999  # average of the weights that predicts; 0: the last weights
    augment: bool = True  # False: clean inputs only (supervised)
    bank_views: int = 16  # augmented views per clip, made once; 0: augment waveforms in every step
    lambda_u: float = 1.0  # weight of the unlabeled loss
    ramp: float = 0.1  # share of the steps over which lambda_u rises from 0
    threshold: float = 0.85  # FixMatch: confidence that makes a guess a target; the most it can rise to when it adapts
    adapt_threshold: bool = False  # FixMatch: the threshold follows the mean confidence of the guesses
    align: Literal["auto", "uniform", "off"] = "auto"  # FixMatch: class prior that guesses are aligned with
    sharpening: float = 0.5  # MixMatch: T
    n_guesses: int = 2  # MixMatch: K
    mix_alpha: float = 0.75  # MixMatch: alpha of Beta(alpha, alpha)
    batch_norm: Literal["joint", "interleaved"] = "joint"  # MixMatch: which batches set the statistics
    predict_views: int = 0  # augmented views averaged into each prediction, beside the clean one
    calibrate: bool = True
    amp: bool = True  # mixed precision, on CUDA only
    compile: bool = False  # torch.compile

    def __post_init__(self) -> None:
        require(self.steps >= 0 and self.epochs >= 0, "The number of steps and epochs cannot be negative.")
        require(self.steps > 0 or self.epochs > 0, "Training needs a number of steps or of epochs above 0.")
        require(self.contrast_steps >= 0, f"{self.contrast_steps} warm-up steps; use 0 (none) or more.")
        require(self.contrast_batch >= 2, f"The warm-up's batch is {self.contrast_batch}; use at least 2.")
        require(0 <= self.warm_share <= 1, f"The share of the rate after a warm-up is {self.warm_share}; use 0 to 1.")
        require(self.labeled_batch >= 1, f"The labeled batch is {self.labeled_batch}; use at least 1.")
        require(self.unlabeled_batch >= 1, f"The unlabeled batch is {self.unlabeled_batch}; use at least 1.")
        require(self.learning_rate > 0, f"The learning rate is {self.learning_rate}; it must be above 0.")
        require(0 <= self.ema_decay < 1, f"The EMA decay is {self.ema_decay}; use 0 to below 1.")
        require(0 <= self.threshold < 1, f"The threshold is {self.threshold}; use 0 to below 1.")
        require(self.sharpening > 0, f"The sharpening temperature is {self.sharpening}; it must be above 0.")
        require(self.n_guesses >= 1, f"{self.n_guesses} guesses were asked for; use at least 1.")
        require(self.mix_alpha > 0, f"The mixing alpha is {self.mix_alpha}; it must be above 0.")
        require(0 <= self.bank_views <= 128, f"A bank of {self.bank_views} views is not supported; use 0 to 128.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundConfig:
    """All settings of one round, stored with it."""

    seed: int = 0
    preset: Preset = "auto"
    media: MediaConfig = field(default_factory=MediaConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    kernel: KernelConfig = field(default_factory=KernelConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    likeness: SimilarityConfig = field(default_factory=SimilarityConfig)
    map: MapConfig = field(default_factory=MapConfig)


def preset(name: Preset, device_type: str = "cpu", seed: int = 0) -> RoundConfig:
    """All settings of a named preset. `auto` is `paper` on a GPU ("cuda") and `laptop` elsewhere.

    paper    WRN-28-10, MixMatch, 30 epochs, Adam 1e-3, from scratch each round, 100 views in the selection
    laptop   two CPU cores: a small ResNet with FixMatch, a round in about two minutes; guesses settle on what sounds
             alike, and the selection asks about what they leave in doubt
    smoke    seconds, for tests and a first look: it runs everything and learns little
    """
    if name == "auto":
        return dataclasses.replace(preset("paper" if device_type == "cuda" else "laptop", seed=seed), preset="auto")
    if name == "paper":
        training = TrainingConfig(
            method="mixmatch", network="wrn-28-10", steps=0, warm_steps=0, epochs=30,
            labeled_batch=64, unlabeled_batch=64, learning_rate=1e-3, warmup_steps=0, weight_decay=1e-4,
            lambda_u=10.0, ramp=1.0, bank_views=0, balance=False,
        )  # fmt: skip
        return RoundConfig(seed=seed, preset=name, training=training, selection=SelectionConfig(n_views=100))
    if name == "smoke":
        training = TrainingConfig(steps=30, warm_steps=15, labeled_batch=8, unlabeled_batch=16, bank_views=2)
        kernel = KernelConfig(n_landmarks=32)
        return RoundConfig(
            seed=seed, preset=name, training=training, kernel=kernel, selection=SelectionConfig(n_views=2)
        )
    require(name == "laptop", f"There is no preset {name!r}; choose auto, paper, laptop or smoke.")
    return RoundConfig(
        seed=seed,
        preset="laptop",
        training=TrainingConfig(predict_views=4),
        selection=SelectionConfig(proxy="alike", doubt=1.0),
        likeness=SimilarityConfig(neighbors=10),
    )


def to_json(config: Any) -> str:
    """Stable text: sorted keys, so that equal settings are equal strings."""
    return json.dumps(dataclasses.asdict(config), sort_keys=True)


RETIRED = {
    "TrainingConfig": ("processes", "hint_neighbors", "hint_reach", "hint_power"),
    "SelectionConfig": ("unsure_share",),
}


def from_json(cls: type[Config], text: str) -> Config:
    return from_dict(cls, json.loads(text))


def from_dict(cls: type[Config], values: dict[str, Any]) -> Config:
    """The config of class `cls`; missing fields take their defaults, unknown ones are refused by name. Settings of old
    rounds that mean nothing any more are passed over."""
    hints = get_type_hints(cls)
    values = {name: value for name, value in values.items() if name not in RETIRED.get(cls.__name__, ())}
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise InvalidInput(f"Unknown settings for {cls.__name__}: {', '.join(unknown)}. Known: {', '.join(hints)}.")
    return cls(**{name: _restore(hints[name], value, f"{cls.__name__}.{name}") for name, value in values.items()})


def _restore(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_dict(hint, value)
    if origin is Literal:
        require(value in get_args(hint), f"{where} is {value!r}; choose one of {', '.join(map(repr, get_args(hint)))}.")
        return value
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _restore(next(a for a in get_args(hint) if a is not type(None)), value, where)
    if origin is tuple:
        return tuple(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    require(isinstance(value, hint), f"{where} is {value!r}; it must be of type {hint.__name__}.")
    return value
