"""Embeddings from elsewhere: keys by hash or file name, coverage, and what is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.encoders.embeddings import match_items, read_embeddings, table_files, table_rows
from core.encoders.folders import open_encoder
from core.encoders.pool import encode_pool
from core.errors import InvalidInput
from core.rows import MemoryRowCache

A, B, C = "a" * 64, "b" * 64, "c" * 64
ITEMS = [(A, "cats/one.png"), (B, "dogs/two.png"), (C, "dogs/three.png")]


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_by_hash_covers_the_items_it_has(tmp_path):
    path = parquet(tmp_path / "e.parquet", sha256=[B, "f" * 64, A], embedding=[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    matched = match_items(read_embeddings(path), ITEMS)
    assert matched.hashes == (A, B)
    assert matched.vectors.tolist() == [[5.0, 6.0], [1.0, 2.0]]
    assert (matched.missing, matched.unused) == (("dogs/three.png",), 1)


def test_npy_by_file_name_becomes_a_separate_encoder(tmp_path):
    np.save(tmp_path / "e.npy", np.arange(6, dtype=np.float64).reshape(3, 2))
    (tmp_path / "e.txt").write_text("three.png\ncats/one.png\nelse.png\n")
    matched = match_items(read_embeddings(tmp_path / "e.npy"), ITEMS)
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, content in table_files("mine", "image", matched, "e.npy").items():
        (folder / name).write_bytes(content)
    encoder = open_encoder(folder)
    np.testing.assert_array_equal(table_rows(encoder, [A, B, C]), [[2, 3], [np.nan, np.nan], [0, 1]])
    found = encode_pool([A, B, C], lambda name: b"", encoder, MemoryRowCache())
    assert found.readable.tolist() == [True, False, True]
    assert "not in the table of embeddings" in found.notes[0]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"sha256": [A, A], "embedding": [[1.0], [2.0]]}, "1 rows with a repeated key, such as aaaa"),
        ({"sha256": [A, B, C], "embedding": [[1.0], [2.0, 3.0], [2.0]]}, "Row 2 of e.parquet has 2 numbers"),
        ({"sha256": [A, B], "embedding": [["x"], ["y"]]}, "it must hold lists of numbers"),
        ({"sha256": [A, B], "embedding": ["[1]", "[2]"]}, "it must hold lists of numbers"),
        ({"sha256": [A, B], "embedding": [[1.0], [float("nan")]]}, "values that are not numbers, such as bbbb"),
        ({"sha256": [A, B], "embedding": [[1.0], None]}, "Row 2 of e.parquet has nothing"),
        ({"sha256": [A]}, "it needs a key"),
    ],
)
def test_bad_tables_are_refused_with_the_row(columns, said, tmp_path):
    with pytest.raises(InvalidInput) as raised:
        read_embeddings(parquet(tmp_path / "e.parquet", **columns))
    assert said in str(raised.value)


def test_files_that_are_no_tables_are_refused(tmp_path):
    (tmp_path / "e.parquet").write_bytes(b"PAR1 not really")
    (tmp_path / "o.npy").write_bytes(b"\x93NUMPY broken")
    (tmp_path / "o.txt").write_text("one\n")
    np.save(tmp_path / "s.npy", np.array([["a", "b"]]))
    (tmp_path / "s.txt").write_text("one\n")
    np.save(tmp_path / "n.npy", np.zeros((2, 2)))
    (tmp_path / "n.txt").write_text("one\n")
    for name, said in {
        "e.parquet": "is not a Parquet file",
        "o.npy": "is not an NPY file",
        "s.npy": "it must be numbers",
        "n.npy": "2 rows and 1 keys",
        "x.csv": "There is no file",
    }.items():
        with pytest.raises(InvalidInput, match=said):
            read_embeddings(tmp_path / name)


def test_keys_that_belong_to_no_item_are_refused(tmp_path):
    path = parquet(tmp_path / "e.parquet", file=["x.png"], embedding=[[1.0]])
    with pytest.raises(InvalidInput, match=r"None of the 1 keys \(such as .*\) belongs to one of the 3 items"):
        match_items(read_embeddings(path), ITEMS)
