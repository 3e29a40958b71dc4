"""The codec between the outputs of stages and the artifact folder.

`put_output` turns a frozen dataclass into a small JSON document. Arrays and the types of `FORMATS` become files in the
artifact folder, and the JSON contains references to them; scalars, tuples and nested dataclasses are part of the JSON.
`open_output` is its inverse. It uses the types of the fields, so a new output type needs no code here. The JSON passes
through the engine, and the next stage may run on another machine.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import tempfile
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from app.rounds.artifact_refs import to_dict, to_ref
from app.rounds.shared_inputs import open_inputs, put_inputs
from core.config import RoundConfig, from_dict
from core.kernels.networks import by_name
from core.kernels.nystrom import KernelFeatures, Nystrom
from core.labels.earlier_predictions import EarlierRound
from core.learning.training import TrainedModel, load_model, save_model
from core.media.inputs import Inputs
from core.rounds.context import Landmarks, StageContext
from core.rounds.encoding import cached_pool, encode_items
from core.rounds.outputs import EncodedFeatures, FittedKernel
from core.rounds.stages import prepare_inputs
from core.similarity.graph import SimilarityGraph
from core.types import PickReason, PoolSnapshot, Selection
from storage.rounds.artifacts import ArtifactFolder, ArtifactRef, ArtifactUnreadable
from storage.rounds.log import finite

Stored = dict[str, Any]  # JSON
Output = TypeVar("Output")
SCALARS = (str, int, float, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where outputs are stored, and the context in which they are opened."""

    folder: ArtifactFolder
    context: Callable[[], StageContext]
    shares_inputs: bool = False  # several machines work on the round, so inputs are stored instead of prepared again


@dataclass(frozen=True, slots=True)
class Format:
    """How values of one type are stored."""

    put: Callable[[Place, Any], Stored]
    open: Callable[[Place, Stored], Any]


def put_output(place: Place, output: Any) -> Stored:
    """Store a frozen dataclass. Returns JSON that references its files. Non-finite numbers are stored as None."""
    stored: Stored = _put(place, type(output), output)
    return stored


def open_output(place: Place, gives: type[Output], stored: Mapping[str, Any]) -> Output:
    """Read a dataclass that `put_output` stored. Arrays are memory-mapped."""
    try:
        found: Output = _open(place, gives, stored)
    except ArtifactUnreadable as problem:
        raise ArtifactUnreadable(
            f"A file that an earlier stage of this round wrote cannot be read. {problem} Start a new round, which "
            "writes the file again."
        ) from problem
    return found


def _put(place: Place, hint: Any, value: Any) -> Any:
    hint = _required(hint)
    if value is None:
        return None
    if hint in FORMATS:
        return FORMATS[hint].put(place, value)
    if get_origin(hint) is np.ndarray:
        return put_array(place.folder, value)
    if get_origin(hint) is tuple:
        return [_put(place, get_args(hint)[0], one) for one in value]
    if dataclasses.is_dataclass(hint):
        return {name: _put(place, kind, getattr(value, name)) for name, kind in get_type_hints(hint).items()}
    if hint not in SCALARS:
        raise TypeError(f"A stage output cannot hold {hint}: give it a format in app.rounds.stage_outputs.")
    return None if isinstance(value, float) and not math.isfinite(value) else hint(value)


def _open(place: Place, hint: Any, stored: Any) -> Any:
    hint = _required(hint)
    if stored is None:
        return None
    if hint in FORMATS:
        return FORMATS[hint].open(place, stored)
    if get_origin(hint) is np.ndarray:
        return open_array(place.folder, stored)
    if get_origin(hint) is tuple:
        return tuple(_open(place, get_args(hint)[0], one) for one in stored)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        fields = get_type_hints(hint)  # an output of an earlier version may lack fields that have a default
        return hint(**{name: _open(place, kind, stored[name]) for name, kind in fields.items() if name in stored})
    return stored


def _required(hint: Any) -> Any:
    """X for `X | None`, otherwise the hint itself."""
    if get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    return next(one for one in get_args(hint) if one is not type(None))


def put_array(folder: ArtifactFolder, array: NDArray[Any]) -> Stored:
    return to_dict(folder.put_array(np.asarray(array)))


def open_array(folder: ArtifactFolder, stored: Mapping[str, Any]) -> NDArray[Any]:
    """Map a stored array copy-on-write, because torch requires writable arrays."""
    ref = to_ref(stored)
    if 0 in ref.shape:
        return folder.open_array(ref)
    return np.asarray(np.load(folder.path(ref), mmap_mode="c", allow_pickle=False))


def put_snapshot(place: Place, snapshot: PoolSnapshot) -> Stored:
    """Store a snapshot as one .npz file without object arrays. Hashes are stored as bytes (n, 32)."""
    about = {"kind": snapshot.kind, "class_names": snapshot.class_names, "label_sequence": snapshot.label_sequence}
    hashes = np.frombuffer(bytes.fromhex("".join(snapshot.hashes)), np.uint8).reshape(len(snapshot.hashes), 32)
    names = ["item_ids", "labels", "held_out", "held_out_labels", "eligible"]
    names += [name for name in ("groups", "windows", "confirmed") if getattr(snapshot, name) is not None]
    return _put_npz(place, about, hashes=hashes, **{name: getattr(snapshot, name) for name in names})


def open_snapshot(place: Place, stored: Stored) -> PoolSnapshot:
    """The snapshot that `put_snapshot` stored."""
    about, arrays = _open_npz(place.folder, to_ref(stored))
    hashes = arrays.pop("hashes")
    return PoolSnapshot(
        kind=about["kind"],
        class_names=tuple(about["class_names"]),
        label_sequence=about["label_sequence"],
        hashes=tuple(row.tobytes().hex() for row in hashes),
        **arrays,
    )


def open_earlier_round(
    folder: ArtifactFolder, snapshot: ArtifactRef, load_probabilities: Callable[[], NDArray[np.floating] | None]
) -> EarlierRound:
    """The labels of a stored snapshot with the predictions of its round. Nothing else of the snapshot is read."""
    with np.load(folder.path(snapshot), allow_pickle=False) as file:
        about = json.loads(file["about"].tobytes())
        return EarlierRound(
            class_names=tuple(about["class_names"]),
            item_ids=file["item_ids"],
            labels=file["labels"],
            load_probabilities=load_probabilities,
        )


def put_selection(place: Place, selection: Selection) -> Stored:
    """Store a selection as one .json file: the picks in order, with their reasons."""
    text = json.dumps(finite(dataclasses.asdict(selection))[0], sort_keys=True)
    return to_dict(place.folder.put_bytes(text.encode(), ".json"))


def open_selection(place: Place, stored: Stored) -> Selection:
    """The selection that `put_selection` stored."""
    value = json.loads(place.folder.path(to_ref(stored)).read_bytes())
    return Selection(
        item_ids=np.asarray(value["item_ids"], np.int64),
        scores=np.asarray(value["scores"], np.float32),
        strategy=value["strategy"],
        reasons=tuple(PickReason(**reason) for reason in value["reasons"]),
        notes=tuple(value["notes"]),
    )


def put_similarity_graph(place: Place, graph: SimilarityGraph) -> Stored:
    """Store a similarity graph as one .npz file without object arrays."""
    return _put_npz(
        place,
        None,
        rows=graph.rows,
        neighbors=graph.neighbors.astype(np.int32),
        distances=graph.distances,
        typical=np.float64(graph.typical),
    )


def open_similarity_graph(place: Place, stored: Stored) -> SimilarityGraph:
    """The similarity graph that `put_similarity_graph` stored."""
    _, arrays = _open_npz(place.folder, to_ref(stored))
    return SimilarityGraph(
        rows=arrays["rows"],
        neighbors=arrays["neighbors"].astype(np.int64),
        distances=arrays["distances"],
        typical=float(arrays["typical"]),
    )


def put_kernel(place: Place, fitted: FittedKernel) -> Stored:
    """Store the fitted feature map as one .npz file, so that all workers compute features with the same map."""
    landmarks, nystrom = fitted.landmarks, fitted.kernel.nystrom
    about = dataclasses.asdict(landmarks) | {"cache_key": fitted.kernel.key}
    arrays = {"landmarks": nystrom.landmarks, "root": nystrom.root, "spectrum": nystrom.spectrum}
    return _put_npz(place, about, **arrays)


def open_kernel(place: Place, stored: Stored) -> FittedKernel:
    """The feature map that `put_kernel` stored."""
    context = place.context()
    config = context.config.kernel
    about, arrays = _open_npz(place.folder, to_ref(stored))
    network = by_name(config.network, block_size=config.block_size)
    root, spectrum = arrays["root"], arrays["spectrum"]
    nystrom = Nystrom(network, arrays["landmarks"], root, spectrum, config.tolerance, context.runtime.device)
    kernel = KernelFeatures(nystrom, tuple(about["names"]), context.cache, about["cache_key"])
    return FittedKernel(kernel=kernel, landmarks=_landmarks(about))


def open_landmarks(path: Path) -> Landmarks:
    """The landmarks of a stored kernel. Its arrays are not read."""
    with np.load(path, allow_pickle=False) as file:
        return _landmarks(json.loads(file["about"].tobytes()))


def _landmarks(about: Mapping[str, Any]) -> Landmarks:
    return Landmarks(names=tuple(about["names"]), pool_size=about["pool_size"], key=about["key"])


def put_model(place: Place, model: TrainedModel) -> Stored:
    with tempfile.TemporaryDirectory(prefix="winnow-") as folder:
        path = Path(folder) / "model.safetensors"
        save_model(model, path)
        return to_dict(place.folder.put_file(path))


def open_model(place: Place, stored: Stored) -> TrainedModel:
    return load_model(place.folder.path(to_ref(stored)), place.context().runtime)


def _put_inputs(place: Place, inputs: Inputs) -> Stored:
    """Stored only where several machines share the round; elsewhere the row cache has them."""
    return put_inputs(place.folder, inputs, place.context().report) if place.shares_inputs else {}


def _open_inputs(place: Place, stored: Stored) -> Inputs:
    context = place.context()
    if not stored:
        return prepare_inputs(context)
    opened = open_inputs(place.folder, stored, context.snapshot.kind, context.config.media, context.cache)
    return dataclasses.replace(opened, augmentation=context.config.augmentation)


def _put_encoded(place: Place, encoded: EncodedFeatures) -> Stored:
    """Stored only where several machines share the round; elsewhere the row cache has them."""
    if not place.shares_inputs:
        return {}
    rows = encoded.pool.rows
    features = put_array(place.folder, rows.take(np.arange(len(rows))))
    return {"features": features, "notes": list(encoded.pool.notes)}


def _open_encoded(place: Place, stored: Stored) -> EncodedFeatures | None:
    """The encoded features. None if the stage "decide" chose no encoder and compares none."""
    context = place.context()
    if context.encoding is None:
        return None
    if not stored:
        return encode_items(context)
    features = open_array(place.folder, stored["features"])
    return EncodedFeatures(pool=cached_pool(context, features, tuple(stored["notes"])))


def _put_npz(place: Place, about: Mapping[str, Any] | None, **arrays: Any) -> Stored:
    if about is not None:
        arrays = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return to_dict(place.folder.put_bytes(buffer.getvalue(), ".npz"))


def _open_npz(folder: ArtifactFolder, ref: ArtifactRef) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    with np.load(folder.path(ref), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    about = arrays.pop("about", None)
    return json.loads(about.tobytes()) if about is not None else {}, arrays


FORMATS: dict[Any, Format] = {
    RoundConfig: Format(
        lambda place, config: dataclasses.asdict(config), lambda place, stored: from_dict(RoundConfig, stored)
    ),
    PoolSnapshot: Format(put_snapshot, open_snapshot),
    EncodedFeatures: Format(_put_encoded, _open_encoded),
    Inputs: Format(_put_inputs, _open_inputs),
    TrainedModel: Format(put_model, open_model),
    SimilarityGraph: Format(put_similarity_graph, open_similarity_graph),
    FittedKernel: Format(put_kernel, open_kernel),
    Selection: Format(put_selection, open_selection),
}
