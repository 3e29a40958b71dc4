"""The choice of a round's encoder: by name, by identity, or the default for its kind of media."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from core.config import EncoderConfig, RoundConfig
from core.encoders.built_in import BUILT_IN, default_for
from core.encoders.folders import Encoder, encoders_folder, find_installed, installed
from core.encoders.recipes import make_built_in
from core.errors import InvalidInput, NotFound
from core.types import MediaKind


def encoder_named(home: Path, name: str, kind: MediaKind) -> Encoder:
    """The encoder of this name for this kind of media; a built-in one is created at its first use."""
    is_there = (encoders_folder(home) / name).is_dir()
    found = make_built_in(home, name) if name in BUILT_IN and not is_there else find_installed(home, name)
    if found.description.kind != kind:
        raise InvalidInput(f"The encoder {name} is for {found.description.kind}; this project has {kind} items.")
    return found


def available(home: Path, kind: MediaKind) -> list[str]:
    """Names of the encoders that can be used for this kind of media: the built-in ones first."""
    built_in = [name for name, (of, _) in BUILT_IN.items() if of == kind]
    others = [
        name
        for name, found in installed(home)
        if isinstance(found, Encoder) and found.description.kind == kind and name not in built_in
    ]
    return [*built_in, *others]


def default_encoder(home: Path, kind: MediaKind) -> Encoder | None:
    """The default encoder: the built-in one for this kind of media, or the only other one."""
    if name := default_for(kind):
        return encoder_named(home, name, kind)
    names = available(home, kind)
    return encoder_named(home, names[0], kind) if names else None


def with_encoder(config: RoundConfig, encoder: Encoder) -> RoundConfig:
    """The settings of a round that uses this encoder."""
    return dataclasses.replace(config, encoder=EncoderConfig(name=encoder.name, identity=encoder.identity))


def resolve_encoder(
    config: RoundConfig, home: Path, kind: MediaKind, preferred: tuple[str, str] = ("", "")
) -> RoundConfig:
    """The settings with the encoder of their name. The preset `encoder` needs one, `auto` compares one with training
    from scratch if there is one, and all others use none. `preferred` is the name and the identity of the best encoder
    of the last audition, which the name `auto` means while that encoder is installed."""
    name = config.encoder.name
    if config.preset not in ("auto", "encoder") or (config.preset == "auto" and name == "none"):
        return dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, identity=""))
    if name == "none":
        raise InvalidInput("The preset encoder needs an encoder, but the settings name none. Choose another preset.")
    if name == "auto":
        found = _preferred(home, kind, *preferred) or default_encoder(home, kind)
    else:
        found = encoder_named(home, name, kind)
    if found is None and config.preset == "auto":
        return dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, identity=""))
    if found is None:
        raise NotFound(
            f"There is no encoder for {kind} items yet. Add one: python -m app encoders add FOLDER, "
            "or choose another preset."
        )
    return with_encoder(config, found)


def _preferred(home: Path, kind: MediaKind, name: str, identity: str) -> Encoder | None:
    if name not in available(home, kind):
        return None
    found = encoder_named(home, name, kind)
    return found if found.identity == identity else None


def encoder_of(config: EncoderConfig, home: Path) -> Encoder | None:
    """The encoder of a round that has started; None for a round that trains from scratch."""
    if not config.identity:
        return None
    if config.name in BUILT_IN and not (encoders_folder(home) / config.name).is_dir():
        found = make_built_in(home, config.name)
    else:
        try:
            found = find_installed(home, config.name)
        except NotFound as problem:
            raise NotFound(
                f"The encoder {config.name} of this round was removed. Its stored predictions and map stay; "
                "to use it again, add the same folder: python -m app encoders add FOLDER"
            ) from problem
    if found.identity != config.identity:
        raise InvalidInput(
            f"The encoder {config.name} was replaced by another one of the same name: the round has "
            f"{config.identity[:12]}, installed is {found.identity[:12]}. Add the former one under its name, or "
            "start a new round."
        )
    return found
