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
    image_size: int = 32
    channels: Literal[1, 3] = 1

    def __post_init__(self) -> None:
        require(self.sample_rate >= 1_000, f"A sample rate of {self.sample_rate} Hz is too low; use 1,000 or more.")
        require(0.05 <= self.seconds <= 60, f"Clips of {self.seconds} s are not supported; use 0.05 to 60 s.")
        require(8 <= self.image_size <= 512, f"An image size of {self.image_size} is not supported; use 8 to 512.")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """The proxy's kernel and its Nyström features."""

    network: str = "scnn"
    n_landmarks: int = 2048
    landmarks: Literal["uniform", "leverage"] = "uniform"
    landmark_seed: int = 0
    tolerance: float = 1e-6  # directions of K_QQ below tolerance * largest eigenvalue are dropped

    def __post_init__(self) -> None:
        require(self.n_landmarks >= 1, f"{self.n_landmarks} landmarks were asked for; use at least 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionConfig:
    """Which strategy, how many, and what the bilevel proxy is."""

    strategy: str = "bico"
    batch_size: int = 10
    penalty: float = 1e-4
    n_views: int = 16  # augmented views of each labeled or chosen item in the inner problem (the paper: 100)
    max_candidates: int = 100_000
    proxy: Literal["kernel", "embedding"] = "kernel"

    def __post_init__(self) -> None:
        require(self.batch_size >= 1, f"The batch size is {self.batch_size}; use at least 1.")
        require(self.penalty > 0, f"The penalty is {self.penalty}; it must be above 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapConfig:
    """The two-dimensional map of the pool."""

    source: Literal["embeddings", "features"] = "embeddings"
    n_neighbors: int = 15
    min_dist: float = 0.1
    max_points: int = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The learner. `preset()` gives the named combinations."""

    method: Literal["mixmatch", "fixmatch", "supervised"] = "fixmatch"



@dataclass(frozen=True, slots=True, kw_only=True)
class RoundConfig:
    """All settings of one round, stored with it."""

    seed: int = 0
    preset: Preset = "auto"
    media: MediaConfig = field(default_factory=MediaConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    kernel: KernelConfig = field(default_factory=KernelConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    map: MapConfig = field(default_factory=MapConfig)


def to_json(config: Any) -> str:
    """Stable text: sorted keys, so that equal settings are equal strings."""
    return json.dumps(dataclasses.asdict(config), sort_keys=True)


def from_json(cls: type[Config], text: str) -> Config:
    return from_dict(cls, json.loads(text))


def from_dict(cls: type[Config], values: dict[str, Any]) -> Config:
    """The config of class `cls`; missing fields take their defaults, unknown ones are refused by name."""
    hints = get_type_hints(cls)
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
