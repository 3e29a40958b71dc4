"""Media and learning settings of a project: derived, stored, changed, and used by its rounds."""

from __future__ import annotations

import dataclasses
import json

import pytest

from app.cli.main import main
from app.rounds import learning_settings, media_settings
from app.rounds import requests as round_requests
from core.config import MediaConfig, RoundConfig, from_dict, from_json, preset, to_json
from core.errors import InvalidInput
from core.rounds.approach.presets import resolve_preset
from core.runtime import Runtime
from storage.importing.open import open_source
from storage.importing.run import run_import
from storage.media.measures import pool_measures
from storage.projects import projects
from storage.rounds.log import RoundLog
from tests.core.media.samples import tone, wav


@pytest.fixture
def five_seconds(sqlite_store, tmp_path):
    """A project with clips of 5 s and one of 8 s, and a test clip of 60 s, which the settings do not depend on."""
    folder = tmp_path / "clips"
    folder.mkdir()
    for k in range(30):
        (folder / f"{k}.wav").write_bytes(wav(tone(100 + 10 * k, 5.0, rate=2_000), 2_000))
    (folder / "long.wav").write_bytes(wav(tone(440, 8.0, rate=2_000), 2_000))
    (folder / "test.wav").write_bytes(wav(tone(470, 60.0, rate=2_000), 2_000))
    rows = [f"{k}.wav,,pool" for k in range(30)] + ["long.wav,,pool", "test.wav,,test"]
    (folder / "manifest.csv").write_text("path,label,split\n" + "\n".join(rows) + "\n")
    project = projects.create_project(sqlite_store, "clips", "audio", ["a", "b"])
    run_import(sqlite_store, project.id, open_source(folder / "manifest.csv"))
    return sqlite_store, project.id


def test_the_first_request_stores_settings_that_fit_the_pool(five_seconds):
    store, project_id = five_seconds
    project = projects.get_project(store, project_id)
    assert media_settings.of_project(store, project).origin == "pool" and project.settings.media == {}
    row = round_requests.request_round(store, project_id)
    stored = projects.get_project(store, project_id).settings.media
    assert stored["seconds"] == 5.0 == row.config.media.seconds
    assert row.config.media.input_shape("audio") == (32, 63, 1)
    assert json.loads(to_json(row.config.media)) == stored
    sentence = media_settings.what_is_lost("audio", row.config.media, pool_measures(store, project_id))
    assert sentence.startswith("1 of 31 clips is longer than 5 s: the model learns from their loudest 5 s.")


def test_frequencies_that_are_lost_are_named_and_can_be_kept(five_seconds):
    """The rate of the clips is 2 kHz."""
    store, project_id = five_seconds
    project, measures = projects.get_project(store, project_id), pool_measures(store, project_id)
    derived = media_settings.of_project(store, project).config
    assert "Frequencies" not in media_settings.what_is_lost("audio", derived, measures)
    low = media_settings.change(store, project, {"f_max": 500.0}).settings.media
    sentence = media_settings.what_is_lost("audio", from_dict(MediaConfig, low), measures)
    assert sentence.endswith(" Frequencies above 500 Hz are left out; 31 clips have a sample rate for them.")
    with pytest.raises(InvalidInput, match=r"up to 12,000 Hz need a sample rate of 24,000 Hz or more .* it is 16,000"):
        media_settings.change(store, project, {"f_max": 12_000.0})
    high = media_settings.change(store, project, {"f_max": 12_000.0, "sample_rate": 24_000}).settings.media
    assert from_dict(MediaConfig, high).f_top == 12_000 and high["hop"] * 63 > 24_000 * 5 > high["hop"] * 62


def test_a_project_with_rounds_keeps_the_settings_of_its_rounds(five_seconds):
    store, project_id = five_seconds
    RoundLog(store, project_id).request(preset("smoke"))  # as an older version did: nothing stored with the project
    project = projects.get_project(store, project_id)
    assert media_settings.fix(store, project_id).settings.media == {}
    assert media_settings.of_project(store, project).config == MediaConfig(channels=1)
    changed = media_settings.change(store, project, {"seconds": 5.0})
    assert round_requests.round_config(changed.settings, "audio").media.seconds == 5.0


def test_hop_and_window_follow_the_length_unless_they_are_given(five_seconds):
    store, project_id = five_seconds
    project = projects.get_project(store, project_id)
    longer = media_settings.change(store, project, {"seconds": 8.0}).settings.media
    assert longer["seconds"] == 8.0 and 1 + 128_000 // longer["hop"] <= 64
    own = media_settings.change(store, project, {"seconds": 2.0, "hop": 400}).settings.media
    assert own["hop"] == 400


def test_changes_reach_the_round_and_survive_a_replay(five_seconds):
    store, project_id = five_seconds
    project = projects.get_project(store, project_id)
    learning_settings.change(store, project, ["training.method=mixmatch", "kernel.network=wrn", "preset=smoke"])
    config = round_requests.request_round(store, project_id, changes={"kernel.n_landmarks": 7}).config
    assert (config.training.method, config.kernel.network, config.kernel.n_landmarks) == ("mixmatch", "wrn", 7)
    assert config.preset == "smoke" and config.training.steps == preset("smoke").training.steps
    assert from_json(RoundConfig, to_json(config)) == config
    project = projects.get_project(store, project_id)
    assert "kernel.n_landmarks" not in project.settings.changes  # of that round alone
    assert round_requests.round_config(project.settings, "audio").kernel.n_landmarks == 32


def test_a_worker_that_resolves_auto_keeps_changed_settings(five_seconds):
    store, project_id = five_seconds
    project = projects.get_project(store, project_id)
    changes = {"training.method": "mixmatch", "selection.n_views": 3, "training.align": "uniform"}
    project = learning_settings.change(store, project, changes)
    config = resolve_preset(round_requests.round_config(project.settings, "audio"), Runtime.create(0, "cpu"))
    laptop = preset("laptop")
    assert config.preset == "laptop" and config.training == dataclasses.replace(
        laptop.training, method="mixmatch", align="uniform"
    )
    assert config.selection.n_views == 3 and config.selection.proxy == laptop.selection.proxy


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("training.method=magic", "'fixmatch', 'mixmatch', 'supervised'"),
        ("training.network=vgg", "There is no network 'vgg'"),
        ("kernel.network=vgg", "There is no kernel called 'vgg'"),
        ("selection.strategy=best", "There is no strategy 'best'"),
        ("media.seconds=900", "Clips of 900"),
        ("media.image_fit=zoom", "'stretch', 'crop', 'fit'"),
        ("training.steps", "write it like training.steps=1500"),
        ("nothing.steps=1", "There is no section 'nothing'"),
        ("training.nothing=1", "Unknown settings for TrainingConfig: nothing"),
        ("preset=huge", "'auto', 'encoder', 'paper', 'laptop', 'smoke'"),
    ],
)
def test_bad_values_get_one_sentence_and_nothing_is_stored(five_seconds, change, words):
    store, project_id = five_seconds
    project = projects.get_project(store, project_id)
    with pytest.raises(InvalidInput, match=words):
        learning_settings.change(store, project, ["training.epochs=3", change])
    assert projects.get_project(store, project_id).settings == project.settings


def test_listed_settings_show_the_preset_and_what_a_change_costs(five_seconds):
    store, project_id = five_seconds
    project = projects.get_project(store, project_id)
    assert not any(view.changed for view in learning_settings.listed(store, project))
    project = learning_settings.change(store, project, {"training.steps": 4_200, "kernel.network": "fnn"})
    views = {view.setting.name: view for view in learning_settings.listed(store, project)}
    assert [name for name, view in views.items() if view.changed] == ["training.steps", "kernel.network"]
    steps = views["training.steps"]
    assert (steps.value, steps.preset_value) == (4_200, 2_100)
    assert steps.seconds == pytest.approx(2_100 * 0.04 * (0.3 + 0.7 * 32 * 63 / 1_024), rel=0.01)
    project = learning_settings.unset(store, project, ["training.steps", "kernel.network"])
    assert not any(view.changed for view in learning_settings.listed(store, project))


def test_the_command_line_shows_and_changes_settings(five_seconds, capsys, monkeypatch):
    store, _ = five_seconds
    monkeypatch.setenv("WINNOW_HOME", str(store.home))
    assert main(["settings", "clips", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["media"]["seconds"] == 5.0 and found["media_origin"] == "pool" and found["changed"] == {}
    assert main(["settings", "clips", "--set", "media.seconds=3", "--set", "training.method=mixmatch"]) == 0
    text = capsys.readouterr().out
    assert "media.seconds = 3.0" in text and "training.method = mixmatch  (changed from fixmatch" in text
    assert "31 of 31 clips are longer than 3 s" in text
    assert main(["settings", "clips", "--unset", "media", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["media"]["seconds"] == 5.0
    assert main(["round", "clips", "--no-wait", "--set", "kernel.network=fnn", "--json"]) == 0
    capsys.readouterr()
    assert RoundLog(store, 1).latest().config.kernel.network == "fnn"
    assert main(["round", "clips", "--no-wait", "--set", "kernel.network=huge"]) == 1
    assert "There is no kernel called 'huge'" in capsys.readouterr().err


def test_the_preset_of_one_round_can_be_set_beside_other_settings(five_seconds, capsys, monkeypatch):
    store, project_id = five_seconds
    monkeypatch.setenv("WINNOW_HOME", str(store.home))
    assert main(["round", "clips", "--no-wait", "--set", "preset=huge"]) == 1
    assert "'auto', 'encoder', 'paper', 'laptop', 'smoke'" in capsys.readouterr().err
    assert RoundLog(store, project_id).latest() is None
    changes = ["--set", "preset=paper", "--set", "seed=4", "--set", "training.method=fixmatch"]
    assert main(["round", "clips", "--no-wait", *changes]) == 0
    config = RoundLog(store, project_id).latest().config
    expected = preset("paper", seed=4)
    assert (config.seed, config.kernel.network, config.training.method) == (4, expected.kernel.network, "fixmatch")
    assert config.training.network == expected.training.network == "wrn-28-10"
    assert projects.get_project(store, project_id).settings.preset == "auto"
