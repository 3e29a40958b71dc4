"""What stages hand to each other through the engine: small JSON that names artifacts.

A parcel is a dict. Arrays, models and picks are files in the artifact folder; a parcel holds their names, so the next
stage may run on another machine.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from core.config import KernelConfig
from core.kernels.networks import by_name
from core.kernels.nystrom import KernelFeatures, Nystrom
from core.rounds.context import Landmarks
from core.similarity.graph import SimilarityGraph
from core.types import PickReason, PoolSnapshot, RowCache, Selection
from storage.rounds.artifacts import ArtifactFolder, ArtifactRef
from storage.rounds.log import finite

Parcel = dict[str, Any]


def to_dict(ref: ArtifactRef) -> Parcel:
    return dataclasses.asdict(ref) | {"shape": list(ref.shape)}


def to_ref(parcel: Mapping[str, Any]) -> ArtifactRef:
    return ArtifactRef(
        parcel["sha256"], parcel["suffix"], int(parcel["n_bytes"]), tuple(parcel["shape"]), parcel["dtype"]
    )


def put_array(folder: ArtifactFolder, array: NDArray[Any]) -> Parcel:
    return to_dict(folder.put_array(array))


def open_array(folder: ArtifactFolder, parcel: Mapping[str, Any]) -> NDArray[Any]:
    """Memory-mapped; what is written into it stays in memory (torch wants arrays it could write to)."""
    ref = to_ref(parcel)
    if 0 in ref.shape:
        return folder.open_array(ref)
    return np.asarray(np.load(folder.path(ref), mmap_mode="c", allow_pickle=False))


def put_json(folder: ArtifactFolder, value: Any) -> Parcel:
    return to_dict(folder.put_bytes(json.dumps(finite(value)[0], sort_keys=True).encode(), ".json"))


def open_json(folder: ArtifactFolder, parcel: Mapping[str, Any]) -> Any:
    return json.loads(folder.path(to_ref(parcel)).read_bytes())


def put_snapshot(folder: ArtifactFolder, snapshot: PoolSnapshot) -> Parcel:
    """One .npz of plain arrays; hashes as bytes (n, 32)."""
    about = {"kind": snapshot.kind, "class_names": snapshot.class_names, "label_sequence": snapshot.label_sequence}
    hashes = np.frombuffer(bytes.fromhex("".join(snapshot.hashes)), np.uint8).reshape(len(snapshot.hashes), 32)
    buffer = io.BytesIO()
    np.savez(
        buffer,
        about=np.frombuffer(json.dumps(about).encode(), np.uint8),
        hashes=hashes,
        item_ids=snapshot.item_ids,
        labels=snapshot.labels,
        held_out=snapshot.held_out,
        held_out_labels=snapshot.held_out_labels,
        eligible=snapshot.eligible,
    )
    return to_dict(folder.put_bytes(buffer.getvalue(), ".npz"))


def open_snapshot(folder: ArtifactFolder, parcel: Mapping[str, Any]) -> PoolSnapshot:
    with np.load(folder.path(to_ref(parcel)), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(arrays.pop("about").tobytes())
    hashes = arrays.pop("hashes")
    return PoolSnapshot(
        kind=about["kind"],
        class_names=tuple(about["class_names"]),
        label_sequence=about["label_sequence"],
        hashes=tuple(row.tobytes().hex() for row in hashes),
        **arrays,
    )


def put_selection(folder: ArtifactFolder, selection: Selection) -> Parcel:
    return put_json(folder, dataclasses.asdict(selection))


def open_selection(folder: ArtifactFolder, parcel: Mapping[str, Any]) -> Selection:
    value = open_json(folder, parcel)
    return Selection(
        item_ids=np.asarray(value["item_ids"], np.int64),
        scores=np.asarray(value["scores"], np.float32),
        strategy=value["strategy"],
        reasons=tuple(PickReason(**reason) for reason in value["reasons"]),
        notes=tuple(value["notes"]),
    )


def put_similarity_graph(folder: ArtifactFolder, likeness: SimilarityGraph | None) -> Parcel | None:
    """One .npz of plain arrays; None where nothing is known."""
    if likeness is None:
        return None
    buffer = io.BytesIO()
    np.savez(
        buffer,
        rows=likeness.rows,
        neighbors=likeness.neighbors.astype(np.int32),
        distances=likeness.distances,
        typical=np.float64(likeness.typical),
    )
    return to_dict(folder.put_bytes(buffer.getvalue(), ".npz"))


def open_similarity_graph(folder: ArtifactFolder, parcel: Mapping[str, Any] | None) -> SimilarityGraph | None:
    if parcel is None:
        return None
    with np.load(folder.path(to_ref(parcel)), allow_pickle=False) as file:
        return SimilarityGraph(
            rows=file["rows"],
            neighbors=file["neighbors"].astype(np.int64),
            distances=file["distances"],
            typical=float(file["typical"]),
        )


def put_kernel(folder: ArtifactFolder, kernel: KernelFeatures, landmarks: Landmarks) -> Parcel:
    """The fitted feature map: one .npz, so that every worker computes features with the same one."""
    about = {"names": landmarks.names, "pool_size": landmarks.pool_size, "key": landmarks.key, "cache_key": kernel.key}
    buffer = io.BytesIO()
    np.savez(
        buffer,
        about=np.frombuffer(json.dumps(about).encode(), np.uint8),
        landmarks=kernel.nystrom.landmarks,
        root=kernel.nystrom.root,
        spectrum=kernel.nystrom.spectrum,
    )
    return to_dict(folder.put_bytes(buffer.getvalue(), ".npz"))


def open_kernel(
    folder: ArtifactFolder, parcel: Mapping[str, Any], config: KernelConfig, cache: RowCache, device: torch.device
) -> KernelFeatures:
    with np.load(folder.path(to_ref(parcel)), allow_pickle=False) as file:
        about = json.loads(file["about"].tobytes())
        network = by_name(config.network, block_size=config.block_size)
        nystrom = Nystrom(network, file["landmarks"], file["root"], file["spectrum"], config.tolerance, device)
    return KernelFeatures(nystrom, tuple(about["names"]), cache, about["cache_key"])


def open_landmarks(folder: ArtifactFolder, ref: ArtifactRef) -> Landmarks:
    with np.load(folder.path(ref), allow_pickle=False) as file:
        about = json.loads(file["about"].tobytes())
    return Landmarks(names=tuple(about["names"]), pool_size=about["pool_size"], key=about["key"])
