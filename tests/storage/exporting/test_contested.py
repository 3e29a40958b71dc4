"""Contested items are marked, counted and left out on request; a label is never exported as a prediction."""

from __future__ import annotations

import csv
import json
import uuid
from collections import Counter
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from core.config import RoundConfig
from core.errors import InvalidInput
from core.types import Selection
from storage.exporting.counts import export_counts
from storage.exporting.rows import COLUMNS, ExportOptions, newest_pseudo_labels
from storage.exporting.run import FORMATS, export_project
from storage.exporting.votes import CONTESTED, VOTE_COLUMNS, votes_of
from storage.importing.open import open_source
from storage.importing.run import ImportOptions, run_import
from storage.labeling.agreement import disagreements
from storage.labeling.pool import LabelInput
from storage.projects.annotators import annotator_named
from storage.projects.classes import merge_classes
from storage.projects.projects import ProjectSettings, create_project
from storage.rounds.log import RoundLog
from tests.storage.export_shop import START, Shop, standing

pytestmark = pytest.mark.usefixtures("examined_here")
# Items by their labels: a tie, a majority, agreement, one label, differing labels with a decision.
GIVEN = {0: "01", 1: "010", 2: "22", 3: "1", 4: "03"}


@pytest.fixture
def crowd(sqlite_store, tmp_path) -> Shop:
    (tmp_path / "in").mkdir()
    made = Shop(sqlite_store, tmp_path / "in", [f"{k}.png" for k in range(6)], ["cat", "dog", "=owl", "fox"], wanted=3)
    for item, labels in GIVEN.items():
        for place, class_ in enumerate(labels):
            made.label(item, int(class_), ("ann", "bob", "cleo")[place], START + timedelta(seconds=place))
    made.label(4, 3, "cleo", START + timedelta(hours=1), kind="decide")
    return made


def exported(shop: Shop, folder, **options) -> list[dict]:
    export_project(shop.store, shop.project, folder, ExportOptions(format="jsonl", **options))
    return [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]


def test_every_row_says_whether_its_label_is_contested_and_how_it_was_chosen(crowd, tmp_path):
    rows = exported(crowd, tmp_path / "out")
    assert [(row["contested"], row["n_labels"], row["decided_by"]) for row in rows] == [
        (True, 2, "newest"),
        (True, 3, "majority"),
        (False, 2, None),
        (False, 1, None),
        (False, 2, "review"),
    ]
    assert rows[1]["votes"] == [{"label": "cat", "n": 2}, {"label": "dog", "n": 1}] and rows[1]["label"] == "cat"
    assert rows[2]["votes"] == [{"label": "=owl", "n": 2}]
    assert (rows[4]["label"], rows[4]["annotator"]) == ("fox", "cleo")
    undecided = {one.item_id for one in disagreements(crowd.store, crowd.project)}
    assert undecided == {crowd.items[k] for k, row in enumerate(rows) if row["contested"]}


@pytest.mark.parametrize(("rule", "kept"), [("keep", [0, 1, 2, 3, 4]), ("majority", [1, 2, 3, 4]), ("omit", [2, 3, 4])])
def test_contested_items_are_kept_or_left_out_and_counted(crowd, tmp_path, rule, kept):
    report = export_project(crowd.store, crowd.project, tmp_path / "out", ExportOptions(format="jsonl", contested=rule))
    rows = [json.loads(line) for line in (tmp_path / "out" / "labels.jsonl").read_text().splitlines()]
    assert [row["name"] for row in rows] == [f"{k}.png" for k in kept]
    n_contested = sum(row["contested"] for row in rows)
    said = json.loads((tmp_path / "out" / "manifest.json").read_text())
    expected = {"contested": n_contested, "contested_left_out": 5 - len(kept), "decided_in_review": 1}
    assert {name: said["counts"][name] for name in expected} == expected
    assert said["content"]["contested"] == rule
    assert (report.contested, report.contested_left_out) == (n_contested, 5 - len(kept))
    counts = export_counts(crowd.store, crowd.project, ExportOptions(contested=rule))
    assert (counts.total, counts.contested, counts.contested_left_out) == (len(rows), 2, 5 - len(kept))


def test_a_parquet_export_counts_what_a_jsonl_export_counts(crowd, tmp_path):
    """Parquet is written by columns, so its report and manifest come from other code than those of rows."""
    by_rows, by_columns = (
        export_project(crowd.store, crowd.project, tmp_path / name, ExportOptions(format=name))
        for name in ("jsonl", "parquet")
    )
    assert by_columns.sources == by_rows.sources == {"label": 4, "decide": 1}
    assert by_columns.labels == by_rows.labels
    said = [json.loads((tmp_path / name / "manifest.json").read_text())["counts"] for name in ("jsonl", "parquet")]
    assert said[0] == said[1] and said[1]["decided_in_review"] == 1 and said[1]["contested"] == 2


def test_a_merge_that_makes_labels_equal_ends_the_contest(crowd, tmp_path):
    merge_classes(crowd.store, crowd.project, crowd.classes[1], crowd.classes[0])
    rows = exported(crowd, tmp_path / "out")
    assert [row["contested"] for row in rows] == [False] * 5
    assert rows[1]["votes"] == [{"label": "cat", "n": 3}]
    assert export_counts(crowd.store, crowd.project, ExportOptions()).contested == 0


def test_the_columns_come_last_in_every_table(crowd, tmp_path):
    assert COLUMNS[-4:] == VOTE_COLUMNS == ("contested", "n_labels", "votes", "decided_by")
    for format_ in FORMATS:
        export_project(crowd.store, crowd.project, tmp_path / format_, ExportOptions(format=format_))
    rows = [json.loads(line) for line in (tmp_path / "jsonl" / "labels.jsonl").read_text().splitlines()]
    votes = [{name: row[name] for name in VOTE_COLUMNS} for row in rows]
    exact = parquet.read_table(tmp_path / "parquet" / "labels.parquet").to_pylist()
    assert [{name: row[name] for name in VOTE_COLUMNS} for row in exact] == votes
    for folder in ("csv", "folders"):
        with open(tmp_path / folder / "labels.csv", encoding="utf-8-sig", newline="") as file:
            lines = list(csv.DictReader(file))
        assert list(lines[0])[-5:] == [*VOTE_COLUMNS, "guarded_cells"]
        assert [line["contested"] for line in lines] == ["true", "true", "false", "false", "false"]
        assert [json.loads(line["votes"]) for line in lines] == [one["votes"] for one in votes]
    marked: list[bool] = []
    for path in (tmp_path / "folders").glob("*/metadata.parquet"):
        marked += parquet.read_table(path)["contested"].to_pylist()
    assert Counter(marked) == {True: 2, False: 3}
    tasks = json.loads((tmp_path / "label-studio" / "tasks.json").read_text())
    assert [{name: task["meta"]["winnow"][name] for name in VOTE_COLUMNS} for task in tasks] == votes


@pytest.mark.parametrize("format_", FORMATS)
def test_an_export_with_contested_items_is_imported_again_with_all_its_labels(crowd, tmp_path, format_):
    export_project(crowd.store, crowd.project, tmp_path / "out", ExportOptions(format=format_, media=True))
    again = create_project(crowd.store, "again", "image", settings=ProjectSettings(labels_per_item=3)).id
    run_import(crowd.store, again, open_source(tmp_path / "out"), ImportOptions(classes="add"))
    assert standing(crowd.store, again) == standing(crowd.store, crowd.project)
    assert export_counts(crowd.store, again, ExportOptions()).contested == 2


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=7))
def test_votes_equal_a_count_by_hand(labels):
    votes = votes_of("label", labels[0], [{"label": one} for one in labels[1:]])
    counted = Counter(labels).most_common()
    tie = len(counted) > 1 and counted[0][1] == counted[1][1]
    columns = votes.columns()
    assert columns["n_labels"] == len(labels) and {one["label"]: one["n"] for one in columns["votes"]} == dict(counted)
    assert columns["contested"] == (len(counted) > 1)
    assert columns["decided_by"] == (None if len(counted) == 1 else "newest" if tie else "majority")
    assert [votes.kept(rule) for rule in CONTESTED] == [True, not tie, len(counted) == 1]
    decided = votes_of("decide", "z", [{"label": one} for one in labels])
    assert (decided.contested, decided.decided_by, decided.columns()["n_labels"]) == (False, "review", len(labels))


def test_an_unknown_rule_is_refused():
    with pytest.raises(InvalidInput, match="use keep, majority, omit"):
        ExportOptions(contested="drop")


def finish_round(shop: Shop) -> None:
    """A finished round in the form of the pipeline: one-hot on labeled rows, the last class with 0.7 elsewhere."""
    log = RoundLog(shop.store, shop.project)
    row = log.request(RoundConfig())
    log.start(row.id)
    snapshot = shop.pool.snapshot()
    probabilities = np.tile(np.array([0.1, 0.1, 0.1, 0.7], np.float32), (len(snapshot.item_ids), 1))
    labeled = np.flatnonzero(snapshot.labeled)
    probabilities[labeled] = np.eye(4, dtype=np.float32)[snapshot.labels[labeled]]
    nobody = Selection(item_ids=np.empty(0, np.int64), scores=np.empty(0, np.float32), strategy="bico")
    arrays = {"item_ids": snapshot.item_ids, "probabilities": probabilities}
    log.finish(row.id, arrays=arrays, selection=nobody, metrics={"has_model": True})


def test_a_label_that_was_undone_is_not_exported_as_a_prediction(crowd, tmp_path):
    finish_round(crowd)
    ann = annotator_named(crowd.store, "bob").id
    given = next(event for event in crowd.pool.history(crowd.items[3]) if event.kind == "label")
    undo = LabelInput(uuid=str(uuid.uuid4()), item_id=crowd.items[3], kind="undo", undoes=given.uuid)
    owner = given.annotator_id
    assert owner != ann and crowd.pool.apply([undo], annotator=owner)[0].accepted
    rows = exported(crowd, tmp_path / "out", pseudo_above=0.5)
    assert [(row["name"], row["label"]) for row in rows if row["source"] == "pseudo"] == [("5.png", "fox")]
    assert export_counts(crowd.store, crowd.project, ExportOptions(pseudo_above=0.5)).pseudo_labels == 1
    with crowd.store.read() as connection:
        found = newest_pseudo_labels(crowd.store, connection, crowd.project)
    assert found.reach(np.array(crowd.items), 0.0).tolist() == [False] * 5 + [True]


def test_the_confidence_of_a_label_that_was_shown_as_a_suggestion_is_not_exported(crowd, tmp_path):
    """Events in the form of earlier versions: the label of the first annotator, suggested to the second with 1.0."""
    shown = {"suggestion": "shown", "suggested_class_id": crowd.classes[1]}
    crowd.label(5, 1, "ann", suggested_confidence=1.0, **shown)  # a real prediction: no round has seen a label
    finish_round(crowd)
    crowd.label(5, 1, "bob", START + timedelta(seconds=1), suggested_confidence=1.0, **shown)
    crowd.label(5, 1, "cleo", START + timedelta(seconds=2), suggested_confidence=0.83, **shown)
    row = next(row for row in exported(crowd, tmp_path / "out") if row["name"] == "5.png")
    found = {one["annotator"]: one for one in (row, *row["other_labels"])}
    assert {who: one["suggested_confidence"] for who, one in found.items()} == {"ann": 1.0, "bob": None, "cleo": 0.83}
    assert {one["suggested_label"] for one in found.values()} == {"dog"}  # the suggested label is still exported
