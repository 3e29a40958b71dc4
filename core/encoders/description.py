"""The description of an encoder, `encoder.json`, read strictly. Needs only the standard library, so that pages and the
store can read it.

    {"format": 1, "name": "yamnet", "kind": "audio", "license": "Apache-2.0",
     "input":  {"name": "waveform", "sample_rate": 16000, "window": 15600, "hop": 7800},
     "output": {"name": "embedding", "dimension": 1024, "pooling": "mean+max"}}

    {"format": 1, "name": "efficientnet-lite0", "kind": "image", "license": "Apache-2.0",
     "input":  {"name": "pixels", "size": [192, 192], "fit": "crop", "mean": [127], "std": [128]},
     "output": {"name": "features", "dimension": 1280, "pooling": "none"}}

The identity of an encoder is a hash of both of its files. Features of one encoder are therefore never read as those of
another, even if both have the same name. docs/encoders.md describes every field.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from core.config import require
from core.errors import InvalidInput
from core.types import MediaKind

FORMAT = 1
MAX_JSON_BYTES = 64 << 10
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
RESERVED = ("auto", "none")
# SPDX names of licenses that allow redistribution of the encoder, at most with a notice.
FREE_LICENSES = ("Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Unlicense", "CC0-1.0", "CC-BY-4.0")

Pooling = Literal["none", "mean", "max", "mean+max", "first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioInput:
    """Raw mono samples, in windows. A window of 0 samples means the whole clip, in parts of at most `longest`."""

    name: str
    sample_rate: int
    window: int = 0  # samples; 0: any length
    hop: int = 0  # samples from one window to the next; 0: half a window
    shortest: int = 400  # samples; shorter clips are padded with silence (window 0)
    longest: int = 480_000  # samples of one window (window 0)
    margin: int = 0  # samples of silence that are added to a clip
    shifts: int = 1  # positions of the clip within the margin; its features are the mean over them
    max_windows: int = 64  # of one clip, evenly spaced over it
    level: Literal["none", "peak"] = "none"  # peak: the largest absolute sample is scaled to 1
    layout: Literal["BT", "BCT"] = "BT"
    batch: int = 0  # most windows at once; 0: as many as are fast. 1 if results depend on the rest of a batch

    def __post_init__(self) -> None:
        require(1_000 <= self.sample_rate <= 192_000, f"sample_rate is {self.sample_rate}; use 1,000 to 192,000.")
        require(
            self.window == 0 or 100 <= self.window <= 10_000_000,
            f"window is {self.window} samples; use 0 (any length) or 100 to 10,000,000.",
        )
        require(0 <= self.hop <= max(self.window, 0), f"hop is {self.hop}; use 0 (half a window) to the window.")
        require(
            1 <= self.shortest <= self.longest <= 30_000_000,
            f"shortest is {self.shortest} and longest is {self.longest} samples; use 1 to 30,000,000, in this order.",
        )
        require(0 <= self.margin <= 1_000_000, f"margin is {self.margin} samples; use 0 to 1,000,000.")
        require(1 <= self.shifts <= 16, f"shifts is {self.shifts}; use 1 to 16.")
        require(self.shifts == 1 or self.margin > 0, f"{self.shifts} shifts need a margin above 0.")
        require(0 <= self.batch <= 1_024, f"batch is {self.batch}; use 0 (any) to 1,024.")
        require(1 <= self.max_windows <= 1_000, f"max_windows is {self.max_windows}; use 1 to 1,000.")

    @property
    def step(self) -> int:
        """Samples from one window to the next."""
        return self.hop or max(1, self.window // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureInput:
    """Pictures of a fixed size: pixel value * range / 255, minus the mean, divided by the deviation."""

    name: str
    size: tuple[int, int]  # height, width
    fit: Literal["crop", "stretch", "fit"] = "crop"
    crops: int = 1  # most windows along the longer side of a picture; with fit "crop"
    colors: Literal["RGB", "BGR", "L"] = "RGB"
    range: float = 255.0  # the largest pixel value before mean and std
    mean: tuple[float, ...] = (0.0,)  # by channel, or one for all
    std: tuple[float, ...] = (1.0,)
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    batch: int = 0  # most pictures at once; 0: as many as are fast. 1 if results depend on the rest of a batch

    def __post_init__(self) -> None:
        sides = len(self.size) == 2 and all(8 <= side <= 1_024 for side in self.size)
        require(sides, f"size is {list(self.size)}; use [height, width], each 8 to 1,024.")
        require(0 <= self.batch <= 1_024, f"batch is {self.batch}; use 0 (any) to 1,024.")
        require(1 <= self.crops <= 32, f"crops is {self.crops}; use 1 to 32.")
        require(self.crops == 1 or self.fit == "crop", f'{self.crops} crops need fit "crop".')
        require(math.isfinite(self.range) and self.range > 0, f"range is {self.range}; it must be above 0.")
        for name in ("mean", "std"):
            values = getattr(self, name)
            numbers = all(math.isfinite(value) for value in values)
            require(
                len(values) in (1, self.channels) and numbers,
                f"{name} has {len(values)} values for {self.channels} channels; use finite numbers, one or one each.",
            )
        require(all(value > 0 for value in self.std), f"std is {list(self.std)}; every value must be above 0.")

    @property
    def channels(self) -> int:
        return 1 if self.colors == "L" else 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInput:
    """Embeddings that were computed elsewhere: one row per item, found by the SHA-256 of the item's bytes."""

    table: int  # rows
    file: str = ""  # the file they came from, for display

    def __post_init__(self) -> None:
        require(self.table >= 1, f"table is {self.table}; a table has at least one row.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The output that is used, and how its positions (in time or space, over all windows of an item) are pooled."""

    name: str
    dimension: int  # of the network's vectors
    pooling: Pooling = "none"  # none: one position per window; first: the first position, such as a class token
    axis: int = -1  # the axis of the dimension; -1 is the last one

    def __post_init__(self) -> None:
        require(1 <= self.dimension <= 65_536, f"dimension is {self.dimension}; use 1 to 65,536.")
        require(-1 <= self.axis <= 5, f"axis is {self.axis}; use 1 to 5, or -1 for the last one.")
        require(self.axis != 0, "axis is 0, which is the batch axis; use 1 to 5, or -1 for the last one.")

    @property
    def width(self) -> int:
        """The number of features of an item: twice the dimension if both its mean and its maximum are used."""
        return self.dimension * (2 if self.pooling == "mean+max" else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDescription:
    """The content of encoder.json."""

    name: str
    kind: MediaKind
    license: str
    input: AudioInput | PictureInput | TableInput
    output: Output
    title: str = ""
    source: str = ""  # where the weights come from, for display

    @property
    def shown(self) -> str:
        """The name for display."""
        return self.title or self.name

    @property
    def may_be_passed_on(self) -> bool:
        """Whether an export may contain the encoder itself."""
        return self.license in FREE_LICENSES


def check_name(name: str) -> str:
    """A valid name of an encoder and of its folder; raises InvalidInput for any other."""
    require(
        bool(NAME.fullmatch(name)) and name not in RESERVED,
        f"{name!r} cannot be the name of an encoder; use 1 to 64 of a-z, 0-9, '.', '_' and '-', but not auto or none.",
    )
    return name


def parse_description(text: bytes | str) -> EncoderDescription:
    """The description in the text of an encoder.json. Raises InvalidInput with the first problem."""
    require(len(text) <= MAX_JSON_BYTES, f"encoder.json has {len(text):,} bytes; the limit is {MAX_JSON_BYTES:,}.")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(f"encoder.json is not JSON ({problem}).") from problem
    try:
        return _description(values)
    except InvalidInput as problem:
        raise InvalidInput(f"encoder.json cannot be used: {problem}") from None


def _description(values: Any) -> EncoderDescription:
    require(isinstance(values, dict), 'it is not an object, such as {"format": 1, "name": "yamnet", ...}.')
    found = values.get("format")
    require(found == FORMAT, f"format is {found!r}; this version reads format {FORMAT}.")
    values = {name: value for name, value in values.items() if name != "format"}
    kind = values.get("kind")
    require(kind in ("audio", "image"), f'kind is {kind!r}; use "audio" or "image".')
    for part in ("input", "output"):
        require(isinstance(values.get(part), dict), f"{part} is missing, or not an object.")
    of_kind: type[Any] = AudioInput if kind == "audio" else PictureInput
    input_class = TableInput if "table" in values["input"] else of_kind
    values["input"] = _fields(input_class, values["input"], "input.")
    values["output"] = _fields(Output, values["output"], "output.")
    description: EncoderDescription = _fields(EncoderDescription, values, "")
    check_name(description.name)
    require(bool(description.license.strip()), "license is empty; name the license of the weights.")
    return description


def _fields(cls: type[Any], values: dict[str, Any], prefix: str) -> Any:
    known, hints = {field.name: field for field in dataclasses.fields(cls)}, get_type_hints(cls)
    unknown = sorted(set(values) - set(known))
    require(not unknown, f"{prefix}{unknown[0] if unknown else ''} is not a field; there are {', '.join(known)}.")
    required = [name for name, field in known.items() if field.default is dataclasses.MISSING]
    missing = [name for name in required if name not in values]
    require(not missing, f"{', '.join(prefix + name for name in missing)} is missing.")
    return cls(**{name: _value(hints[name], value, prefix + name) for name, value in values.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    """The value of one field. A float may be written as an integer, and a tuple is a list in JSON."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        require(value in choices, f"{where} is {value!r}; choose one of {', '.join(choices)}.")
        return value
    if get_origin(hint) is tuple:
        number = get_args(hint)[0]
        require(isinstance(value, list), f"{where} is {value!r}; it must be a list of numbers.")
        return tuple(_value(number, one, where) for one in value)
    if hint in _WORDS:
        fits = isinstance(value, (int, float) if hint is float else hint) and not isinstance(value, bool)
        require(fits, f"{where} is {value!r}; it must be {_WORDS[hint]}.")
        return hint(value)
    return value  # a nested part that is already parsed


_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "a text"}


def to_json(description: EncoderDescription) -> bytes:
    """The text of an encoder.json: fields in their order, including defaults; the same on every machine."""
    values = {"format": FORMAT, **dataclasses.asdict(description)}
    return (json.dumps(values, indent=2) + "\n").encode()
