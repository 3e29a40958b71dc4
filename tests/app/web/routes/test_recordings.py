"""Windows in the browser: their sound, their context and the strip of the recording."""

from __future__ import annotations

import dataclasses
import io
import json
import uuid

import numpy as np
import pytest
import soundfile
from sqlalchemy import update

from app.web.routes.cards import cards
from app.web.routes.media import media_path
from app.web.routes.recordings import recording_path
from storage.database.schema import Item
from storage.importing.open import open_source
from storage.importing.run import ImportOptions, run_import
from storage.labeling.events import LabelInput
from storage.labeling.pool import Pool
from storage.media.windows import WindowOptions
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import create_project, get_project, update_project
from tests.app.finished_rounds import ask_again, finish_round
from tests.storage.pools import read_item

RATE = 8_000


@pytest.fixture(params=["wav", "flac"])
def windows(request, page_store, tmp_path):
    """The windows of a recording of twenty seconds."""
    (tmp_path / "in").mkdir()
    values = np.random.default_rng(0).uniform(-0.5, 0.5, 20 * RATE)
    soundfile.write(tmp_path / "in" / f"night.{request.param}", values, RATE)
    project = create_project(page_store, "night", "audio", ["owl", "fox"])
    run_import(page_store, project.id, open_source(tmp_path / "in"), ImportOptions(windows=WindowOptions(seconds=2)))
    return Pool(page_store, project.id).items()


def test_a_window_is_served_as_its_own_wav_with_ranges_and_drawings(get, windows, page_store):
    item = windows[3]
    data = read_item(page_store, item.id)
    whole = get(media_path(item, "file"))
    assert (whole.status, whole.body, whole.headers["content-type"]) == (200, data, "audio/wav")
    assert get(media_path(item, "file"), range="bytes=0-3").body == b"RIFF"
    sound = json.loads(get(media_path(item, "sound.json")).body)
    assert sound["seconds"] == 2.0
    for part in ("spectrogram.png", "thumb.png", "model.png"):
        assert get(media_path(item, part)).body.startswith(b"\x89PNG")


def test_a_card_says_which_channel_the_model_is_given(windows, page_store, get):
    project, ann = get_project(page_store, windows[0].project_id), annotator_named(page_store, "ada").id
    with page_store.write() as connection:
        connection.execute(update(Item).where(Item.id == windows[0].id).values(channels=4))
    assert "channel" not in _why(page_store, project.id, windows[0].id, ann)
    update_project(page_store, project.id, settings=dataclasses.replace(project.settings, media={"audio_channel": 2}))
    assert "The model receives only channel 2 of 4." in _why(page_store, project.id, windows[0].id, ann)
    assert "channel" not in _why(page_store, project.id, windows[1].id, ann), "a file with one channel has no other"


def _why(store, project_id, item_id, annotator) -> str:
    item = Pool(store, project_id).item(item_id)
    return cards(store, get_project(store, project_id), annotator, [item])[0]["why"]


def test_the_context_is_the_seconds_around_the_window_within_the_recording(get, windows):
    first, middle = recording_path(windows[0]), recording_path(windows[4])
    begin = json.loads(get(f"{first}/context.json").body)
    assert (begin["seconds"], begin["start"], round(begin["end"], 4)) == (7.0, 0.0, round(2 / 7, 4))
    around = json.loads(get(f"{middle}/context.json").body)
    assert (around["seconds"], round(around["start"], 4), round(around["end"], 4)) == (12.0, 0.4167, 0.5833)
    sound = get(f"{middle}/context.wav")
    samples = soundfile.read(io.BytesIO(sound.body), dtype="int16")[0]
    inside = soundfile.read(io.BytesIO(get(media_path(windows[4], "file")).body), dtype="int16")[0]
    assert len(samples) == 12 * RATE and np.array_equal(samples[5 * RATE : 7 * RATE], inside)
    assert get(f"{middle}/context.png").body.startswith(b"\x89PNG")


def test_the_strip_shows_labeled_stretches_and_the_place(get, windows, page_store):
    project = windows[0].project_id
    owl, fox = (row.id for row in list_classes(page_store, project))
    given = [(0, owl), (1, owl), (5, fox)]
    events = [
        LabelInput(uuid=str(uuid.uuid4()), item_id=windows[row].id, kind="label", class_id=label)
        for row, label in given
    ]
    Pool(page_store, project).apply(events, annotator=annotator_named(page_store, "ada").id)
    strip = json.loads(get(f"{recording_path(windows[2])}/strip.json").body)
    assert (strip["seconds"], strip["start"], strip["end"], strip["number"], strip["of"]) == (20.0, 4.0, 6.0, 3, 10)
    assert [(one["start"], one["end"], one["name"]) for one in strip["labels"]] == [
        (0.0, 4.0, "owl"),
        (10.0, 12.0, "fox"),
    ]
    assert strip["predictions"] == []


def test_the_strip_shows_predictions_where_suggestions_are_always_shown(get, windows, page_store):
    project = get_project(page_store, windows[0].project_id)
    finish_round(page_store, project, [0])
    path = f"{recording_path(windows[2])}/strip.json"
    found = json.loads(get(path).body)["predictions"]
    assert [(one["start"], one["end"], one["name"]) for one in found] == [
        (2.0 * k, 2.0 * k + 2, ("owl", "fox")[k % 2]) for k in range(10) if k != 2
    ], "every window but the one that is labeled now"
    assert {one["confidence"] for one in found} == {0.8}
    for change in ({"suggestions": "hide"}, {"suggestions": "random"}, {"suggestions": "show", "labels_per_item": 2}):
        settings = dataclasses.replace(project.settings, **change)
        update_project(page_store, project.id, settings=settings)
        assert json.loads(get(path).body)["predictions"] == []


def test_the_strip_does_not_show_the_label_that_a_second_look_is_about(get, windows, page_store):
    project, ann = windows[0].project_id, annotator_named(page_store, "ada").id
    pool, owl = Pool(page_store, project), list_classes(page_store, project)[0].id
    for item in (windows[2], windows[5]):
        pool.label(item.id, owl, annotator=ann)
    ask_again(page_store, project, windows[2].id)
    labels = json.loads(get(f"{recording_path(windows[2])}/strip.json").body)["labels"]
    assert [one["start"] for one in labels] == [10.0]
    pool.label(windows[2].id, owl, annotator=ann)
    labels = json.loads(get(f"{recording_path(windows[2])}/strip.json").body)["labels"]
    assert [one["start"] for one in labels] == [4.0, 10.0]


def test_parts_of_other_items_and_without_a_session_are_refused(get, windows, page_store, tmp_path):
    path = recording_path(windows[0])
    assert get(f"{path}/strip.json", cookie="").status == 401
    assert get(f"{path}/other.json").status == 404
    assert get(path.replace(windows[0].sha256, windows[1].sha256) + "/strip.json").status == 404
    (tmp_path / "clip").mkdir()
    soundfile.write(tmp_path / "clip" / "a.wav", np.zeros(800), RATE)
    project = create_project(page_store, "clips", "audio", ["a"])
    run_import(page_store, project.id, open_source(tmp_path / "clip"))
    [clip] = Pool(page_store, project.id).items()
    assert recording_path(clip) is None
    assert get(f"/api/recordings/{clip.project_id}/{clip.id}/{clip.sha256}/strip.json").status == 404
    [card] = cards(page_store, get_project(page_store, project.id), annotator_named(page_store, "ada").id, [clip])
    assert card["window"] is None


def test_a_missing_recording_is_reported_and_marks_all_its_windows(get, windows, page_store):
    page_store.media.path(windows[0].recording_sha256).unlink()
    assert get(media_path(windows[0], "file")).status == 404
    assert {item.condition for item in Pool(page_store, windows[0].project_id).items()} == {"missing"}
