"""The meanings of the folders of a source: a split, a class, or only a container of files.

The class of a file is the innermost folder that is not a split and does not have the name of a container (`images`,
`data`, `audio` …). Where this is uncertain, the findings contain a question for the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from storage.database.strings import count
from storage.importing.reading import CLASS_FOLDERS, Findings, Question, ReadingOptions
from storage.importing.sources import GivenLabel
from storage.importing.splits import NO_SPLIT, GivenSplit, split_folders, split_named

CONTAINERS = frozenset((
    "images", "image", "imgs", "img", "pictures", "pics", "photos", "photo", "data", "dataset", "datasets", "audio",
    "audios", "wav", "wavs", "mp3", "flac", "ogg", "clips", "clip", "sounds", "recordings", "recording", "files",
    "file", "media", "samples", "jpg", "jpeg", "jpegs", "png", "pngs", "jpegimages", "raw", "input", "inputs", "upload",
    "uploads",
))  # fmt: skip
NO_CLASS = frozenset(("_unlabeled", "unlabeled", "unlabelled", "_unlabelled", "unsupervised"))
NOT_MEDIA = frozenset((
    ".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet", ".xml", ".yaml", ".yml", ".md", ".rst", ".html",
    ".pdf", ".toml", ".ini", ".cfg", ".log", ".py", ".ipynb", ".ds_store", ".db", ".npy", ".npz", ".arrow", ".zip",
    ".license",
))  # fmt: skip
FEW = 5


class FolderMeaning(NamedTuple):
    labels: tuple[GivenLabel, ...] = ()
    split: GivenSplit = NO_SPLIT


class FolderNames:
    """Meanings of folders, by their names relative to the source. A parent is entered before its folders."""

    def __init__(self, options: ReadingOptions, class_names: Mapping[str, str] | None = None) -> None:
        self._options, self._class_names = options, class_names or {}
        self._split_parents: set[str] = set()
        self._doubtful: dict[str, tuple[str, ...]] = {}
        self._containers: Counter[str] = Counter()
        self._unlabeled = 0
        self._class_folders: Counter[str] = Counter()  # folder -> files that its name labels

    def enter(self, parent: str, children: Collection[str]) -> None:
        """Register `children`, which are all folders directly in `parent` ("" is the top)."""
        seen = {name for name in children if not name.startswith(".") and name != "__MACOSX"}
        if not seen or self._options.splits == "ignore":
            return
        found = split_folders(seen)
        if found.are_splits or (self._options.splits == "take" and any(split_named(name) for name in seen)):
            self._split_parents.add(parent)
        elif found.doubtful:
            self._doubtful[parent] = (*found.doubtful, *sorted(seen - set(found.doubtful))[:FEW])

    def meaning(self, folder: str) -> FolderMeaning:
        """Split and label of the files directly in `folder`, a relative name without a trailing slash."""
        split, left, parent = NO_SPLIT, [], ""
        for name in folder.split("/") if folder else ():
            given = split_named(name) if parent in self._split_parents and not split.split else None
            if given is not None:
                split = given
            elif name not in ("", "."):
                left.append(name)
            parent = f"{parent}/{name}" if parent else name
        label = self._label(left)
        return FolderMeaning((GivenLabel(label),) if label is not None else (), split)

    def _label(self, folders: list[str]) -> str | None:
        if self._options.folders == "ignore" or not folders:
            return None
        label: str | None = folders[-1]
        if self._options.folders == "auto":
            if folders[-1].casefold() in NO_CLASS:
                return None
            label = next((name for name in reversed(folders) if name.casefold() not in CONTAINERS), None)
        return None if label is None else self._class_names.get(label, label)

    def count(self, folder: str, meaning: FolderMeaning, n_files: int = 1) -> None:
        """Count the files directly in `folder` for the findings. A folder without files does not count."""
        if not n_files:
            return
        innermost = folder.rpartition("/")[2].casefold()
        if meaning.labels:
            self._class_folders[folder] += n_files
        elif innermost in CONTAINERS:
            self._containers[folder] += n_files
        elif innermost in NO_CLASS:
            self._unlabeled += n_files

    def findings(self) -> Findings:
        """The meanings of the folders counted so far, as findings."""
        found = Findings(labels_from=CLASS_FOLDERS if self._class_folders else "")
        found.classes_stated = self._options.folders == "classes"
        used = {one for folder in self._class_folders for one in folder.split("/")} & set(self._class_names)
        found.label_names = {folder: self._class_names[folder] for folder in sorted(used)}
        if self._options.folders == "auto":
            found.questions += self._container_questions()
            found.warnings += self._nested_folders()
        if self._options.splits == "auto":
            found.questions += [
                Question(
                    "splits",
                    f"The folder {names[0]!r} has the name of a split but is beside {_listed(names[1:])}. "
                    "Is it a split (splits: take) or an ordinary folder (splits: ignore)?",
                )
                for names in self._doubtful.values()
            ]
        if self._unlabeled:
            found.warnings.append(
                f"{count(self._unlabeled, 'file')} in a folder for unlabeled files will have no label."
            )
        return found

    def _container_questions(self) -> Iterable[Question]:
        if not self._containers:
            return
        names = sorted(self._containers)
        yield Question(
            "folders",
            f"{sum(self._containers.values()):,} files are in {_listed(names)}, usually not the name of a class. "
            "Is it a class (folders: classes), or do these files have no label (folders: ignore)?",
        )

    def _nested_folders(self) -> Iterable[str]:
        """Warnings about folders whose name is a label although they also contain class folders."""
        above = {folder.rpartition("/")[0] for folder in self._class_folders}
        for folder in sorted(above & set(self._class_folders)):
            n_files = self._class_folders[folder]
            yield f"{n_files:,} files directly in {folder!r} get its name as label; it also contains class folders."


def is_media_name(name: str) -> bool:
    """False for files that cannot be media by their extension: tables, notes, archives."""
    dot = name.rfind(".")
    return dot < 0 or name[dot:].lower() not in NOT_MEDIA


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:FEW])) + (" …" if len(names) > FEW else "")
