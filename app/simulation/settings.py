"""The settings of a simulation: a preset, settled for this machine, and single settings changed by name.

changed(config, ["training.steps=1500", "kernel.network=fnn"])
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from core.config import Preset, RoundConfig, from_dict, preset, require


def settled_preset(name: Preset) -> RoundConfig:
    """The preset with `auto` decided for this machine, so that results say what they were made with."""
    if name != "auto":
        return preset(name)
    from core.rounds.pipeline import settled
    from core.runtime import Runtime

    return settled(preset("auto"), Runtime.create(0))


def changed(config: RoundConfig, changes: Sequence[str]) -> RoundConfig:
    """The settings with each `section.field=value` put in; names, types and limits are those of `core.config`."""
    values = dataclasses.asdict(config)
    for change in changes:
        name, equals, text = change.partition("=")
        section, dot, field = name.strip().partition(".")
        require(bool(equals and dot), f"{change!r} is not a setting; write it like training.steps=1500.")
        sections = [key for key, value in values.items() if isinstance(value, dict)]
        require(section in sections, f"There is no section {section!r}; there are {', '.join(sections)}.")
        values[section] = values[section] | {field: _value(text.strip())}
    return from_dict(RoundConfig, values)


def _value(text: str) -> Any:
    """A number, true or false, or else the text itself."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, int | float | str) else text


def hard_cases(wrong: float = 0.0, rare: str = "", missing: str = "") -> Mapping[str, Any]:
    """The part of a plan that makes it harder: a share of wrong answers, CLASS=0.02 of the pool, a class without
    initial labels."""
    name, equals, share = rare.rpartition("=") if rare else ("", "", "")
    require(not rare or bool(equals and name), f"{rare!r} does not say how rare; write it like CLASS=0.02.")
    try:
        thin = {"rare_class": name, "rare_share": float(share)} if rare else {}
    except ValueError:
        require(False, f"{share!r} is not a share; write it like {name}=0.02.")
    return {"wrong_share": wrong, "missing_class": missing, **thin}
