"""The codec: the output of a stage reaches the next one unchanged, through files and JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.rounds import finish, stored_round
from app.rounds.stage_outputs import FORMATS, Place, Stored, open_output, put_output
from core.config import RoundConfig
from core.rounds.context import StageContext
from core.rounds.outputs import Batch, PropagatedLabels
from core.rounds.stage import Stage, run_stage
from core.rounds.stages import STAGES
from core.types import PickReason, Selection
from storage.rounds.artifacts import ArtifactUnreadable
from tests.core.clusters import clusters, graph_of


def no_context() -> StageContext:
    raise AssertionError("these outputs need no context")


@pytest.fixture
def place(sqlite_store) -> Place:
    return Place(folder=sqlite_store.artifacts, context=no_context)


def there_and_back(place: Place, output: Any) -> Any:
    stored: Stored = json.loads(json.dumps(put_output(place, output)))
    return open_output(place, type(output), stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    names: tuple[str, ...]
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    counts: NDArray[np.int64]
    missing: NDArray[np.float32] | None
    inner: Inner
    several: tuple[Inner, ...]
    number: int
    is_known: bool
    text: str = ""


def test_arrays_scalars_and_nested_records_are_stored_without_specific_code(place):
    inner = Inner(names=("a", "b"), share=0.25)
    value = Everything(
        counts=np.arange(6).reshape(2, 3), missing=None, inner=inner, several=(inner, inner), number=7, is_known=True
    )
    back = there_and_back(place, value)
    np.testing.assert_array_equal(back.counts, value.counts)
    assert back.counts.dtype == np.int64
    assert dataclasses.replace(back, counts=value.counts) == value


def test_a_damaged_file_of_an_earlier_stage_is_named_with_what_to_do(place):
    stored = put_output(place, PropagatedLabels(probabilities=np.ones((4, 3), np.float32)))
    [path] = place.folder.folder.rglob("*.npy")
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(ArtifactUnreadable, match=r"an earlier stage of this round .* Start a new round"):
        open_output(place, PropagatedLabels, stored)


def test_empty_arrays_keep_their_shape(place):
    back = there_and_back(place, PropagatedLabels(probabilities=np.empty((0, 3), np.float32)))
    assert back.probabilities.shape == (0, 3) and back.graph is None


def test_a_type_without_a_format_is_refused_by_name(place):
    @dataclass(frozen=True)
    class Bad:
        anything: dict

    with pytest.raises(TypeError, match="cannot hold <class 'dict'>"):
        put_output(place, Bad({}))


def test_a_selection_keeps_order_scores_and_reasons(place):
    selection = Selection(
        item_ids=np.array([9, 3]),
        scores=np.array([0.1, 1 / 3], np.float32),
        strategy="bico",
        reasons=(PickReason(order=1, score=0.1, entropy=1 / 3), PickReason(order=2, score=0.2)),
        notes=("said",),
    )
    back = there_and_back(place, Batch(selection=selection, candidate_rows=np.arange(4), notes=("n",)))
    np.testing.assert_array_equal(back.selection.item_ids, selection.item_ids)
    np.testing.assert_array_equal(back.selection.scores, selection.scores)
    assert (back.selection.reasons, back.selection.notes, back.notes) == (selection.reasons, ("said",), ("n",))


def test_a_similarity_graph_survives_its_file(place):
    graph = graph_of(clusters()[0])
    back = there_and_back(place, PropagatedLabels(probabilities=np.ones((2, 1), np.float32), graph=graph)).graph
    for name in ("rows", "neighbors", "distances"):
        np.testing.assert_array_equal(getattr(back, name), getattr(graph, name))
    assert back.typical == graph.typical


def test_settings_survive(place):
    @dataclass(frozen=True)
    class Start:
        config: RoundConfig

    assert open_output(place, Start, put_output(place, Start(RoundConfig(seed=4)))).config == RoundConfig(seed=4)


def test_a_new_stage_is_stored_without_further_code(place):
    """A record, its function and its output type: the worker stores it and opens it again."""

    def count(context: StageContext) -> Inner:
        return Inner(names=("x",), share=0.5)

    stage: Stage[Inner] = Stage(name="count", title="Count", needs=(), gives=Inner, run=count)
    found = run_stage(stage, None, stored_round.Outputs())  # type: ignore[arg-type]
    assert there_and_back(place, found) == Inner(names=("x",), share=0.5)


def storable(hint: Any) -> bool:
    from app.rounds import stage_outputs

    hint = stage_outputs._required(hint)
    if hint in FORMATS or hint in stage_outputs.SCALARS or stage_outputs.get_origin(hint) is np.ndarray:
        return True
    if stage_outputs.get_origin(hint) is tuple:
        return storable(stage_outputs.get_args(hint)[0])
    return dataclasses.is_dataclass(hint) and all(storable(one) for one in stage_outputs.get_type_hints(hint).values())


def test_every_output_of_the_list_can_be_stored():
    for stage in STAGES:
        assert storable(stage.gives), stage.name
        if stage.split is not None:
            assert storable(stage.split.common) and storable(stage.split.block), stage.name


def test_every_artifact_of_a_round_comes_from_a_field_of_an_output():
    for kind, (gives, field) in (*finish.ARTIFACTS.items(), *finish.DELIVERED.items()):
        assert field in {one.name for one in dataclasses.fields(gives)}, kind


def test_step_results_survive_the_engine():
    result = stored_round.StepResult(output={"a": 1}, units=((0, 4), (4, 6)), common={}, seconds=1.5)
    assert stored_round.StepResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
