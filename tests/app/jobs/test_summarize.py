"""`python -m app summarize`: from labels in a store to a small set with weights, with real inputs and a network."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from app.cli.main import main
from app.jobs.summarize import _context
from app.rounds.requests import round_config
from app.views.figures.summary import summary_figure
from core.learning.training import save_model
from core.rounds.approach.presets import resolve_preset
from core.rounds.stages import prepare_inputs, train_model
from core.runtime import Runtime
from core.types import Selection, ignore
from storage.database.store import Store
from storage.importing.tables.readers import read_table
from storage.projects.projects import get_project
from storage.rounds.log import RoundLog
from tests.round_pools import NAMES, Drawn, draw_project


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    for name in ("WINNOW_DATABASE_URL", "WINNOW_ARTIFACTS", "WINNOW_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def shapes(home) -> Drawn:
    """30 labeled pictures and 12 test items."""
    with Store.open(home=home) as store:
        drawn = draw_project(store, 45, n_held_out=12)
        drawn.label(drawn.item_ids[12:42])
        yield drawn


def finish_round_with_a_model(drawn: Drawn) -> None:
    """Store the outputs of a round that a summary reads: its settings and its network."""
    store, log = drawn.store, RoundLog(drawn.store, drawn.project_id)
    project = get_project(store, drawn.project_id)
    row = log.request(round_config(project.settings, project.kind))
    log.start(row.id)
    config = resolve_preset(row.config, Runtime.create(0))
    context, _ = _context(store, drawn.project_id, ignore)
    context = dataclasses.replace(context, config=config)
    model = train_model(context, prepare_inputs(context)).model
    assert model is not None
    path = store.home / "model.safetensors"
    save_model(model, path)
    nothing = np.empty(0, np.int64)
    log.finish(
        row.id,
        arrays={"item_ids": context.snapshot.item_ids, "model": store.artifacts.put_file(path)},
        selection=Selection(item_ids=nothing, scores=nothing.astype(np.float32), strategy="bico"),
        metrics={"settings": dataclasses.asdict(config), "has_model": True},
    )


def output(capsys) -> dict:
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_summary_is_measured_on_held_out_items_and_exported_with_weights(shapes, tmp_path, capsys):
    target = tmp_path / "few"
    assert main(["summarize", "shapes", str(target), "--items", "6", "--json"]) == 0
    result = output(capsys)
    assert (result["size"], result["n_labeled"], result["n_test"]) == (6, 30, 12)
    assert result["measured_on"] == "12 test items"
    assert [worth["model"] for worth in result["accuracy"]] == ["kernel"] and len(result["accuracy"][0]["uniform"]) == 5
    rows = [row.values for row in read_table(target / "labels.csv")]
    assert len(rows) == result["items"] <= 6
    held_out = set(shapes.hashes[:12])
    assert not {row["sha256"] for row in rows} & held_out
    truth = {h: NAMES[shapes.truth[i]] for h, i in zip(shapes.hashes, shapes.item_ids, strict=True)}
    assert all(row["label"] == truth[row["sha256"]] and float(row["weight"]) > 0 for row in rows)
    manifest = json.loads((target / "manifest.json").read_text())
    assert manifest["summary"]["accuracy"] == result["accuracy"] and "cross-entropy" in manifest["summary"]["objective"]
    figure = summary_figure(result["accuracy"], dark=False)
    worth = result["accuracy"][0]
    assert list(figure.data[0].x) == [100 * worth[name] for name in ("everything", "uniform_mean", "summary")]


@pytest.mark.slow
def test_a_joint_summary_needs_a_network_and_then_measures_both_models(shapes, tmp_path, capsys):
    assert main(["summarize", "shapes", "--items", "5", "--joint"]) == 1
    assert "No finished round has trained a network yet" in capsys.readouterr().err
    finish_round_with_a_model(shapes)
    assert main(["summarize", "shapes", str(tmp_path / "a.zip"), "--percent", "20", "--joint", "--json"]) == 0
    first = output(capsys)
    assert [worth["model"] for worth in first["accuracy"]] == ["kernel", "network"]
    assert (first["size"], first["round"], first["joint"]) == (6, 1, True)
    assert main(["summarize", "shapes", str(tmp_path / "b.zip"), "--percent", "20", "--joint", "--json"]) == 0
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_without_held_out_items_a_stated_part_of_the_labels_is_set_aside(home, tmp_path, capsys):
    with Store.open(home=home) as store:
        drawn = draw_project(store, 30)
        drawn.label(drawn.item_ids)
    assert main(["summarize", "shapes", "--items", "4", "--no-weighted"]) == 0
    words = capsys.readouterr().out
    assert "4 of 30 labeled items (unweighted), measured on 6 labeled items set aside (20% of each class" in words
    assert main(["summarize", "shapes", "--items", "31"]) == 1
    assert "31 items was requested; only 30 labeled items can be in it" in capsys.readouterr().err


def test_data_that_cannot_be_summarized_gets_a_message(home, tmp_path, capsys):
    with Store.open(home=home) as store:
        drawn = draw_project(store, 12)
        for asked, sentence in ((["-n", "2"], "Nothing is labeled yet"), ([], "Set the size"), (
            ["-n", "2", "--percent", "3"], "Set the size")):  # fmt: skip
            assert main(["summarize", "shapes", *asked]) == 1
            assert sentence in capsys.readouterr().err
        drawn.label(drawn.of_class(0))
        (tmp_path / "taken").mkdir()
        assert main(["summarize", "shapes", "-n", "2"]) == 1
        assert "All 4 labeled items have the same class" in capsys.readouterr().err
        assert main(["summarize", "shapes", str(tmp_path / "taken"), "-n", "2"]) == 1
        assert "already exists" in capsys.readouterr().err
