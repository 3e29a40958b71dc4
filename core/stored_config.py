"""Settings as JSON and back: frozen dataclasses, unchanged by a round trip. Settings of older versions can be read.

New fields take their defaults, renamed keys and values are translated (`RENAMED_KEYS`, `RENAMED_VALUES`), removed keys
(`RETIRED`) are ignored, and unknown keys are refused by name. If older versions did not have a section and its defaults
would change the results of their rounds, it takes the values that reproduce them (`BEFORE`). So does a setting of a
section that they had.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from core.errors import InvalidInput, require

Config = TypeVar("Config")


def to_json(config: Any) -> str:
    """The settings as JSON with sorted keys: equal settings give equal strings."""
    return json.dumps(dataclasses.asdict(config), sort_keys=True)


# Names and values stored by older versions, by the name of the config class.
RENAMED_KEYS: dict[str, dict[str, str]] = {
    "RoundConfig": {"likeness": "similarity"},
    "SelectionConfig": {"doubt": "uncertainty_power"},
    "TrainingConfig": {
        "contrast_steps": "pretrain_steps",
        "contrast_batch": "pretrain_batch",
        "warm_share": "pretrained_rate_scale",
        "n_guesses": "n_augmentations",
    },
}
RENAMED_VALUES: dict[str, dict[str, str]] = {"SelectionConfig.proxy": {"alike": "similarity"}}
RETIRED: dict[str, tuple[str, ...]] = {
    "TrainingConfig": ("processes", "hint_neighbors", "hint_reach", "hint_power"),
    "SelectionConfig": ("unsure_share",),
    "MapConfig": ("source",),
}


BEFORE: dict[str, dict[str, Any]] = {
    "RoundConfig": {"labels": {"weigh": False, "second_looks": False}},
    "LabelsConfig": {"clips": "graph", "earlier_rounds": False},
}


def current_name(cls: type, name: str) -> str:
    """The present name of a setting of config class `cls`, given its present or an older name."""
    return RENAMED_KEYS.get(cls.__name__, {}).get(name, name)


def from_json(cls: type[Config], text: str) -> Config:
    """The config of class `cls` in JSON written by `to_json` of this or an older version."""
    return from_stored(cls, json.loads(text))


def from_stored(cls: type[Config], values: dict[str, Any]) -> Config:
    """The config of class `cls` from the complete fields that this or an older version stored."""
    complete = BEFORE.get(cls.__name__, {}) | values
    for name, hint in get_type_hints(cls).items():
        before = BEFORE.get(getattr(hint, "__name__", ""), {})
        if before and isinstance(complete.get(name), dict):
            complete[name] = before | complete[name]
    return from_dict(cls, complete)


def from_dict(cls: type[Config], values: dict[str, Any]) -> Config:
    """The config of class `cls`. Missing fields take their defaults, renamed ones are translated, retired ones are
    ignored and unknown ones are refused by name."""
    hints = get_type_hints(cls)
    values = _with_current_names(cls, values)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise InvalidInput(f"Unknown settings for {cls.__name__}: {', '.join(unknown)}. Known: {', '.join(hints)}.")
    return cls(**{name: _restore(hints[name], value, f"{cls.__name__}.{name}") for name, value in values.items()})


def _with_current_names(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in RETIRED.get(cls.__name__, ()):
            continue
        current = current_name(cls, name)
        require(
            current == name or current not in values,
            f"The settings for {cls.__name__} contain {current!r} and its older name {name!r}. Remove one of them.",
        )
        found[current] = value
    return found


def _restore(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_dict(hint, value)
    if origin is Literal:
        if isinstance(value, str):
            value = RENAMED_VALUES.get(where, {}).get(value, value)
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
