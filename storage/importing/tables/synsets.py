"""Class names for ImageNet, whose class folders are WordNet ids (`n01440764`), from a table beside the folders.

The tables are `LOC_synset_mapping.txt`, `synset_words.txt` and `words.txt` ("n01440764 tench, Tinca tinca") and
`imagenet_class_index.json` ({"0": ["n01440764", "tench"]}). The name of a class is the first name of its id; if two ids
have the same first name, it is the list of all their names.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from storage.importing.tables.finders import Finder

TEXTS = ("LOC_synset_mapping.txt", "synset_words.txt", "synsets.txt", "words.txt")
INDEX = "imagenet_class_index.json"
SYNSET = re.compile(r"n\d{8}\Z")
MOST_WRAPPERS = 3


def synset_names(finder: Finder, fetch: Callable[[str], Path]) -> dict[str, str]:
    """WordNet id -> class name; empty when there is no such table."""
    folder = ""
    for _ in range(MOST_WRAPPERS):
        files = finder.files(folder)
        name = next((name for name in (*TEXTS, INDEX) if name in files), None)
        if name is not None:
            path = fetch(posixpath.join(folder, name))
            return _unambiguous(dict(_index(path) if name == INDEX else _lines(path)))
        inside = finder.folders(folder)
        if len(inside) != 1:
            break
        folder = posixpath.join(folder, inside[0])
    return {}


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            synset, _, names = line.strip().replace("\t", " ").partition(" ")
            if SYNSET.match(synset) and names.strip():
                yield synset, names.strip()


def _index(path: Path) -> Iterator[tuple[str, str]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        return
    for pair in document.values() if isinstance(document, dict) else ():
        if isinstance(pair, list) and len(pair) > 1 and SYNSET.match(str(pair[0])):
            yield str(pair[0]), str(pair[1])


def _unambiguous(names: dict[str, str]) -> dict[str, str]:
    first = {synset: listed.split(",")[0].strip() for synset, listed in names.items()}
    n_uses = Counter(first.values())
    return {synset: name if n_uses[name] == 1 else names[synset] for synset, name in first.items()}
