"""The definition of a stage of a round, and how stages are run.

A stage is a function from the outputs of earlier stages to one frozen dataclass. Everything that runs a round
(`core.rounds.pipeline.run_round`, simulations, the worker's durable steps) runs the records of `core.rounds.stages`
through `run_stage`; they differ only in where outputs are kept (`Outputs`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from core.errors import InvalidInput
from core.rounds.approach.deciding import apply_decision
from core.rounds.context import StageContext
from core.rounds.outputs import Approach

Output = TypeVar("Output")
Common = TypeVar("Common")
Block = TypeVar("Block")


def always_read(context: StageContext, *needs: Any) -> bool:
    """The condition of a stage whose output is read in every round."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(Generic[Common, Block, Output]):
    """How several workers share a stage: the common input, the rows of each unit, and how units are joined.

    `run_unit` for all rows followed by `join` must give the same output as the stage's `run`.
    """

    unit_rows: int  # rows of one unit
    n_rows: Callable[..., int]  # (context, *needs) -> rows to divide
    common: type[Common]  # computed once and given to every unit
    prepare: Callable[..., Common]  # (context, *needs) -> common
    block: type[Block]  # the output of a unit
    run_unit: Callable[..., Block]  # (context, common, start, stop, *needs) -> block
    join: Callable[..., Output]  # (context, common, blocks, *needs) -> the stage's output


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Generic[Output]):
    """One step of a round. Annotate each record with its output, `TRAIN: Stage[TrainingResult]`: the type checker then
    refuses a function that returns anything else."""

    name: str  # stable, stored with rounds
    title: str  # for display
    needs: tuple[type, ...]  # outputs of earlier stages that `run` reads, in the order of its parameters
    gives: type[Output]  # a frozen dataclass
    run: Callable[..., Output]  # (context, *needs) -> output; None in place of an output that was not computed
    is_read: Callable[..., bool] = always_read  # (context, *needs) -> whether a later stage reads the output
    split: Split[Any, Any, Output] | None = None  # None: one worker runs the whole stage

    def __post_init__(self) -> None:
        if not dataclasses.is_dataclass(self.gives):
            raise InvalidInput(f"The stage {self.name} gives {self.gives.__name__}, which is not a dataclass.")


class Outputs:
    """The outputs of the stages that have run, by type. An output that no stage reads is absent."""

    def __init__(self) -> None:
        self._found: dict[type, Any] = {}

    def add(self, gives: type[Output], output: Output | None) -> None:
        """Add the output of a stage; None if the stage was not run."""
        self._found[gives] = output

    def has(self, gives: type) -> bool:
        """Whether the stage that gives this output has been run or skipped."""
        return gives in self._found

    def find(self, gives: type[Output]) -> Output | None:
        """The output, or None if the stage was skipped."""
        if not self.has(gives):
            raise InvalidInput(f"No stage before this one gives {gives.__name__}.")
        return cast("Output | None", self._found[gives])

    def get(self, gives: type[Output]) -> Output:
        """The output of a stage that always runs."""
        found = self.find(gives)
        if found is None:
            raise InvalidInput(f"{gives.__name__} was not computed in this round.")
        return found

    def take(self, needs: Sequence[type]) -> list[Any]:
        return [self.find(one) for one in needs]


def run_stage(stage: Stage[Output], context: StageContext, outputs: Outputs) -> Output | None:
    """The stage's output; None, without running the stage, if nothing in this round reads it."""
    needs = outputs.take(stage.needs)
    if not stage.is_read(context, *needs):
        return None
    found = stage.run(context, *needs)
    if not isinstance(found, stage.gives):
        raise InvalidInput(f"The stage {stage.name} gave {type(found).__name__}; it must give {stage.gives.__name__}.")
    return found


def run_stages(stages: Sequence[Stage[Any]], context: StageContext, outputs: Outputs) -> Iterator[Stage[Any]]:
    """Run the stages in order and add their outputs; yields each stage after it was run or skipped. A stage is not run
    if its output exists already, from an earlier round on the same items. The stages after "decide" run with the
    settings that it chose."""
    for stage in stages:
        if not outputs.has(stage.gives):
            if outputs.has(Approach):
                context = apply_decision(context, outputs.find(Approach))
            outputs.add(stage.gives, run_stage(stage, context, outputs))
            yield stage


def needed(stages: Sequence[Stage[Any]], *wanted: type, known: Outputs | None = None) -> tuple[Stage[Any], ...]:
    """The stages on which these outputs depend, in order, without those whose outputs are known."""
    open_needs, found = set(wanted), list[Stage[Any]]()
    for stage in reversed(stages):
        if stage.gives in open_needs and not (known is not None and known.has(stage.gives)):
            open_needs |= set(stage.needs)
            found.append(stage)
    return tuple(reversed(found))


def check_order(stages: Sequence[Stage[Any]]) -> None:
    """Refuse a list in which a stage needs an output that no earlier stage gives, or with a repeated name or output."""
    given: set[type] = set()
    names: set[str] = set()
    for stage in stages:
        missing = [need.__name__ for need in stage.needs if need not in given]
        if missing:
            raise InvalidInput(f"The stage {stage.name} needs {', '.join(missing)}, which no earlier stage gives.")
        if stage.name in names or stage.gives in given:
            raise InvalidInput(f"The stage {stage.name} or its output {stage.gives.__name__} is listed twice.")
        names.add(stage.name)
        given.add(stage.gives)
