"""Tensors with a JSON description in one safetensors file: no pickle, and replaced atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from core.atomic_files import replace_durably, temporary_path
from core.errors import InvalidInput, NotFound

DESCRIPTION = "winnow"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Atomic and durable: after a crash, `path` has the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    on_host = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with temporary_path(path) as temporary:
        save_file(on_host, temporary, metadata={DESCRIPTION: json.dumps(dict(description), sort_keys=True)})
        replace_durably(temporary, path)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, on the host, and their description."""
    if not path.exists():
        raise NotFound(f"There is no file {path}.")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(metadata[DESCRIPTION])
    except (SafetensorError, KeyError, json.JSONDecodeError, OSError) as error:
        raise InvalidInput(f"{path.name} is damaged or was not written by Winnow: {error}") from error


def load_into(module: torch.nn.Module, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
    """Copies the tensors named `prefix`... into the module's parameters and buffers, on their device."""
    own = module.state_dict()
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[prefix + name].to(tensor.device))


def named_tensors(module: torch.nn.Module, prefix: str = "") -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in module.state_dict().items()}
