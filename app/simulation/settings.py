"""The settings of a simulation: a preset resolved for this machine, with individual settings changed by name.

change_settings(config, ["training.steps=1500", "kernel.network=fnn"])
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from core.acquisition import catalog
from core.config import Preset, RoundConfig, current_name, from_dict, preset, require

SECTIONS: dict[str, type] = {
    field.name: type(getattr(RoundConfig(), field.name))
    for field in dataclasses.fields(RoundConfig)
    if dataclasses.is_dataclass(getattr(RoundConfig(), field.name))
}


def preset_for_this_machine(name: Preset) -> RoundConfig:
    """The settings of a preset. `auto` is replaced by the preset for this machine's device, so that results name the
    preset that was used. That preset trains from scratch; `app.cli.commands.simulate` adds an encoder."""
    if name != "auto":
        return preset(name)
    from core.rounds.approach.presets import resolve_preset
    from core.runtime import Runtime

    return resolve_preset(preset("auto"), Runtime.create(0))


def change_settings(config: RoundConfig, changes: Sequence[str]) -> RoundConfig:
    """`config` with each `section.field=value` applied in order. `core.config` defines names, types and limits. Names
    and values of older versions are accepted."""
    return apply_changes(config, parse_changes(changes))


def parse_changes(changes: Sequence[str]) -> dict[str, Any]:
    """Parse "training.steps=1500" into {"training.steps": 1500}, with the present names of the settings."""
    found: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        section, dot, field = name.strip().partition(".")
        require(bool(equals and dot), f"{change!r} is not a setting; write it like training.steps=1500.")
        section = current_name(RoundConfig, section)
        classes = SECTIONS.get(section)
        require(classes is not None, f"There is no section {section!r}; there are {', '.join(SECTIONS)}.")
        assert classes is not None
        found[f"{section}.{current_name(classes, field)}"] = _value(text.strip())
    return found


def apply_changes(config: RoundConfig, changes: Mapping[str, Any]) -> RoundConfig:
    """`config` with settings replaced by name. They are added to `changed`, so that resolving `auto` keeps them."""
    values = dataclasses.asdict(config)
    for name, value in changes.items():
        section, _, field = name.partition(".")
        values[section] = values[section] | {field: value}
    values["changed"] = tuple(sorted({*config.changed, *changes}))
    changed = from_dict(RoundConfig, values)
    _check_names(changed)
    return changed


def _check_names(config: RoundConfig) -> None:
    """Check names that would otherwise be rejected only in the course of a round."""
    catalog.entry(config.selection.strategy)
    network = config.training.network
    require(
        bool(re.fullmatch(r"resnet-small|wrn-\d+-\d+", network)),
        f"There is no network {network!r}; use resnet-small or wrn-DEPTH-WIDTH, as in wrn-28-10.",
    )


def _value(text: str) -> Any:
    """Parse `text` as a number, a Boolean or a quoted string. Other text is returned unchanged."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, int | float | str) else text


def hard_cases(wrong: float = 0.0, rare: str = "", missing: str = "") -> Mapping[str, Any]:
    """The plan options for difficult cases: the share of wrong labels, a rare class as CLASS=0.02 (its share of the
    pool), and a class without initial labels."""
    name, equals, share = rare.rpartition("=") if rare else ("", "", "")
    require(not rare or bool(equals and name), f"{rare!r} does not state a share; write it like CLASS=0.02.")
    try:
        rare_class = {"rare_class": name, "rare_share": float(share)} if rare else {}
    except ValueError:
        require(False, f"{share!r} is not a share; write it like {name}=0.02.")
    return {"wrong_share": wrong, "missing_class": missing, **rare_class}
