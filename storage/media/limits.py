"""How much a file or an archive may ask of this machine. Every limit has a default and can be set.

Settings, later ones win: the defaults below; `WINNOW_LIMITS` (a JSON object) and `WINNOW_MAX_FILE_BYTES` and so on, one
environment variable per limit; `--limit max_pixels=1000000` on the command line.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from core.errors import InvalidInput

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What import accepts. A file over a limit is refused with the number and the limit's name."""

    max_file_bytes: int = 256 * MIB
    max_pixels: int = 64_000_000  # width x height, checked before decoding
    max_seconds: float = 600.0
    min_sample_rate: int = 1_000
    max_sample_rate: int = 384_000
    max_channels: int = 8
    max_zip_entries: int = 1_000_000
    max_zip_bytes: int = 20 * 1024 * MIB  # of all entries, unpacked
    max_zip_ratio: float = 200.0  # unpacked over packed, for entries above 1 MiB and for the archive as a whole
    max_manifest_bytes: int = 1024 * MIB
    decode_seconds: float = 20.0  # wall seconds one file may take to decode
    decode_bytes: int = 2048 * MIB  # address space of the process that decodes

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise InvalidInput(f"The limit {field.name} is {value}; it must be above 0.")
        if self.min_sample_rate > self.max_sample_rate:
            raise InvalidInput(
                f"The lowest sample rate allowed, {self.min_sample_rate}, is above the highest, {self.max_sample_rate}."
            )


def limits_from(
    options: Iterable[str] = (), environment: Mapping[str, str] | None = None, known: Limits | None = None
) -> Limits:
    """The limits in force: `known` (the defaults), changed by the environment, changed by `name=value` options."""
    from core.config import from_dict  # here, because every process that examines files reads this module

    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    if text := environment.get("WINNOW_LIMITS"):
        try:
            given = json.loads(text)
        except ValueError as problem:
            raise InvalidInput(f"WINNOW_LIMITS is not a JSON object ({problem}).") from problem
        if not isinstance(given, dict):
            raise InvalidInput('WINNOW_LIMITS is not a JSON object, such as {"max_pixels": 1000000}.')
        values.update(given)
    for field in dataclasses.fields(Limits):
        if text := environment.get(f"WINNOW_{field.name.upper()}"):
            values[field.name] = _number(field.name, text)
    for option in options:
        name, separator, text = option.partition("=")
        if not separator:
            raise InvalidInput(f"The limit {option!r} has no value; write it as max_pixels=1000000.")
        values[name.strip()] = _number(name.strip(), text)
    return from_dict(Limits, {**dataclasses.asdict(known or Limits()), **values})


def _number(name: str, text: str) -> int | float:
    try:
        return int(text.replace("_", ""))
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"The limit {name} is {text!r}; give a number.") from None
