"""Imports a source as a stream, in groups whose files are on disk before their rows are in the store.

entries -> batches -> child processes (read, hash, examine, store) -> groups -> sync the media folder -> one transaction

A killed import leaves complete groups; a second run finds them by their hashes and continues. The same bytes under two
names are one item. Memory use does not grow with the number of entries.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from sqlalchemy import select, update

from core.errors import Cancelled, Conflict, InvalidInput, StoreUnusable
from core.limits import Limits
from core.types import Progress, Report, ignore
from storage.database.schema import ImportRun, Item
from storage.database.store import Store
from storage.database.tables.recordings import Recording
from storage.importing.item_writer import Arrival, ItemWriter, LabelUse, Written
from storage.importing.preview import (
    ClassRule,
    ClassRules,
    ValidationUse,
    entries_of,
    preview,
    refuse_problems,
    wrong_kind,
)
from storage.importing.reading import ReadingOptions
from storage.importing.reports import Details, ImportReport
from storage.importing.runs import finish, light_collector, running, start
from storage.importing.sources import CellPlace, Entry, FilePlace, KeptPlace, PackedPlace, Place, Source
from storage.importing.splits import GivenSplit
from storage.importing.windows.cutting import is_recording, problem_of, windows_of
from storage.importing.windows.kept import keep_windows
from storage.importing.windows.lengths import suggestion
from storage.importing.zip_reader import BadEntry
from storage.labeling.groups import both_sides_warning
from storage.labeling.random_split import RandomSplit
from storage.media.probe_pool import Examined, Job, ProbePool
from storage.media.probe_process import DISK_FULL, RECORDING
from storage.media.windows import SUGGEST_SECONDS, WindowOptions
from storage.projects import projects
from storage.projects.annotators import annotator_named

BATCH_FILES, BATCH_BYTES = 128, 32 << 20
GROUP_FILES, GROUP_SECONDS = 2_000, 5.0
FLYING = 6  # batches sent to the child processes at one time


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """How a source is imported."""

    labels: LabelUse = "given"
    storage: Literal["copy", "link"] = "copy"
    classes: ClassRule = "ask"
    skip_problems: bool = False  # import the rest when rows of a table, or classes, have problems
    validation: ValidationUse = "hold-out"  # the use of items that the source calls validation data
    annotator: str = "import"  # the annotator of labels without a name
    limits: Limits = field(default_factory=Limits)
    reading: ReadingOptions = field(default_factory=ReadingOptions)  # how the source was opened, for the record
    windows: WindowOptions | None = None  # cut sounds that are longer than a window into windows
    test_share: float = 0.0  # share of entries without a split in the source that become test items, at random by group

    def __post_init__(self) -> None:
        if not 0 <= self.test_share <= 0.9:
            raise InvalidInput(f"A share of {self.test_share:g} test items was requested; use 0 to 0.9.")

    def source_limits(self) -> Limits:
        """The limits for opening the source: an archive may contain recordings if they are cut into windows."""
        if self.windows is None:
            return self.limits
        most = max(self.limits.max_file_bytes, self.limits.max_recording_bytes)
        return replace(self.limits, max_file_bytes=most)


def locator(store: Store) -> Callable[[str], Place | None]:
    """A function that finds bytes in the store by their hash: in the media folder, or at the path of a linked item."""

    def locate(sha256: str) -> Place | None:
        if store.media.has(sha256):
            path = store.media.path(sha256)
            return FilePlace(str(path)) if path.is_file() else KeptPlace(sha256, store.media)
        with store.read() as connection:
            for table in (Item, Recording):
                query = select(table.link_path).where(table.sha256 == sha256, table.link_path.is_not(None)).limit(1)
                if (linked := connection.execute(query).scalar()) is not None:
                    return FilePlace(linked)
        return None

    return locate


def check_source(source: Source, options: ImportOptions) -> None:
    """Raise the errors that `run_import` would raise for a new project, before the project is created."""
    rules = None if options.labels == "ignore" else ClassRules({}, options.classes)
    seen = preview(source, rules, look=False, validation=options.validation)
    refuse_problems(seen, source.strict, options.skip_problems)


def run_import(
    store: Store, project_id: int, source: Source, options: ImportOptions | None = None, report: Report = ignore
) -> ImportReport:
    """Import `source` into a project. `report` may raise `Cancelled`; committed groups stay and are reported."""
    options = options or ImportOptions()
    project = projects.get_project(store, project_id)
    rules = None if options.labels == "ignore" else ClassRules.of_project(store, project_id, options.classes)
    seen = preview(source, rules, look=False, validation=options.validation, report=report)
    refuse_problems(seen, source.strict, options.skip_problems)
    run = start(store, project_id, source.description, asdict(options), seen.new_classes)
    run.labels_from, run.warnings = seen.found.labels_from, seen.found.warnings
    rules = None if rules is None else ClassRules.of_project(store, project_id, options.classes)
    if options.windows is not None and project.kind == "audio":
        keep_windows(store, project_id, options.windows)
    importer = _Importer(store, project_id, project.kind, source, options)
    try:
        with running(store, run.run_id):
            importer.run(run, seen.n_entries, rules, report)
    except BaseException as problem:
        status = "cancelled" if isinstance(problem, Cancelled | KeyboardInterrupt) else "failed"
        with contextlib.suppress(StoreUnusable):  # on a full disk; `end_interrupted` does it later
            finish(store, run, status)
        if isinstance(problem, Cancelled):
            return run
        raise
    run.warnings = [*run.warnings, *importer.split.messages()]
    if importer.has_groups:  # the warning needs a pass over all items of the project
        run.warnings += both_sides_warning(store, project_id)
    if importer.n_long:
        run.warnings.append(suggestion(importer.n_long, importer.longest))
    finish(store, run, "finished")
    return run


class _Importer:
    """One run: dispatches batches to the children and hands finished groups to the thread that commits them."""

    def __init__(self, store: Store, project_id: int, kind: str, source: Source, options: ImportOptions) -> None:
        self.store, self.project_id, self.kind = store, project_id, kind
        self.source, self.options = source, options
        self.annotators: dict[str, int] = {}
        self.recordings: set[str] = set()
        self.split = RandomSplit(options.test_share)
        self.has_groups = False
        self.n_long, self.longest = 0, 0.0  # clips for which windows are suggested
        self.writer = ItemWriter(project_id, options.labels, self.annotators)
        self.linking = options.storage == "link"
        self.media_root = str(store.media.root) + "/"

    def run(self, run: ImportReport, total: int, rules: ClassRules | None, report: Report) -> None:
        started = time.monotonic()
        media = self.store.media
        details_path = self.store.home / "imports" / f"{run.run_id}.jsonl"
        with (
            light_collector(),
            media.incoming() as incoming,
            Details(details_path, run) as details,
            ThreadPoolExecutor(1, thread_name_prefix="commit") as committing,
            ThreadPoolExecutor(1, thread_name_prefix="sync") as syncing,
            ProbePool(media.root, incoming, self.options.limits, window_seconds=self._window_seconds()) as workers,
        ):
            commits: deque[Future[Written]] = deque()
            try:
                for group, n_done in self._groups(workers, incoming, rules, details):
                    run.entries, run.seconds = n_done, round(time.monotonic() - started, 3)
                    if group:
                        self._name_annotators(group)
                        names = {} if rules is None else _class_names(group, rules)
                        synced = syncing.submit(self._sync, group)
                        commits.append(committing.submit(self._commit, run, group, names, synced))
                    while len(commits) > 2 or (commits and commits[0].done()):
                        self._note(commits.popleft().result(), run, details)
                    report(Progress("import", n_done, total, run.sentence()))
            finally:
                for commit in commits:  # committed groups are counted, whatever ended the loop
                    if commit.exception() is None:
                        self._note(commit.result(), run, details)
            for commit in commits:
                commit.result()
            run.seconds = round(time.monotonic() - started, 3)
        report(Progress("import", run.entries, total, run.sentence()))

    def _groups(
        self, workers: ProbePool, incoming: Path, rules: ClassRules | None, details: Details
    ) -> Iterator[tuple[list[Arrival], int]]:
        """Groups of arrivals and the number of entries seen; an empty group only reports progress."""
        flying: deque[tuple[list[tuple[Entry, int]], Future[list[Examined]]]] = deque()
        group: list[Arrival] = []
        n_done, last, shown = 0, time.monotonic(), time.monotonic()
        batches = self._batches(incoming, rules, details)
        while True:
            if len(flying) < FLYING and (step := next(batches, None)) is not None:
                n_done += step[0]
                if step[1].jobs:
                    flying.append((step[1].asked, workers.submit(step[1].jobs)))
            elif flying:
                wait([flying[0][1]], timeout=0.5)
            else:
                break
            while flying and flying[0][1].done():
                entries, future = flying.popleft()
                group += map(self._with_split, self._arrivals(entries, future.result(), details))
            if len(group) >= GROUP_FILES or (group and time.monotonic() - last > GROUP_SECONDS):
                for start in range(0, len(group), GROUP_FILES):  # a recording may have many windows
                    yield group[start : start + GROUP_FILES], n_done
                group, last = [], time.monotonic()
            elif time.monotonic() - shown > 0.5:
                shown = time.monotonic()
                yield [], n_done
        yield group, n_done

    def _arrivals(
        self, entries: list[tuple[Entry, int]], examined: list[Examined], details: Details
    ) -> Iterator[Arrival]:
        for entry, job in entries:
            one = examined[job]
            if problem := self._problem(entry, one):
                details.add("refused", entry.name, problem)
            elif is_recording(entry, one):
                if one.measures.reason:
                    details.add("notes", entry.name, one.measures.reason)
                if entry.labels and entry.span is None:
                    details.add("notes", entry.name, "Its label is that of the whole recording; its windows have none.")
                yield from windows_of(entry, one, self._link_path(entry), self.options.windows)
            else:
                seconds = one.measures.seconds or 0.0
                self.n_long += seconds > SUGGEST_SECONDS
                self.longest = max(self.longest, seconds)
                yield Arrival(entry, one, self._link_path(entry))

    def _batches(self, incoming: Path, rules: ClassRules | None, details: Details) -> Iterator[tuple[int, _Batch]]:
        """The number of entries so far and the jobs of those without a problem. Archive entries are unpacked here, one
        batch at a time. Consecutive rows that name parts of the same recording share its job."""
        batch, n_entries, n_unpacked = _Batch(), 0, 0
        labels, class_problem = None, ""
        for entry in entries_of(self.source, self.options.validation):
            if batch.is_full(n_entries) and not batch.continues(entry):
                yield n_entries, batch
                batch, n_entries = _Batch(), 0
            n_entries += 1
            if entry.labels is not labels:  # all files of a folder share one object
                labels, class_problem = entry.labels, _class_problem(entry, rules)
            problem = entry.problem or class_problem
            if problem:
                details.add("refused", entry.name, problem)
            elif batch.continues(entry):
                batch.asked.append((entry, len(batch.jobs) - 1))
            elif isinstance(entry.place, PackedPlace | CellPlace):
                n_unpacked += 1
                target = incoming / f"entry-{n_unpacked}"
                try:
                    self.source.unpack(entry.place, target)
                    batch.add(entry, (str(target), "move"), entry.place.n_bytes)
                except BadEntry as reason:
                    details.add("refused", entry.name, str(reason))
            elif isinstance(entry.place, KeptPlace):
                batch.add(entry, (entry.place.sha256, "kept"))
            else:
                assert isinstance(entry.place, FilePlace)
                batch.add(entry, (entry.place.path, self._mode(entry.place.path)))
        yield n_entries, batch

    def _with_split(self, arrival: Arrival) -> Arrival:
        """The arrival, as a test item if the random split assigns it; a split that the source names is kept."""
        entry = arrival.entry
        self.has_groups |= bool(entry.group) or arrival.span is not None
        if not self.split.share or entry.split.split or not self.split.is_test(entry.group or arrival.stored_sha256):
            return arrival
        return arrival._replace(entry=entry._replace(split=GivenSplit("test", "test")))

    def _window_seconds(self) -> float:
        return 0.0 if self.options.windows is None else self.options.windows.seconds

    def _mode(self, path: str) -> str:
        """The mode of the job; files of the media folder are examined where they are."""
        return "link" if self.linking or path.startswith(self.media_root) else "copy"

    def _link_path(self, entry: Entry) -> str | None:
        if self.linking and isinstance(entry.place, FilePlace) and not entry.place.path.startswith(self.media_root):
            return entry.place.path
        return None

    def _problem(self, entry: Entry, examined: Examined) -> str:
        """Why an examined file is not imported ("" if it is)."""
        measures = examined.measures
        if measures.reason == DISK_FULL:
            raise StoreUnusable("The disk is full. What was imported is kept; free some space and import again.")
        if measures.status == "refused" or not examined.sha256:
            return measures.reason
        if is_recording(entry, examined):
            problem = wrong_kind(measures.media_type, self.kind)
            return problem or problem_of(entry, examined, self.options.windows, self.options.limits)
        if entry.sha256 and entry.sha256 != examined.sha256:
            return "Its bytes are not those that the manifest names by their hash."
        if self.linking and not _is_text(self._link_path(entry) or ""):
            return "Its path is not valid text (UTF-8), so a link to it cannot be stored. Import it as a copy."
        return wrong_kind(measures.media_type, self.kind)

    def _name_annotators(self, group: list[Arrival]) -> None:
        """Create a row for each annotator named in the group; labels of removed ones are stored under the import."""
        if self.options.labels != "given":
            return
        for name in {one.annotator for arrival in group for one in arrival.entry.labels} - set(self.annotators):
            try:
                self.annotators[name] = annotator_named(self.store, name or self.options.annotator).id
            except (Conflict, InvalidInput):
                self.annotators[name] = annotator_named(self.store, self.options.annotator).id

    def _sync(self, group: list[Arrival]) -> None:
        """Flush the media of a group to disk while the previous group is committed."""
        self.store.media.sync(sorted({arrival.stored_sha256 for arrival in group if arrival.link_path is None}))

    def _commit(self, run: ImportReport, group: list[Arrival], names: dict[str, str], synced: Future[None]) -> Written:
        """Wait for the bytes on disk, then write their rows. Raises `Cancelled` if a cancellation is stored."""
        synced.result()
        with self.store.write() as connection:
            project = projects.lock(connection, self.project_id)
            if project.archived_at is not None:
                raise Conflict(f"The project {project.name} was archived. What was imported until then is kept.")
            written = self.writer.write(connection, project, group, names)
            row = (
                update(ImportRun)
                .where(ImportRun.id == run.run_id)
                .values(counts=run.counts())
                .returning(ImportRun.cancel_requested)
            )
            cancelled = connection.execute(row).scalar_one()
        if cancelled:
            raise Cancelled("The import was cancelled.")
        return written

    def _note(self, written: Written, run: ImportReport, details: Details) -> None:
        run.imported += written.imported
        run.already += written.already
        run.held_out += written.held_out
        run.labels += written.labels
        run.skipped += written.skipped
        self.recordings |= written.recordings
        run.recordings = len(self.recordings)
        for name, n_items in written.splits.items():
            run.splits[name] = run.splits.get(name, 0) + n_items
        for kind in ("duplicates", "unreadable", "notes"):
            for name, reason in getattr(written, kind):
                details.add(kind, name, reason)


@dataclass(slots=True)
class _Batch:
    """Jobs for the child processes, and the entries of each job by its position."""

    jobs: list[Job] = field(default_factory=list)
    asked: list[tuple[Entry, int]] = field(default_factory=list)
    n_bytes: int = 0

    def add(self, entry: Entry, job: Job, n_bytes: int = 0) -> None:
        path, mode = job
        self.jobs.append((path, RECORDING + mode) if entry.span is not None else job)
        self.asked.append((entry, len(self.jobs) - 1))
        self.n_bytes += n_bytes

    def continues(self, entry: Entry) -> bool:
        """Whether the entry is a part of the recording that the last job examines."""
        last = self.asked[-1][0] if self.asked else None
        return last is not None and None not in (entry.span, last.span) and entry.place == last.place

    def is_full(self, n_entries: int) -> bool:
        return n_entries >= BATCH_FILES or self.n_bytes >= BATCH_BYTES


def _class_problem(entry: Entry, rules: ClassRules | None) -> str:
    if rules is None or not entry.labels:
        return ""
    return next((problem for one in entry.labels if one.label and (problem := rules.decide(one.label)[1])), "")


def _class_names(group: list[Arrival], rules: ClassRules) -> dict[str, str]:
    """label -> class name, for all labels of a group, in the order in which they appear."""
    labels = dict.fromkeys(one.label for arrival in group for one in arrival.entry.labels if one.label)
    suggested = (one.suggested_label for arrival in group for one in arrival.entry.labels if one.suggested_label)
    decided = {label: rules.decide(label)[0] for label in labels}
    return decided | {label: label for label in suggested if label in rules.known}


def _is_text(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
