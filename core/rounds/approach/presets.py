"""The preset `auto`: the settings of the device, and the two approaches that it chooses between."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from core.config import EncoderConfig, Preset, RoundConfig, preset
from core.runtime import Runtime


def resolve_preset(config: RoundConfig, runtime: Runtime) -> RoundConfig:
    """The settings with `auto` replaced by the preset for this device. Strategy, media, seed and settings that were
    changed by name are kept."""
    if config.preset != "auto":
        return config
    named = preset("auto", runtime.device.type, config.seed)
    selection = dataclasses.replace(
        config.selection,
        n_views=named.selection.n_views,
        proxy=named.selection.proxy,
        uncertainty_power=named.selection.uncertainty_power,
    )
    name: Preset = "paper" if runtime.is_cuda else "laptop"
    kernel = config.kernel
    if kernel.network == preset("auto").kernel.network:  # unless another one was chosen
        kernel = dataclasses.replace(kernel, network=named.kernel.network)
    resolved = dataclasses.replace(
        config, preset=name, training=named.training, selection=selection, similarity=named.similarity,
        augmentation=named.augmentation, kernel=kernel,
    )  # fmt: skip
    return _with_changes(resolved, config)


def _with_changes(resolved: RoundConfig, config: RoundConfig) -> RoundConfig:
    for section, field in (changed.split(".") for changed in config.changed):
        kept = {field: getattr(getattr(config, section), field)}
        resolved = dataclasses.replace(resolved, **{section: dataclasses.replace(getattr(resolved, section), **kept)})
    return resolved


def chooses_approach(config: RoundConfig) -> bool:
    """Whether the round still has to choose between its encoder and training from scratch."""
    return config.preset == "auto" and bool(config.encoder.identity)


def resolve_at_start(config: RoundConfig, runtime: Runtime) -> RoundConfig:
    """`resolve_preset`, except for a round that chooses between an encoder and training from scratch in its stage
    "decide"."""
    return config if chooses_approach(config) else resolve_preset(config, runtime)


@dataclass(frozen=True, slots=True)
class Approaches:
    """The settings of both approaches of the preset `auto` in a round that has an encoder."""

    encoder: RoundConfig
    scratch: RoundConfig


def both_approaches(config: RoundConfig, runtime: Runtime) -> Approaches:
    """The settings of both. Strategy, batch, media, kernel, seed and settings changed by name are the same."""
    named = preset("encoder", seed=config.seed)
    selection = dataclasses.replace(
        config.selection,
        n_views=named.selection.n_views,
        proxy=named.selection.proxy,
        uncertainty_power=named.selection.uncertainty_power,
    )
    encoder = dataclasses.replace(
        config, preset="encoder", training=named.training, selection=selection, similarity=named.similarity,
        augmentation=named.augmentation,
    )  # fmt: skip
    scratch = resolve_preset(dataclasses.replace(config, encoder=EncoderConfig(name=config.encoder.name)), runtime)
    return Approaches(encoder=_with_changes(encoder, config), scratch=scratch)
