"""A real round on the windows of recordings: prepared, trained, predicted and picked like files."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
import soundfile

from storage.importing.open import open_source
from storage.importing.run import ImportOptions, run_import
from storage.labeling.events import LabelInput
from storage.labeling.pool import Pool
from storage.media.windows import WindowOptions
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import create_project
from storage.rounds.log import RoundLog
from tests.app.real_rounds import quick_settings, run_round_here

pytestmark = pytest.mark.usefixtures("one_thread")
RATE = 8_000


def tones(n_seconds: int) -> np.ndarray:
    """A low and a high tone that alternate every second, with noise."""
    time = np.arange(n_seconds * RATE) / RATE
    hertz = np.where(time.astype(int) % 2 == 0, 400, 2_000)
    return 0.3 * np.sin(2 * np.pi * hertz * time) + 0.01 * np.random.default_rng(0).standard_normal(len(time))


def test_a_round_on_windows_predicts_every_one_and_picks_no_neighbors(sqlite_store, tmp_path):
    store = sqlite_store
    (tmp_path / "in").mkdir()
    soundfile.write(tmp_path / "in" / "night.flac", tones(30), RATE)
    soundfile.write(tmp_path / "in" / "test.wav", tones(12)[RATE:], RATE)
    project = create_project(store, "tones", "audio", ["low", "high"]).id
    run_import(store, project, open_source(tmp_path / "in"), ImportOptions(windows=WindowOptions(seconds=1)))
    low, high = (row.id for row in list_classes(store, project))
    items = sorted(Pool(store, project).items(), key=lambda item: (item.recording_sha256, item.first_frame))
    night = [item for item in items if item.name.startswith("night")]
    events = [
        LabelInput(uuid=str(uuid.uuid4()), item_id=item.id, kind="label", class_id=low if second % 2 == 0 else high)
        for second, item in enumerate(night[:8])
    ]
    Pool(store, project).apply(events, annotator=annotator_named(store, "ada").id)
    done = run_round_here(store, project, quick_settings(sample_rate=RATE, f_max=0.0, seconds=1.0))
    assert done.status == "finished" and not any("cannot be read" in note for note in done.notes)
    log = RoundLog(store, project)
    assert log.arrays(done.id, "probabilities").shape == (41, 2)
    picks = [next(item for item in items if item.id == pick.item_id) for pick in log.picks(done.id)]
    assert len(picks) == 4
    for one in picks:
        for other in picks:
            if one.id < other.id and one.recording_sha256 == other.recording_sha256:
                assert abs(one.first_frame - other.first_frame) > RATE
    snapshot = Pool(store, project).snapshot(done)
    assert snapshot.windows is not None and snapshot.groups is not None
