"""Encoders from the command line to the predictions of a round: added, used, removed, replaced, fetched."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from app.cli.main import main
from app.jobs.embeddings import add_embeddings
from app.jobs.operations import keep_embeddings
from app.jobs.requests import EmbeddingsRequest
from app.rounds import requests as round_requests
from app.rounds.model import open_round_model
from app.rounds.stored_audition import preferred_encoder, stored_audition
from app.rounds.stored_round import past_rounds
from app.rounds.timing import estimates
from app.simulation.settings import apply_changes
from core.config import EncoderConfig, preset
from core.encoders.folders import encoders_folder, feature_key
from core.errors import InvalidInput, NotFound
from core.types import ignore
from storage.database.store import Store
from storage.exporting.provenance import round_provenance
from storage.projects.projects import list_projects
from storage.rounds.log import RoundLog
from storage.rounds.row_cache import FolderRowCache
from tests.app.real_rounds import import_clips, run_here, run_round_here
from tests.core.encoders import tiny

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    found = Store.open()
    yield found
    found.close()


def settings(name: str = "tiny"):
    config = preset("encoder")
    selection = dataclasses.replace(config.selection, batch_size=3)
    return dataclasses.replace(config, selection=selection, encoder=EncoderConfig(name=name))


def add(tmp_path, *options: str, **changes) -> int:
    folder = tiny.write(tmp_path / "given" / changes.get("title", "first"), tiny.linear(), **changes)
    return main(["encoders", "add", str(folder), *options])


@pytest.mark.slow
def test_a_round_with_an_encoder_predicts_files_and_reports_a_changed_or_removed_encoder(store, tmp_path, capsys):
    paths = import_clips(tmp_path / "clips")
    assert add(tmp_path) == 0
    project = list_projects(store)[0]
    row = run_round_here(store, project.id, settings())
    assert row.status == "finished", row.error
    assert row.metrics["settings"]["encoder"]["name"] == "tiny"
    identity = row.metrics["settings"]["encoder"]["identity"]
    exported_from = round_provenance(store, project.id)
    assert exported_from is not None and exported_from["encoder"] == {"name": "tiny", "identity": identity}
    assert {"encode", "train", "select", "map"} <= set(row.metrics["seconds"])
    assert "features" not in row.metrics["seconds"]
    found = open_round_model(store, project.id)
    cached = FolderRowCache(store.home / "cache" / "rows").rows(feature_key(identity), found.snapshot.hashes, None)
    assert np.isfinite(cached.take(np.arange(len(cached)))).all(), "every item was encoded and cached"

    assert main(["predict", "digits", "--out", str(tmp_path / "predicted.csv"), str(paths[0].parent)]) == 0
    with open(tmp_path / "predicted.csv", encoding="utf-8-sig") as file:
        assert len(list(csv.DictReader(file))) == len(paths)
    with open(tmp_path / "predicted.csv", encoding="utf-8-sig") as file:
        by_app = {Path(one["file"]).name: one for one in csv.DictReader(file)}
    assert main(["model", "export", "digits", str(tmp_path / "model")]) == 0
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    assert (about["encoder"]["identity"], about["encoder"]["included"]) == (identity, True)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "model" / "predict.py"), str(paths[0]), str(paths[-1])],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    for one in csv.DictReader(done.stdout.splitlines()):
        same = by_app[Path(one["file"]).name]
        assert one["class"] == same["class"]
        assert float(one["confidence"]) == pytest.approx(float(same["confidence"]), abs=1e-3)

    assert add(tmp_path, title="another") == 1
    assert "There is another encoder called tiny" in capsys.readouterr().err
    assert add(tmp_path, "--replace", title="another") == 0
    with pytest.raises(InvalidInput, match="was replaced by another one of the same name"):
        open_round_model(store, project.id)
    assert main(["encoders", "remove", "tiny"]) == 0
    with pytest.raises(NotFound, match="The encoder tiny of this round was removed"):
        open_round_model(store, project.id)
    assert found.of.log.get(row.id).status == "finished"


def test_embeddings_from_elsewhere_are_used_by_a_round(store, tmp_path, capsys):
    paths = import_clips(tmp_path / "clips")
    vectors = np.random.default_rng(0).normal(size=(len(paths), 5))
    vectors[:, 0] += [10 * int(path.name.split("-")[1]) for path in paths]
    np.save(tmp_path / "mine.npy", vectors[1:])
    (tmp_path / "mine.txt").write_text("".join(f"{path.name}\n" for path in paths[1:]))
    assert main(["embeddings", "digits", str(tmp_path / "mine.npy")]) == 0
    said = capsys.readouterr().out
    assert "23 of 24 items have embeddings of 5 numbers" in said
    assert f"1 item has none: left out, such as {paths[0].name}" in said
    row = run_round_here(store, list_projects(store)[0].id, settings("mine"))
    assert row.status == "finished", row.error
    assert any("1 of 24 items have no features of the encoder mine" in note for note in row.notes)

    capsys.readouterr()
    assert main(["summarize", "digits", str(tmp_path / "few"), "--items", "4", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["encoder"], summary["kernel"], summary["items"]) == ("mine", None, 4)
    assert [one["model"] for one in summary["accuracy"]] == ["encoder"]


def test_an_upload_of_embeddings_is_one_table_with_its_keys(store, tmp_path):
    paths = import_clips(tmp_path / "clips")
    project = list_projects(store)[0]
    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32))
    (tmp_path / "v.txt").write_text("".join(f"{path.name}\n" for path in paths[:3]))

    def upload(name: str, *files: str) -> Path:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for file in files:
                archive.write(tmp_path / "v.txt" if file.endswith(".txt") else tmp_path / "v.npy", file)
        return tmp_path / name

    source = upload("a.zip", "../x/v.npy", "other.txt")
    request = EmbeddingsRequest(project_id=project.id, source=str(source), name="given")
    done = keep_embeddings(store, request, ignore)
    assert (done["items"], done["of"], done["n_missing"]) == (3, 24, 21) and paths[3].name in done["missing"]
    with pytest.raises(InvalidInput, match="needs its keys"):
        add_embeddings(store, project, upload("b.zip", "v.npy"), "second")
    with pytest.raises(InvalidInput, match="has 2 files of embeddings"):
        add_embeddings(store, project, upload("c.zip", "v.npy", "w.npy", "v.txt"), "second")


def test_a_bad_folder_is_refused_and_nothing_is_kept(store, tmp_path, capsys):
    folder = tiny.write(tmp_path / "given", tiny.linear(), output={"dimension": 7})
    assert main(["encoders", "add", str(folder)]) == 1
    assert "must have the size 7" in capsys.readouterr().err
    assert main(["encoders", "list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["efficientnet-lite0"]


class Hub(BaseHTTPRequestHandler):
    """The responses to huggingface_hub's requests for one small repository."""

    commit = "a" * 40
    files: dict[str, bytes]
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if "/tree/" in self.path:
            found = [{"type": "file", "path": name, "size": len(self.files[name]), "oid": name} for name in self.files]
            self.answer(json.dumps(found).encode(), "api")
        elif self.path.startswith("/api/models/me/tiny"):
            names = [{"rfilename": name} for name in self.files]
            self.answer(json.dumps({"id": "me/tiny", "sha": self.commit, "siblings": names}).encode(), "api")
        elif (name := self.path.split("?")[0].rsplit("/", 1)[-1]) in self.files:
            self.answer(self.files[name], name)
        else:
            self.send_error(404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, body: bytes, tag: str) -> None:
        self.send_response(200)
        for key, value in {
            "Content-Length": str(len(body)), "ETag": f'"{tag}"', "X-Repo-Commit": self.commit,
            "Content-Type": "application/json" if tag == "api" else "application/octet-stream",
        }.items():  # fmt: skip
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.mark.slow
def test_an_encoder_is_fetched_from_a_hub_onnx_and_json_only(tmp_path):
    folder = tiny.write(tmp_path / "given", tiny.linear())
    names = ("encoder.onnx", "encoder.json")
    Hub.files = {name: (folder / name).read_bytes() for name in names} | {"run_me.py": b"print('no')"}
    Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        **os.environ, "WINNOW_HOME": str(tmp_path / "home"), "HF_HOME": str(tmp_path / "hub"),
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [sys.executable, "-m", "app", "encoders", "add", "hf:me/tiny", "--json"]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "tiny"
    assert not any("run_me.py" in path for path in Hub.asked)


def automatic():
    """The preset `auto` with as little training as possible."""
    changes = {
        "training.steps": 4, "training.labeled_batch": 6, "training.unlabeled_batch": 6, "training.bank_views": 0,
        "training.predict_views": 0, "training.refine_steps": 2, "selection.n_views": 0, "selection.batch_size": 3,
        "map.n_neighbors": 500,
    }  # fmt: skip
    return apply_changes(preset("auto"), changes)


def test_the_preset_auto_decides_and_says_why_and_a_replay_gives_the_same(store, tmp_path, capsys):
    import_clips(tmp_path / "clips")
    assert add(tmp_path) == 0
    project = list_projects(store)[0]
    row = run_round_here(store, project.id, automatic())
    assert row.status == "finished", row.error
    settled = row.metrics["settings"]
    assert (settled["preset"], settled["encoder"]["identity"]) == ("laptop", "")  # the encoder is a random projection
    note = row.metrics["approach"]["note"]
    assert note in row.notes and note.startswith("Automatic: training from scratch: ")
    assert note.endswith("in cross-validation on 18 labels.")
    assert {"encode", "decide", "train", "rival"} <= set(row.metrics["seconds"])
    seconds = estimates.estimate(store, project.id, automatic())
    assert seconds.source == "last round" and seconds.seconds["rival"] == row.metrics["seconds"]["rival"]
    assert past_rounds(RoundLog(store, project.id), row.id)[0].classes.shape == (24, 2)
    again = run_round_here(store, project.id, automatic())
    assert again.metrics["settings"]["preset"] == "laptop" and "rival" in again.metrics["seconds"]
    replay = run_here(store, project.id, round_requests.request_replay(store, project.id, row.id))
    assert replay.metrics["replay"]["same"] and replay.metrics["settings"] == settled

    capsys.readouterr()
    assert main(["encoders", "audition", "digits", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["rows"]] == ["tiny", "none"] and found["best"] == "tiny"
    assert all(one["n"] == 18 and one["low"] <= one["right"] / 18 <= one["high"] for one in found["rows"])
    assert main(["encoders", "audition", "digits"]) == 0
    assert "Automatic compares this one with training from scratch" in capsys.readouterr().out
    project = list_projects(store)[0]
    assert stored_audition(project) == found  # not computed again: the seconds are the same
    assert preferred_encoder(project) == ("tiny", found["identity"])
    assert main(["encoders", "remove", "tiny"]) == 0
    nodes = [helper.make_node(*one) for one in (("Neg", ["x"], ["n"]), ("Sqrt", ["n"], ["r"]), ("Sqrt", ["x"], ["s"]))]
    nodes += [helper.make_node("Add", ["r", "s"], ["t"]), helper.make_node("MatMul", ["t", "W"], ["y"])]
    broken = tiny.model(nodes, {"W": tiny.weights()}, ["batch", tiny.WINDOW], ["batch", tiny.WIDTH])
    tiny.write(encoders_folder(store.home) / "broken", broken, name="broken")
    silent = run_round_here(store, project.id, automatic())
    assert silent.metrics["settings"]["preset"] == "laptop" and "rival" not in silent.metrics["seconds"]
    assert silent.metrics["approach"]["note"] == "Automatic: training from scratch: encoder broken gives no features."
    assert main(["encoders", "remove", "broken"]) == 0
    without = run_round_here(store, project.id, automatic())
    assert without.metrics["settings"]["preset"] == "laptop" and "approach" not in without.metrics
