"""Settings: unchanged by a round trip through JSON, and refused by name if they are invalid."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from core.config import (
    AugmentationConfig,
    LabelsConfig,
    RoundConfig,
    SelectionConfig,
    SimilarityConfig,
    from_dict,
    from_json,
    preset,
    to_json,
)
from core.errors import InvalidInput
from core.stored_config import RENAMED_KEYS, RETIRED


def test_a_round_config_survives_json():
    config = RoundConfig(seed=7, selection=SelectionConfig(strategy="badge", batch_size=3))
    assert from_json(RoundConfig, to_json(config)) == config


def test_an_older_row_gets_the_defaults_of_newer_fields():
    assert from_dict(RoundConfig, {"seed": 3}) == RoundConfig(seed=3)


def test_an_unknown_setting_is_refused_by_name():
    with pytest.raises(InvalidInput, match="temprature"):
        from_dict(RoundConfig, {"temprature": 1})


@pytest.mark.parametrize("values", [{"selection": {"batch_size": 0}}, {"preset": "fast"}, {"seed": "seven"}])
def test_an_invalid_value_is_refused(values):
    with pytest.raises(InvalidInput):
        from_dict(RoundConfig, values)


def test_a_round_stored_with_a_removed_setting_can_still_be_read():
    values = json.loads(to_json(RoundConfig()))
    values["training"]["processes"] = 1
    values["training"] |= {"hint_neighbors": 10, "hint_reach": 0.97, "hint_power": 2.0}
    values["selection"]["unsure_share"] = 0.05
    assert from_json(RoundConfig, json.dumps(values)) == RoundConfig()


STORED = Path(__file__).parent / "stored_settings"  # written by version 0.1, before settings were renamed


def test_a_laptop_round_stored_by_version_0_1_keeps_its_settings():
    # Labels were not checked then.
    unchecked = LabelsConfig(weigh=False, second_looks=False, clips="graph", earlier_rounds=False)
    stored = from_json(RoundConfig, (STORED / "laptop_0_1.json").read_text())
    similarity = SimilarityConfig(neighbors=10, reach=0.7)
    training = dataclasses.replace(preset("laptop").training, refine_steps=0)  # and networks were not refined
    selection = dataclasses.replace(preset("laptop").selection, proxy="similarity")  # pictures had the kernel
    now = dataclasses.replace(preset("laptop"), training=training, selection=selection)
    assert stored == dataclasses.replace(now, labels=unchecked, similarity=similarity)


def test_a_paper_round_stored_by_version_0_1_keeps_its_settings():
    stored, now = from_json(RoundConfig, (STORED / "paper_0_1.json").read_text()), preset("paper")
    assert (stored.kernel.network, stored.training.batch_norm, stored.training.calibrate) == ("scnn", "joint", True)
    assert stored.augmentation == AugmentationConfig()
    training = dataclasses.replace(now.training, batch_norm="joint", calibrate=True)
    kernel = dataclasses.replace(now.kernel, network="scnn")
    changed = dataclasses.replace(now, training=training, kernel=kernel, augmentation=AugmentationConfig())
    assert stored == dataclasses.replace(
        changed, labels=dataclasses.replace(now.labels, clips="graph", earlier_rounds=False)
    )


def test_a_stored_round_that_checked_its_labels_keeps_the_predictors_of_its_version():
    values = json.loads(to_json(RoundConfig()))
    assert from_json(RoundConfig, json.dumps(values)) == RoundConfig()
    del values["labels"]["clips"], values["labels"]["earlier_rounds"]
    assert from_json(RoundConfig, json.dumps(values)).labels == LabelsConfig(clips="graph", earlier_rounds=False)
    assert from_dict(RoundConfig, {"labels": {"weigh": False}}).labels == LabelsConfig(weigh=False)  # changes of today


def test_the_paper_preset_has_the_printed_augmentation_and_the_authors_kernel_and_batch_norm():
    config = preset("paper")
    assert (config.kernel.network, config.kernel.n_landmarks, config.selection.n_views) == ("wrn", 2_048, 100)
    assert (config.training.batch_norm, config.training.calibrate, config.training.lambda_u) == (
        "interleaved", False, 10.0,
    )  # fmt: skip
    assert config.augmentation == AugmentationConfig(
        probability=0.5, amplitude=0.2, speed=0.2, shift_seconds=0.25, snr_low=0.0, snr_high=40.0, level="kept",
        light_warp=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    "values", [{"probability": 1.5}, {"amplitude": 1.0}, {"snr_low": 50.0}, {"light_warp": -0.1}, {"shift_seconds": 61}]
)
def test_invalid_augmentation_is_refused(values):
    with pytest.raises(InvalidInput):
        from_dict(RoundConfig, {"augmentation": values})


def test_every_setting_renamed_since_version_0_1_keeps_its_value():
    text = (STORED / "every_renamed_setting_0_1.json").read_text()
    config = from_json(RoundConfig, text)
    assert config.similarity == SimilarityConfig(neighbors=6, reach=0.5)
    assert (config.selection.proxy, config.selection.uncertainty_power) == ("similarity", 2.5)
    training = config.training
    assert (training.pretrain_steps, training.pretrain_batch, training.pretrained_rate_scale) == (7, 9, 0.25)
    assert (training.n_augmentations, config.map.n_neighbors) == (3, 12)
    assert {name for names in RENAMED_KEYS.values() for name in names} <= _all_keys(json.loads(text))


def test_settings_are_written_with_the_current_names_only():
    old = from_json(RoundConfig, (STORED / "every_renamed_setting_0_1.json").read_text())
    written = json.loads(to_json(old))
    gone = {name for names in (*RENAMED_KEYS.values(), *RETIRED.values()) for name in names}
    assert not gone & _all_keys(written)
    assert written["selection"]["proxy"] == "similarity"
    assert from_json(RoundConfig, to_json(old)) == old


def test_a_setting_given_under_both_names_is_refused():
    with pytest.raises(InvalidInput, match="'uncertainty_power' and its older name 'doubt'"):
        from_dict(RoundConfig, {"selection": {"doubt": 1.0, "uncertainty_power": 2.0}})


def _all_keys(values: dict) -> set[str]:
    return set(values) | {key for value in values.values() if isinstance(value, dict) for key in _all_keys(value)}
