"""The experiment of record: its data, its settings and its claims, without the long computation."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from core.errors import InvalidInput, NotFound
from experiments import active_learning, labeled_sets


def rows_of(path: Path) -> list[tuple[str, ...]]:
    with path.open(newline="") as lines:
        return [tuple(row) for row in csv.reader(lines)]


def test_public_downloads_become_manifests_by_their_own_split(tmp_path):
    recordings = tmp_path / "fsdd" / "recordings"
    recordings.mkdir(parents=True)
    for name in ("3_theo_4", "3_theo_5", "0_george_49"):
        (recordings / f"{name}.wav").touch()
    assert rows_of(labeled_sets.manifest("fsdd", tmp_path, tmp_path, True)) == [
        ("path", "label", "split"),
        ("recordings/0_george_49.wav", "zero", "pool"),
        ("recordings/3_theo_4.wav", "three", "test"),
        ("recordings/3_theo_5.wav", "three", "pool"),
    ]
    words = tmp_path / "speech_commands"
    for word in labeled_sets.WORDS:
        (words / word).mkdir(parents=True)
    for name in ("a", "b", "c"):
        (words / "yes" / f"{name}.wav").touch()
    (words / "testing_list.txt").write_text("yes/b.wav\nbed/x.wav\n")
    (words / "validation_list.txt").write_text("yes/c.wav\n")
    assert rows_of(labeled_sets.manifest("speech_commands", tmp_path, tmp_path, True))[1:] == [
        ("yes/a.wav", "yes", "pool"),
        ("yes/b.wav", "yes", "test"),
    ]
    with pytest.raises(NotFound, match="Unpack https://storage"):
        labeled_sets.manifest("mnist", tmp_path, tmp_path, True)


def test_the_split_by_speaker_tests_on_one_voice_alone(tmp_path):
    recordings = tmp_path / "fsdd" / "recordings"
    recordings.mkdir(parents=True)
    for name in ("3_theo_4", "3_theo_5", "0_george_0", "0_george_49", "1_lucas_2"):
        (recordings / f"{name}.wav").write_bytes(name.encode())

    def asked(*arguments: str):
        given = active_learning.parser().parse_args(["--data", str(tmp_path), *arguments])
        return active_learning.question(given, tmp_path / "runs" / active_learning.name_of(given))

    found = Path(asked("--split", "speaker", "--speaker", "theo").data)
    assert rows_of(found)[1:] == [
        ("recordings/0_george_0.wav", "zero", "pool"),
        ("recordings/0_george_49.wav", "zero", "pool"),
        ("recordings/1_lucas_2.wav", "one", "pool"),
        ("recordings/3_theo_4.wav", "three", "test"),
        ("recordings/3_theo_5.wav", "three", "test"),
    ]
    assert (found.parent / "recordings" / "3_theo_5.wav").read_bytes() == b"3_theo_5"
    other = asked("--split", "speaker", "--speaker", "lucas")
    assert [row[2] for row in rows_of(Path(other.data))[1:]] == ["pool", "pool", "test", "pool", "pool"]
    assert Path(asked().data) == (tmp_path / "fsdd" / "manifest.csv").resolve()
    with pytest.raises(InvalidInput, match="george, lucas, theo"):
        asked("--split", "speaker")
    with pytest.raises(InvalidInput, match="no split by speaker"):
        asked("--dataset", "mnist", "--split", "speaker")


def test_digits_become_pictures_with_the_same_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 28, 28), np.uint8)
    (tmp_path / "mnist").mkdir()
    labels = np.array([7, 0, 9], np.uint8)
    np.savez(tmp_path / "mnist" / "mnist.npz", x_train=pixels, y_train=labels, x_test=pixels[:1], y_test=labels[:1])
    found = labeled_sets.manifest("mnist", tmp_path, tmp_path / "out", True)
    assert [row[1:] for row in rows_of(found)[1:]] == [
        ("seven", "pool"), ("zero", "pool"), ("nine", "pool"), ("seven", "test"),
    ]  # fmt: skip
    assert np.array_equal(np.asarray(Image.open(found.parent / "pool" / "00002.png")), pixels[2])


def test_a_part_belongs_to_the_same_simulation_and_settings_are_checked(tmp_path):
    (tmp_path / "fsdd" / "recordings").mkdir(parents=True)
    (tmp_path / "fsdd" / "_background_noise_").mkdir()

    def asked(*arguments: str):
        given = active_learning.parser().parse_args(["--data", str(tmp_path), *arguments])
        return active_learning.question(given, tmp_path / "out")

    whole, part = asked(), asked("--only", "bico", "--seeds", "0")
    assert (whole.strategies, whole.seeds) == (active_learning.STRATEGIES, (0, 1, 2))
    assert (part.strategies, part.seeds) == (("bico",), (0,))
    assert part.same_as(whole.to_dict())
    assert (whole.plan.start, whole.plan.batch, whole.plan.rounds, whole.config.preset) == (10, 10, 6, "laptop")
    assert whole.config.media.noise_folder.endswith("_background_noise_")
    assert asked("--size", "full").config.preset == "paper"
    harder = asked("--wrong", "0.1", "--rare", "nine=0.02", "--missing", "four", "--set", "training.steps=7").to_dict()
    assert harder["plan"]["rare_class"] == "nine" and harder["config"]["training"]["steps"] == 7
    assert not part.same_as(harder)
    with pytest.raises(InvalidInput, match="Unknown settings"):
        asked("--set", "training.stepz=7")
    with pytest.raises(InvalidInput, match="no strategy"):
        asked("--only", "bicco")


def test_claims_name_the_order_the_lead_and_the_goal():
    summary = {"accuracy": {"bico": {"30": 0.9, "40": 0.985}, "badge": {"30": 0.92, "40": 0.97}}}
    found = active_learning.claims(summary, "fsdd")
    assert found["30"] == {"order": ["badge", "bico"], "bico_first": False, "lead_points": -2.0}
    assert (found["40"]["bico_first"], found["40"]["lead_points"], found["40"]["goal_reached"]) == (True, 1.5, True)
    assert "paper" not in active_learning.claims(summary, "mnist")["40"]
