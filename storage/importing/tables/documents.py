"""JSON documents that describe a whole data set: COCO categories of images, and FiftyOne's `labels.json`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from storage.importing.tables.rows import TableRow


def kind_of_document(document: Any) -> str:
    """The kind of a document: coco, fiftyone, or "" for any other."""
    if not isinstance(document, dict):
        return ""
    if isinstance(document.get("images"), list) and isinstance(document.get("categories"), list):
        return "coco"
    if isinstance(document.get("labels"), dict) and "classes" in document:
        return "fiftyone"
    return ""


def document_rows(document: dict[str, Any]) -> Iterator[TableRow]:
    yield from coco_rows(document) if kind_of_document(document) == "coco" else fiftyone_rows(document)


def coco_rows(document: dict[str, Any]) -> Iterator[TableRow]:
    """One row per image. If all its annotations have one category, that is its label; boxes and masks are not read."""
    names = {one.get("id"): one.get("name") for one in document["categories"] if isinstance(one, dict)}
    found: dict[Any, dict[Any, None]] = defaultdict(dict)
    for one in document.get("annotations") or ():
        if isinstance(one, dict):
            found[one.get("image_id")][one.get("category_id")] = None
    for number, image in enumerate(document["images"], 1):
        if not isinstance(image, dict) or not isinstance(image.get("file_name"), str):
            yield TableRow(number, problem="The image has no file_name.")
            continue
        given = list(found.get(image.get("id"), ()))
        values = {"path": image["file_name"]}
        if len(given) > 1:
            listed = ", ".join(repr(names.get(one)) for one in given[:5])
            yield TableRow(number, values, f"The image has {len(given)} categories ({listed}); an item has one label.")
        elif given and not isinstance(names.get(given[0]), str):
            yield TableRow(number, values, f"The category {given[0]!r} is not in the list of categories.")
        else:
            yield TableRow(number, values | ({"label": names[given[0]]} if given else {}))


def fiftyone_rows(document: dict[str, Any]) -> Iterator[TableRow]:
    """One row per file. `labels` maps names without extension to a class, its position in `classes`, or null."""
    classes = document.get("classes") or []
    for number, (name, given) in enumerate(document["labels"].items(), 1):
        label = given.get("label") if isinstance(given, dict) else given
        if isinstance(label, int) and not isinstance(label, bool):
            if not 0 <= label < len(classes):
                yield TableRow(number, {"path": name}, f"The label is {label}; there are {len(classes)} classes.")
                continue
            label = classes[label]
        if isinstance(label, list):
            yield TableRow(number, {"path": name}, f"The file has {len(label)} labels; an item has one.")
            continue
        yield TableRow(number, {"path": name} | ({"label": str(label)} if label is not None else {}))
