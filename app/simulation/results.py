"""The question of a simulation, and `results.json` with every record so far.

The file is replaced atomically under a lock, and records that other processes wrote are kept, so several processes or
partial runs may write into one folder. This module does not load torch, because pages import it.

Versions: in version 2 the accuracy is inductive. Files without a version have an earlier measure (test items were in
the similarity graph, and their labels determined the temperature). They can be read, but no record is added to them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from core.atomic_files import write_file
from core.config import RoundConfig, from_dict, from_stored, to_json
from core.errors import Conflict, InvalidInput
from core.rounds.simulation_plan import EARLIER, INDUCTIVE, Plan, RoundRecord
from storage.system.file_lock import file_lock

VERSION = 2
Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a simulation compares: the data, strategies, seeds, plan and settings."""

    data: str = ""  # a folder, zip or manifest; empty with `project`
    project: int | None = None  # a project with hidden labels
    strategies: tuple[str, ...]
    seeds: tuple[int, ...]
    plan: Plan = field(default_factory=Plan)
    config: RoundConfig = field(default_factory=RoundConfig)

    def same_as(self, stored: Mapping[str, Any]) -> bool:
        """Whether a stored question has the same data, plan and settings. Strategies, seeds and the number of rounds
        may differ."""
        mine = self.to_dict()
        theirs = {
            **stored,
            "plan": {**stored["plan"], "rounds": self.plan.rounds},
            "config": json.loads(to_json(from_stored(RoundConfig, dict(stored["config"])))),  # names of older versions
        }
        return all(theirs.get(name) == mine[name] for name in ("data", "project", "plan", "config"))

    def to_dict(self) -> dict[str, Any]:
        """The question as JSON values."""
        return {
            "data": self.data,
            "project": self.project,
            "strategies": list(self.strategies),
            "seeds": list(self.seeds),
            "plan": dataclasses.asdict(self.plan),
            "config": json.loads(to_json(self.config)),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Question:
        """The inverse of `to_dict`. Settings of older versions are translated."""
        return cls(
            data=values["data"],
            project=values.get("project"),
            strategies=tuple(values["strategies"]),
            seeds=tuple(values["seeds"]),
            plan=from_dict(Plan, dict(values["plan"])),
            config=from_stored(RoundConfig, dict(values["config"])),
        )

    @property
    def trials(self) -> list[tuple[str, int]]:
        """All pairs (strategy, seed), sorted by seed."""
        return [(strategy, seed) for seed in self.seeds for strategy in self.strategies]

    @property
    def n_records(self) -> int:
        return len(self.trials) * (self.plan.rounds + 1)

    def of_mine(self, records: Iterable[RoundRecord]) -> list[RoundRecord]:
        """The records that belong to this question."""
        mine = set(self.trials)
        return [one for one in records if (one.strategy, one.seed) in mine and one.round <= self.plan.rounds]


class ResultsFile:
    """`results.json` in a folder: the question, every record so far, and facts about the run (`about`)."""

    def __init__(self, folder: Path, question: Question) -> None:
        self.path, self.question = folder / "results.json", question
        self.about: dict[str, Any] = {}
        self.records: list[RoundRecord] = []
        self._read()

    def of_trial(self, strategy: str, seed: int) -> list[RoundRecord]:
        """The valid records of a trial. The last round of a shorter run has no picks, so a longer run repeats it."""
        found = sorted((one for one in self.records if (one.strategy, one.seed) == (strategy, seed)), key=_key)
        last = self.question.plan.rounds
        return list(takewhile(lambda one: one.round == last or (one.picks and one.round < last), found))

    def add(self, record: RoundRecord) -> None:
        self.write([record])

    def write(self, fresh: Sequence[RoundRecord] = (), about: Mapping[str, Any] | None = None) -> None:
        """Add records and facts to the current content of the file. A new record replaces one with the same key."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(self.path.with_suffix(".lock"), f"{self.path}"):
            stored = self._read()
            merged = {_key(one): one for one in [*self.records, *fresh]}
            self.records = [merged[key] for key in sorted(merged)]
            self.about |= dict(about or {})
            question = self.question.to_dict()
            for name in ("strategies", "seeds"):
                question[name] = list(dict.fromkeys([*stored.get(name, ()), *question[name]]))
            longest = max(self.question.plan.rounds, stored.get("plan", {}).get("rounds", 0))
            question["plan"] = {**question["plan"], "rounds": longest}
            body = {
                "version": VERSION,
                "question": question,
                **self.about,
                "records": [dataclasses.asdict(one) for one in self.records],
            }
            write_file(self.path, json.dumps(body, indent=1))

    def _read(self) -> dict[str, Any]:
        """Read the records on disk. Returns the stored question."""
        if not self.path.exists():
            return {}
        stored = read_results(self.path)
        if not self.question.same_as(stored["question"]):
            raise Conflict(f"{self.path} contains results for other settings. Choose another folder with --out.")
        refuse_earlier(f"{self.path}", map(record_from, stored["records"]), "Choose another folder with --out.")
        merged = {_key(one): one for one in [*self.records, *map(record_from, stored["records"])]}
        self.records = [merged[key] for key in sorted(merged)]
        self.about = about_of(stored)
        return dict(stored["question"])


def _key(record: RoundRecord) -> Key:
    return record.strategy, record.seed, record.round


def read_results(path: Path) -> dict[str, Any]:
    """Read the document at `path`. Raises `InvalidInput` if it is not a results file."""
    try:
        found = json.loads(path.read_text())
        found["question"]["plan"], found["records"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} contains no simulation results ({error}). Move it, then start again.") from None
    return dict(found)


def about_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a document other than its version, question and records."""
    return {name: value for name, value in stored.items() if name not in ("version", "question", "records")}


def record_from(values: Mapping[str, Any]) -> RoundRecord:
    """A record from its stored values. A record without a measure comes from an earlier version."""
    made = {"measure": EARLIER} | dict(values)
    return RoundRecord(**(made | {"picks": tuple(values["picks"]), "notes": tuple(values["notes"])}))


def refuse_earlier(name: str, records: Iterable[RoundRecord], then: str) -> None:
    """Raise `Conflict` if a record has the earlier measure, which must not be mixed with the inductive one."""
    n_earlier = sum(one.measure != INDUCTIVE for one in records)
    if n_earlier:
        raise Conflict(
            f"{name} has {n_earlier} records of an earlier version, whose accuracy was measured with the test items "
            f"in the similarity graph. They cannot be combined with the present measure. {then}"
        )


def merge(folders: Sequence[Path], target: Path) -> list[RoundRecord]:
    """Merge the records of partial runs in separate folders into one `results.json` in `target`."""
    for folder in folders:
        stored = read_results(folder / "results.json")
        results = ResultsFile(target, Question.from_dict(stored["question"]))
        records = [record_from(values) for values in stored["records"]]
        refuse_earlier(f"{folder / 'results.json'}", records, "Run this part again.")
        results.write(records, about_of(stored))
    return results.records if folders else []
