"""A trained model, which predicts and from which a later round may start. On disk: one safetensors file with JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from core.config import TrainingConfig, from_dict
from core.errors import InvalidInput
from core.learning.networks.layers import Network, to_device
from core.learning.networks.registry import NetworkShape, new_network
from core.learning.tensor_files import load_into, named_tensors, read_tensors, write_tensors
from core.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """The averaged network in evaluation mode. Probabilities are softmax(logits / temperature)."""

    network: Network
    shape: NetworkShape
    config: TrainingConfig
    temperature: float = 1.0
    calibration: str = ""  # where the temperature comes from (`core.learning.calibration`); empty in earlier models
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the last epoch
    history: tuple[Mapping[str, float], ...] = ()  # one entry per epoch
    notes: tuple[str, ...] = ()


def save_model(model: TrainedModel, path: Path) -> None:
    """Write the model to a safetensors file, in one step."""
    description = {
        "shape": dataclasses.asdict(model.shape),
        "config": dataclasses.asdict(model.config),
        "temperature": model.temperature,
        "calibration": model.calibration,
        "metrics": dict(model.metrics),
        "history": [dict(entry) for entry in model.history],
        "notes": list(model.notes),
    }
    write_tensors(Path(path), named_tensors(model.network), description)


def load_model(path: Path, runtime: Runtime) -> TrainedModel:
    """The saved model, on the runtime's device. InvalidInput if the file does not contain a model of this version."""
    tensors, description = read_tensors(Path(path))
    try:
        shape = NetworkShape(**description["shape"])
        network = to_device(new_network(shape), runtime.device)
        load_into(network, tensors)
        return TrainedModel(
            network=network.eval(),
            shape=shape,
            config=from_dict(TrainingConfig, description["config"]),
            temperature=float(description["temperature"]),
            calibration=str(description.get("calibration", "")),
            metrics=description["metrics"],
            history=tuple(description["history"]),
            notes=tuple(description["notes"]),
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{Path(path).name} does not hold a model of this version: {error}") from error
