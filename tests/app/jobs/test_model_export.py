"""The folder of an exported model: it runs without Winnow and torch, and describes its origin."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import soundfile
import yaml
from PIL import Image

from app.cli.main import main
from app.jobs import operations
from app.jobs.requests import ModelRequest, from_dict, to_dict
from core.types import ignore
from storage.database.store import Store
from storage.projects.projects import get_project
from storage.rounds.log import RoundLog
from tests.app.real_rounds import import_clips, quick_settings, run_round_here
from tests.round_pools import draw_project

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCKER = """
import runpy, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchaudio", "core", "storage", "app", "librosa", "scipy", "onnx"):
            raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocker())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    for name in ("WINNOW_DATABASE_URL", "WINNOW_ARTIFACTS", "WINNOW_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def made_digits(tmp_path_factory) -> tuple[Path, list[Path]]:
    """A store with a project of real clips and a finished round, and the clips as files."""
    folder = tmp_path_factory.mktemp("digits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINNOW_HOME", str(folder / "home"))
        paths = import_clips(folder / "clips")
    with Store.open(home=folder / "home") as store:
        run_round_here(store, get_project(store, "digits").id, quick_settings())
    return folder / "home", paths


@pytest.fixture
def digits(made_digits, home) -> list[Path]:
    template, paths = made_digits
    shutil.copytree(template, home)
    return paths


@pytest.fixture(scope="module")
def exported(made_digits, tmp_path_factory) -> Path:
    """The exported model of that round, for tests that only read it."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINNOW_HOME", str(made_digits[0]))
        assert main(["model", "export", "digits", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def made_shapes(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("shapes") / "home"
    with Store.open(home=home) as store:
        drawn = draw_project(store, 30, n_held_out=6)
        drawn.label(drawn.item_ids[6:18])
        run_round_here(store, drawn.project_id, quick_settings(image_size=16, image_fit="crop"))
    return home


@pytest.fixture
def shapes(made_shapes, home) -> str:
    shutil.copytree(made_shapes, home)
    return "shapes"


def standalone(folder: Path, files: list[Path], cwd: Path) -> tuple[dict[str, list[float]], list[str], str]:
    """predict.py in a process that can load neither torch nor Winnow: probabilities by file, classes, stderr."""
    command = [sys.executable, "-c", BLOCKER, str(folder / "predict.py"), "--all", *map(str, files)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    header, *rows = csv.reader(io.StringIO(done.stdout))
    return {row[0]: [float(value) for value in row[3:]] for row in rows}, header[3:], done.stderr


def own(project: str, files: list[Path], out: Path) -> dict[str, dict]:
    assert main(["predict", project, *map(str, files), "--out", str(out), "--all"]) == 0
    return {row["file"]: row for row in map(json.loads, out.read_text().splitlines())}


def compare(project: str, folder: Path, files: list[Path], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    found, classes, _ = standalone(folder, files, elsewhere)
    wanted = own(project, files, tmp_path / "own.jsonl")
    assert set(found) == {str(path) for path in files} == set(wanted)
    for path, row in wanted.items():
        assert row["error"] is None
        np.testing.assert_allclose(found[path], [row[f"p_{name}"] for name in classes], atol=1e-4)
        assert row["class"] == classes[int(np.argmax(found[path]))]


def varied_clips(folder: Path) -> list[Path]:
    """Rates, channels, lengths and formats that Winnow converts."""
    folder.mkdir()
    rng = np.random.default_rng(0)

    def sound(rate: int, seconds: float, channels: int = 1) -> np.ndarray:
        t = np.arange(int(rate * seconds)) / rate
        glide = np.sin(2 * np.pi * (300 + 200 * t) * t) * np.exp(-((t - seconds * 0.7) ** 2) / 0.05)
        return np.stack([0.4 * glide + 0.01 * rng.standard_normal(len(t)) for _ in range(channels)], 1)

    made = {
        "stereo.wav": (sound(44_100, 0.6, 2), 44_100),
        "phone.wav": (sound(8_000, 0.9), 8_000),
        "long.flac": (sound(22_050, 3.3), 22_050),
        "odd.ogg": (sound(16_000, 0.3337), 16_000),
        "talk.mp3": (sound(48_000, 1.2), 48_000),
        "silent.wav": (np.zeros((4_000, 1)), 16_000),
        "apple.aiff": (sound(32_000, 0.8), 32_000),
    }
    for name, (samples, rate) in made.items():
        soundfile.write(folder / name, samples, rate)
    return [folder / name for name in made]


def varied_pictures(folder: Path) -> list[Path]:
    """Depths, modes, transparency, orientation, sizes and formats that Winnow converts."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    color = Image.fromarray(rng.integers(0, 256, (40, 70, 3), np.uint8)).resize((210, 120))
    turned = Image.Exif()
    turned[0x0112] = 6
    color.save(folder / "turned.jpg", exif=turned)
    color.save(folder / "plain.webp", lossless=True)
    color.convert("P").save(folder / "palette.gif")
    color.convert("1").save(folder / "bits.bmp")
    color.resize((16, 16)).save(folder / "exact.png")
    clear = color.convert("RGBA")
    clear.putalpha(Image.fromarray(rng.integers(0, 256, (120, 210), np.uint8)))
    clear.save(folder / "clear.png")
    Image.fromarray(rng.integers(0, 65_536, (33, 50), np.uint16)).save(folder / "deep.png")
    color.convert("CMYK").save(folder / "print.tiff")
    return sorted(folder.iterdir())


@pytest.mark.slow
def test_predict_py_gives_winnows_predictions_of_clips_without_winnow_and_torch(digits, exported, tmp_path):
    compare("digits", exported, [*digits, *varied_clips(tmp_path / "varied")], tmp_path)


@pytest.mark.slow(2)
def test_predict_py_gives_winnows_predictions_of_pictures_without_winnow_and_torch(shapes, tmp_path):
    assert main(["model", "export", shapes, str(tmp_path / "model")]) == 0
    compare(shapes, tmp_path / "model", varied_pictures(tmp_path / "varied"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "media",
    [
        {"sample_rate": 8_000, "seconds": 0.5, "n_fft": 512, "hop": 128, "n_mels": 24, "f_max": 0.0},
        {"seconds": 0.4, "clip_from": "start", "predict_windows": 3},
        {"seconds": 0.4, "clip_from": "center"},
    ],
    ids=["rate", "windows", "center"],
)
def test_predict_py_follows_the_rounds_own_media_settings(home, tmp_path, media):
    paths = import_clips(tmp_path / "clips")
    with Store.open(home=home) as store:
        run_round_here(store, get_project(store, "digits").id, quick_settings(**media))
    assert main(["model", "export", "digits", str(tmp_path / "model")]) == 0
    described = json.loads((tmp_path / "model" / "preprocess.json").read_text())
    rate = media.get("sample_rate", 16_000)
    assert described["input"]["shape"] == ["batch", round(rate * media["seconds"])]
    steps = {step["step"]: step for step in [*described["outside"], *described["inside"]]}
    assert steps["windows"]["most"] == media.get("predict_windows", 1)
    assert (steps["spectrum"]["n_fft"], steps["mel"]["f_max"]) == (media.get("n_fft", 2048), min(8_000, rate / 2))
    compare("digits", tmp_path / "model", [*paths[:4], *varied_clips(tmp_path / "varied")], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "media",
    [
        {"image_size": 12, "image_width": 20, "image_fit": "fit"},
        {"image_size": 24, "image_width": 16, "image_fit": "stretch", "channels": 1},
    ],
    ids=["borders", "gray"],
)
def test_predict_py_follows_the_size_and_fit_of_pictures(home, tmp_path, media):
    with Store.open(home=home) as store:
        drawn = draw_project(store, 18)
        drawn.label(drawn.item_ids[:9])
        run_round_here(store, drawn.project_id, quick_settings(**media))
    assert main(["model", "export", "shapes", str(tmp_path / "model")]) == 0
    compare("shapes", tmp_path / "model", varied_pictures(tmp_path / "varied"), tmp_path)


def test_predict_py_names_unreadable_files_and_predicts_the_others(made_digits, exported, tmp_path):
    digits = made_digits[1]
    (tmp_path / "bad.wav").write_bytes(b"RIFF no sound")
    found, _, output = standalone(exported, [tmp_path / "bad.wav", digits[0]], tmp_path)
    assert list(found) == [str(digits[0])] and f"{tmp_path / 'bad.wav'} cannot be read" in output


def test_model_json_states_the_origin_of_the_model(digits, tmp_path, home):
    folder = tmp_path / "model"
    assert main(["model", "name", "digits", "1", "first try"]) == 0
    assert main(["model", "export", "digits", str(folder), "--round", "first try"]) == 0
    about = json.loads((folder / "model.json").read_text())
    with Store.open(home=home) as store:
        row = RoundLog(store, get_project(store, "digits").id).latest("finished")
    assert (about["format"], about["round"]["number"], about["round"]["name"]) == ("winnow-model", 1, "first try")
    assert about["settings"] == row.metrics["settings"] and about["seed"] == 0 and about["encoder"] is None
    assert [one["name"] for one in about["classes"]] == ["0", "1", "2"]
    assert all(isinstance(one["id"], int) for one in about["classes"])
    assert about["data"]["labels"] == {"0": 6, "1": 6, "2": 6} and about["data"]["n_test"] == 6
    lines = sorted(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}\t{path.name.split('-')[1]}\n"
        for path in digits
        if not path.name.startswith("dov")
    )
    assert about["data"]["labeled_sha256"] == hashlib.sha256("".join(lines).encode()).hexdigest()
    for name, listed in about["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == listed["sha256"]
    assert {*about["files"], "model.json"} == {path.name for path in folder.iterdir()}
    assert about["network"]["sha256"] == about["files"]["model.safetensors"]["sha256"]
    props = {one.key: one.value for one in onnx.load(folder / "model.onnx").metadata_props}
    assert props["round"] == "1" and json.loads(props["classes"])["names"] == ["0", "1", "2"]


def test_the_accuracy_is_that_of_the_exported_network_on_the_test_files(made_digits, exported, tmp_path):
    about = json.loads((exported / "model.json").read_text())
    test = [path for path in made_digits[1] if path.name.startswith("dov")]
    found, classes, _ = standalone(exported, test, tmp_path)
    right = sum(classes[int(np.argmax(found[str(path)]))] == path.name.split("-")[1] for path in test)
    accuracy = about["test_accuracy"]
    assert (accuracy["correct"], accuracy["n"], accuracy["value"]) == (right, 6, right / 6)
    low, high = accuracy["interval"]
    assert 0 <= low <= right / 6 <= high <= 1
    assert np.asarray(about["confusion"]).sum(1).tolist() == [2, 2, 2]


def test_the_card_has_front_matter_and_a_confusion_picture(exported):
    card = (exported / "README.md").read_text()
    _, front, body = card.split("---\n", 2)
    values = yaml.safe_load(front)
    assert values["pipeline_tag"] == "audio-classification" and values["library_name"] == "onnx"
    accuracy = json.loads((exported / "model.json").read_text())["test_accuracy"]["value"]
    assert values["model-index"][0]["results"][0]["metrics"][0]["value"] == pytest.approx(accuracy, abs=1e-4)
    assert "![Confusion matrix of the test items](confusion.png)" in body
    with Image.open(exported / "confusion.png") as picture:
        assert picture.format == "PNG" and min(picture.size) > 100


def test_an_export_of_labels_names_the_round_its_settings_and_its_model(digits, tmp_path, home, capsys):
    assert main(["model", "name", "digits", "1", "first try"]) == 0
    assert main(["export", "digits", str(tmp_path / "labels")]) == 0
    assert main(["model", "export", "digits", str(tmp_path / "model")]) == 0
    named = json.loads((tmp_path / "labels" / "manifest.json").read_text())["round"]
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    assert (named["number"], named["name"], named["seed"]) == (1, "first try", 0)
    assert named["settings"] == about["settings"] and named["model_sha256"] == about["network"]["sha256"]
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "labels")]) == 0
    assert "Export from round 1 (first try), seed 0: 2 files and 18 rows checked." in capsys.readouterr().out


def test_a_job_exports_a_model_as_a_zip_file(digits, home, tmp_path):
    with Store.open(home=home) as store:
        request = ModelRequest(project_id=get_project(store, "digits").id, target=str(tmp_path / "model.zip"))
        assert from_dict(to_dict(request)) == request
        outcome = operations.run(store, request, ignore)
    assert outcome.error is None and outcome.result["round"] == 1
    subprocess.run(
        [sys.executable, "-m", "zipfile", "-e", str(tmp_path / "model.zip"), str(tmp_path / "out")], check=True
    )
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_two_exports_of_a_round_are_equal(digits, exported, tmp_path):
    assert main(["model", "export", "digits", str(tmp_path / "again")]) == 0
    assert {path.name for path in exported.iterdir()} == {path.name for path in (tmp_path / "again").iterdir()}
    for path in exported.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def test_a_round_without_a_model_is_refused_with_what_to_do(home, tmp_path, capsys):
    with Store.open(home=home) as store:
        drawn = draw_project(store, 12)
        run_round_here(store, drawn.project_id, quick_settings(image_size=16))
    assert main(["model", "export", "shapes", str(tmp_path / "model"), "--round", "1"]) == 1
    assert "Round 1 trained no model" in capsys.readouterr().err
    assert main(["model", "export", "shapes", str(tmp_path / "model")]) == 1
    assert "run a round" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_pictures_of_a_round_that_stored_no_normalization_are_normalized_the_same_way(shapes, home, tmp_path):
    """Rounds of older versions: mean and scale are computed again from the round's items."""
    assert main(["model", "export", shapes, str(tmp_path / "new")]) == 0
    with Store.open(home=home) as store, store.write() as connection:
        connection.exec_driver_sql("UPDATE rounds SET metrics = json_remove(metrics, '$.normalization')")
    assert main(["model", "export", shapes, str(tmp_path / "old")]) == 0
    assert (tmp_path / "old" / "model.onnx").read_bytes() == (tmp_path / "new" / "model.onnx").read_bytes()
