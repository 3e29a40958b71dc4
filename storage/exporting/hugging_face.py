"""Exports for Hugging Face datasets: Parquet files with declared features, and the dataset card.

Labels are numbers with a `ClassLabel` feature, so that `load_dataset` gives the class names of the project in their
order. In the format `hugging-face`, each row contains the bytes of its file, and the column `winnow` contains the
complete row of the export as JSON, which imports read. Class folders have a `metadata.parquet` in each split.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from storage.exporting.weights import WEIGHT

GROUP_ROWS = 1_000
GROUP_BYTES = 32 << 20  # of media in one row group
WHOLE_ROW = "winnow"
FOLDER_COLUMNS = ("file_name", "name", "label", "source", "sha256", "media_type", "n_bytes", "contested")
MEDIA = ("audio", "image")

CARD = """---
configs:
- config_name: default
  data_files:
{data_files}
dataset_info:
  features:
{features}
---

# {title}

Exported by Winnow.{missing}

    from datasets import load_dataset

    data = load_dataset("path/to/this/folder")

To publish it, log in with `hf auth login` and push it from your own account:

    data.push_to_hub("your-name/your-dataset", private=True)
"""


def split_file(split: str) -> str:
    """The Parquet file name of a split, in the Hub's form for a single shard."""
    return f"data/{split_name(split)}-00000-of-00001.parquet"


def split_name(split: str) -> str:
    """The name of a split in the characters that `datasets` allows: letters, digits and underscores."""
    return re.sub(r"\W+", "_", split.lower()) or "train"


def media_columns(kind: str, weighted: bool) -> tuple[str, ...]:
    return (kind, "label", "name", "source", "sha256", "contested", *((WEIGHT,) if weighted else ()), WHOLE_ROW)


class FeatureWriter:
    """A Parquet file with declared features. `label` is written as its position in `names`."""

    def __init__(self, path: Path, columns: Sequence[str], names: Sequence[str]) -> None:
        import pyarrow
        from pyarrow import parquet

        self._columns, self._pyarrow = columns, pyarrow
        self._positions = {name: position for position, name in enumerate(names)}
        self._schema = _schema(columns, names)
        self._writer = parquet.ParquetWriter(path, self._schema)
        self._rows: list[dict[str, Any]] = []
        self._n_bytes = 0

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    def write(self, values: dict[str, Any]) -> None:
        row = {name: values[name] for name in self._columns} | {"label": self._positions[values["label"]]}
        self._rows.append(row)
        self._n_bytes += sum(len(row[name]["bytes"]) for name in MEDIA if name in row)
        if len(self._rows) >= GROUP_ROWS or self._n_bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._pyarrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._n_bytes = [], 0


def _schema(columns: Iterable[str], names: Sequence[str]) -> Any:
    import pyarrow as pa

    media = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kinds = dict.fromkeys(MEDIA, media) | {"label": pa.int64(), "n_bytes": pa.int64(), WEIGHT: pa.float64()}
    kinds["contested"] = pa.bool_()
    features = {name: _feature(name, names) for name in columns}
    about = {"huggingface": json.dumps({"info": {"features": features}}, ensure_ascii=False)}
    return pa.schema([(name, kinds.get(name, pa.string())) for name in columns], metadata=about)


def _feature(column: str, names: Sequence[str]) -> dict[str, Any]:
    if column in MEDIA:
        return {"_type": column.capitalize()}
    if column == "label":
        return {"names": list(names), "_type": "ClassLabel"}
    return {"dtype": _value_type(column), "_type": "Value"}


def _value_type(column: str) -> str:
    return {"n_bytes": "int64", WEIGHT: "float64", "contested": "bool"}.get(column, "string")


def dataset_card(
    title: str, files: Mapping[str, str], columns: Sequence[str], names: Sequence[str], n_missing: int
) -> str:
    """README.md with the metadata that the Hub reads. `files` maps each split to the pattern of its files."""
    data_files = [f"  - split: {split}\n    path: {json.dumps(pattern)}" for split, pattern in sorted(files.items())]
    missing = f" {n_missing:,} labeled items have no file and are left out." if n_missing else ""
    return CARD.format(
        title=" ".join(title.split()),
        data_files="\n".join(data_files),
        features="\n".join(_yaml_feature(column, names) for column in columns),
        missing=missing,
    )


def _yaml_feature(column: str, names: Sequence[str]) -> str:
    if column != "label":
        return f"  - name: {column}\n    dtype: {column if column in MEDIA else _value_type(column)}"
    listed = "\n".join(f"          '{n}': {json.dumps(name, ensure_ascii=False)}" for n, name in enumerate(names))
    return f"  - name: label\n    dtype:\n      class_label:\n        names:\n{listed}"
