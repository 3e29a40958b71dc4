"""What an import would do, entry by entry, before anything is written.

Labels become classes under one of three rules (`classes`). Under each rule, labels that differ only in the encoding of
accents (NFC or NFD) are one class, which keeps the spelling that came first.
  ask    a class that the project does not have, or that differs from another only in case or spaces, is a problem;
         a project without classes accepts all of them
  add    every label is a class, exactly as written
  match  a label that equals a class up to case and spaces is that class; others are added
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from core.errors import InvalidInput, NotFound
from core.limits import Limits, length_problem, size_problem
from core.types import Progress, Report, ignore
from storage.database.store import Store
from storage.database.strings import composed, count
from storage.importing.reading import CLASS_FOLDERS, Findings, Question
from storage.importing.sources import Entry, GivenLabel, Source, type_of
from storage.importing.splits import HELD_OUT as HELD_OUT_NAMES
from storage.importing.splits import GivenSplit
from storage.importing.windows.lengths import cut_sentence, estimated_seconds, is_stated, size_of
from storage.importing.zip_reader import BadEntry
from storage.media.types import HEAD_BYTES, refusal
from storage.media.windows import SUGGEST_SECONDS, WindowOptions
from storage.projects import classes

ClassRule = Literal["ask", "add", "match"]
ValidationUse = Literal["hold-out", "pool"]
POOL = GivenSplit("train", "train")
LISTED = 200
PRECISION = 1_000_000  # units per second of the lengths from which windows are counted


@dataclass(frozen=True, slots=True)
class Verdict:
    """What will happen to one entry; an empty `problem` means that it will be read."""

    name: str
    row: int = 0
    label: str | None = None
    split: str = ""
    problem: str = ""
    about_class: bool = False  # the problem is the class, not the file
    seconds: float = 0.0  # of a sound
    rough: bool = False  # `seconds` is estimated from the size


@dataclass(slots=True)
class Preview:
    """Counts of all entries; the first verdicts of each kind in full."""

    description: str
    n_entries: int = 0
    n_problems: int = 0
    n_class_problems: int = 0
    n_test: int = 0
    n_validation: int = 0
    n_unlabeled: int = 0
    splits: Counter[str] = field(default_factory=Counter)  # entries by the split name of the source
    labels: Counter[str] = field(default_factory=Counter)
    class_of: dict[str, str] = field(default_factory=dict)  # label -> class, where their spelling differs
    new_classes: list[str] = field(default_factory=list)
    rows: list[Verdict] = field(default_factory=list)
    problems: list[Verdict] = field(default_factory=list)
    n_long: int = 0  # sounds for which windows are suggested
    longest_seconds: float = 0.0  # estimated
    n_recordings: int = 0  # sounds that are cut into windows
    n_windows: int = 0
    cut: str = ""  # one sentence on how recordings are cut; empty without windows
    found: Findings = field(default_factory=Findings)

    @property
    def n_held_out(self) -> int:
        return self.n_test + self.n_validation


def same_up_to_case_and_space(label: str) -> str:
    """The form in which labels are compared without regard to case and spaces."""
    return " ".join(unicodedata.normalize("NFKC", label).casefold().split())


class ClassRules:
    """Assigns a class to each label of a source, in order. The same order gives the same classes."""

    def __init__(self, known: dict[str, int], rule: ClassRule) -> None:
        self.rule = rule
        self.known = dict(known)
        self.asks_for_new = rule == "ask" and bool(known)
        self.new: list[str] = []
        self._by_form: dict[str, str] = {}
        self._composed: dict[str, str] = {}
        for name in known:
            self._by_form.setdefault(same_up_to_case_and_space(name), name)
            self._composed.setdefault(composed(name), name)
        self._decided: dict[str, tuple[str, str]] = {}

    @classmethod
    def of_project(cls, store: Store, project_id: int, rule: ClassRule) -> ClassRules:
        return cls({row.name: row.id for row in classes.list_classes(store, project_id)}, rule)

    def decide(self, label: str) -> tuple[str, str]:
        """The class name of a label and "", or "" and the problem with the label."""
        if label not in self._decided:
            self._decided[label] = self._decide(label)
        return self._decided[label]

    def _decide(self, label: str) -> tuple[str, str]:
        if label in self.known:
            return label, ""
        same = self._composed.get(composed(label))
        if same is not None:
            return same, ""
        near = self._by_form.get(same_up_to_case_and_space(label))
        if near is not None and near != label:
            if self.rule == "match":
                return near, ""
            if self.rule == "ask":
                return "", f"The class {label!r} differs from {near!r} only in case or spaces."
        elif self.asks_for_new:
            return "", f"The project has no class {label!r}."
        self._by_form.setdefault(same_up_to_case_and_space(label), label)
        self._composed[composed(label)] = label
        if label not in self.new:
            self.new.append(label)
        return label, ""


def verdict_on(source: Source, entry: Entry, rules: ClassRules | None, look: bool = True, kind: str = "") -> Verdict:
    """What will happen to `entry`. `look` opens it for its first bytes; without `rules`, labels are ignored."""
    problem, seconds, rough = entry.problem, 0.0, False
    if look and not problem:
        problem, seconds, rough = _type_problem(source, entry, kind)
    about_class = False
    if not problem and rules is not None:
        problem = next((why for one in entry.labels if one.label and (why := rules.decide(one.label)[1])), "")
        about_class = bool(problem)
    return Verdict(entry.name, entry.row, entry.label, entry.split.name, problem, about_class, seconds, rough)


def preview(  # noqa: PLR0913 (one parameter for each option)
    source: Source,
    rules: ClassRules | None = None,
    *,
    look: bool = True,
    kind: str = "",
    validation: ValidationUse = "hold-out",
    windows: WindowOptions | None = None,
    limits: Limits | None = None,
    report: Report = ignore,
) -> Preview:
    """Counts and first verdicts for `source`; nothing is written. `kind` is that of the project: audio or image. With
    `limits`, sounds that are too long or too large and are not cut are problems."""
    seen, rough = Preview(source.description), False
    fine: set[tuple[GivenLabel, ...]] = set()  # labels that were decided without a problem
    hints = SplitHints()
    for entry in entries_of(source, validation):
        seen.n_entries += 1
        if look or entry.problem or entry.labels not in fine or len(seen.rows) < LISTED:
            verdict = verdict_on(source, entry, rules, look, kind)
            is_whole = entry.span is None and not verdict.problem
            if is_whole:
                seen.n_long += verdict.seconds > SUGGEST_SECONDS
                seen.longest_seconds = max(seen.longest_seconds, verdict.seconds)
                if windows is None and limits is not None:
                    verdict = replace(verdict, problem=_over_limits(entry, verdict, limits))
            if len(seen.rows) < LISTED:
                seen.rows.append(verdict)
            if verdict.problem:
                seen.n_problems += 1
                seen.n_class_problems += verdict.about_class
                if len(seen.problems) < LISTED:
                    seen.problems.append(verdict)
                continue
            if len(fine) < LISTED:
                fine.add(entry.labels)
            if is_whole and windows is not None and verdict.seconds > windows.seconds:
                seen.n_recordings += 1
                seen.n_windows += windows.n_windows(round(verdict.seconds * PRECISION), PRECISION)
                rough |= verdict.rough
        _count(seen, entry, hints)
        if seen.n_entries % 512 == 0:
            report(Progress("preview", seen.n_entries, 0))
    seen.cut = cut_sentence(seen.n_recordings, seen.n_windows, windows, rough) if windows is not None else ""
    _conclude(seen, source, rules, hints)
    return seen


def _over_limits(entry: Entry, verdict: Verdict, limits: Limits) -> str:
    """Why a sound would be refused whole, by its size and by the length that its header states; "" if it would not."""
    if not verdict.seconds or entry.place is None:
        return ""
    stated = 0 if verdict.rough else round(verdict.seconds * 1000)
    return length_problem(stated, 1000, 1, limits) or size_problem(size_of(entry.place), limits) or ""


def _count(seen: Preview, entry: Entry, hints: SplitHints) -> None:
    split, label = entry.split, entry.label
    seen.n_test += split.split == "test"
    seen.n_validation += split.split == "validation"
    if split.name:
        seen.splits[split.name] += 1
    else:
        hints.add(entry.name)
    if label is not None:
        seen.labels[label] += 1
    else:
        seen.n_unlabeled += 1


def _conclude(seen: Preview, source: Source, rules: ClassRules | None, hints: SplitHints) -> None:
    """Complete the preview after all entries were read: findings, warnings, and questions about the labels."""
    seen.found = source.findings()
    seen.found.warnings += hints.warnings(seen.n_held_out)
    if rules is None:
        seen.found.questions = [one for one in seen.found.questions if one.option != "folders"]
        return
    seen.new_classes = list(rules.new)
    decided = {label: rules.decide(label)[0] for label in seen.labels}
    seen.class_of = {label: name for label, name in decided.items() if name and name != label}
    lone = next(iter(seen.labels)) if len(seen.labels) == 1 else None
    asked = any(one.option == "folders" for one in seen.found.questions)
    if lone in rules.new and seen.found.labels_from == CLASS_FOLDERS and not seen.found.classes_stated and not asked:
        text = (
            f"All labels ({seen.labels[lone]:,}) come from one folder, {lone!r}. Is it a class (folders: classes), or "
            "do these files have no label (folders: ignore)?"
        )
        seen.found.questions.append(Question("folders", text))


class SplitHints:
    """Counts entries without a split whose folders have the names of test splits."""

    def __init__(self) -> None:
        self._n_entries: Counter[str] = Counter()
        self._names: dict[str, str] = {}  # folder -> the part of it that has the name of a split

    def add(self, name: str) -> None:
        folder = name.rpartition("/")[0]
        if folder not in self._names:
            if len(self._names) > LISTED * 10:
                self._names.clear()
            found = (part for part in folder.split("/") if part.casefold() in HELD_OUT_NAMES)
            self._names[folder] = next(found, "")
        if self._names[folder]:
            self._n_entries[self._names[folder]] += 1

    def warnings(self, n_held_out: int) -> list[str]:
        if not self._n_entries:
            return []
        listed = ", ".join(f"{name!r} ({n:,})" for name, n in self._n_entries.most_common(5))
        held = "no item becomes a test item" if not n_held_out else "these do not become test items"
        return [f"Files are in folders named like test or validation data, {listed}, and {held}."]


def entries_of(source: Source, validation: ValidationUse) -> Iterator[Entry]:
    """The entries of a source; unless `validation` is "hold-out", its validation items belong to the pool."""
    if validation == "hold-out":
        yield from source.entries()
        return
    for entry in source.entries():
        yield entry._replace(split=POOL) if entry.split.split == "validation" else entry


def refuse_problems(seen: Preview, strict: bool, skip: bool) -> None:
    """Raise if the user has to decide something first: an open question, rows with problems, or unknown classes."""
    if seen.found.questions:
        first = seen.found.questions[0]
        option = first.option.replace("_", "-")
        raise InvalidInput(f"{first.text} Nothing was imported. Answer with --{option}.")
    n_problems = seen.n_problems if strict else seen.n_class_problems
    if not n_problems or skip:
        return
    first_problem = next(one for one in seen.problems if strict or one.about_class)
    where = f"row {first_problem.row} ({first_problem.name})" if first_problem.row else first_problem.name
    raise InvalidInput(
        f"{n_problems:,} of {count(seen.n_entries, 'entry has', 'entries have')} a problem, the first at {where}: "
        f"{first_problem.problem} "
        "Nothing was imported. Correct them, or skip them with --skip-problems"
        + (", or set what happens to unknown classes with --classes add or match." if seen.n_class_problems else ".")
    )


def _type_problem(source: Source, entry: Entry, kind: str) -> tuple[str, float, bool]:
    """Why the entry is not imported ("" if it is), the length of a sound, and whether the length is estimated."""
    assert entry.place is not None
    place = entry.place
    try:
        head = source.head(place, HEAD_BYTES)
    except (OSError, BadEntry, NotFound) as problem:
        return f"It cannot be read: {getattr(problem, 'strerror', None) or problem}.", 0.0, False
    media_type = type_of(head)
    if media_type is None:
        return refusal(head), 0.0, False
    if problem_text := wrong_kind(media_type, kind):
        return problem_text, 0.0, False
    if not media_type.startswith("audio/"):
        return "", 0.0, False
    return "", estimated_seconds(head, media_type, size_of(place)), not is_stated(media_type)


def wrong_kind(media_type: str, kind: str) -> str:
    """A sentence if a picture is imported into an audio project, or a sound into an image project; else ""."""
    if not kind or media_type.startswith(f"{kind}/"):
        return ""
    return f"It is {media_type}; this project holds {'audio' if kind == 'audio' else 'images'}."
