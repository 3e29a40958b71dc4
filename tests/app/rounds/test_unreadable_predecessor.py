"""A round whose predecessor cannot be read starts without it, finishes and says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from app.rounds.stored_round import find_artifact
from storage.database.store import Store
from storage.rounds.artifacts import ArtifactRef
from storage.rounds.log import RoundLog, RoundRow
from tests.app.real_rounds import copied_store
from tests.app.rounds import test_similarity_rounds as tones

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def made_round(tmp_path_factory) -> tuple[Path, int, RoundRow]:
    """A store with a project and its first round, run once."""
    template = tmp_path_factory.mktemp("first") / "home"
    with Store.open(home=template) as store:
        project_id = tones.make_project(store)
        _, first = finished_round((store, project_id))
    return template, project_id, first


@pytest.fixture
def project(made_round, tmp_path) -> Iterator[tuple[Store, int]]:
    with copied_store(made_round[0], tmp_path / "home") as store:
        yield store, made_round[1]


@pytest.fixture
def first(made_round) -> RoundRow:
    return made_round[2]


def finished_round(project: tuple[Store, int]) -> tuple[Store, RoundRow]:
    """A round that trains from the previous model if there is one and reads kernel features and the last map."""
    config = tones.config_of(proxy="kernel")
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, warm_steps=2))
    store, row = tones.ask(project, config)
    tones.through(store, row, tones.STEPS)
    return store, RoundLog(store, row.project_id).get(row.id)


def artifact(store: Store, row: RoundRow, kind: str) -> ArtifactRef:
    found = find_artifact(RoundLog(store, row.project_id), row.id, kind)
    assert found is not None
    return found


def flip_a_byte(store: Store, ref: ArtifactRef) -> None:
    path = store.artifacts.path(ref)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("kind", "part"), [("model", "model"), ("map", "map"), ("kernel", "kernel"), ("probabilities", "predictions")]
)
@pytest.mark.parametrize("fault", ["flipped", "missing"])
def test_a_round_starts_without_what_it_cannot_read_and_names_the_round(project, first, kind, part, fault):
    store, _ = project
    ref = artifact(store, first, kind)
    if fault == "flipped":
        flip_a_byte(store, ref)
    else:
        store.artifacts.path(ref).unlink()
    _, second = finished_round(project)
    assert second.status == "finished"
    [note] = [note for note in second.notes if "started without" in note]
    assert note.startswith(f"This round started without the {part} of the previous round.")
    assert f"of round {first.number} cannot be read" in note


def test_a_model_of_another_program_is_refused_and_the_round_trains_from_scratch(project, first, tmp_path, monkeypatch):
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weights": np.zeros(3, np.float32)}, foreign, {"winnow": "{}"})
    own = RoundLog.file
    replaced = {(first.id, "model"): foreign}
    monkeypatch.setattr(RoundLog, "file", lambda log, at, kind: replaced.get((at, kind)) or own(log, at, kind))
    _, second = finished_round(project)
    assert second.status == "finished" and second.metrics["has_model"]
    assert any("foreign.safetensors" in note for note in second.notes)
