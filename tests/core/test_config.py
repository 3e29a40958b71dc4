"""Settings: the same after a trip through JSON, refused by name when they make no sense."""

from __future__ import annotations

import json

import pytest

from core.config import RoundConfig, SelectionConfig, from_dict, from_json, to_json
from core.errors import InvalidInput


def test_a_round_config_survives_json():
    config = RoundConfig(seed=7, selection=SelectionConfig(strategy="badge", batch_size=3))
    assert from_json(RoundConfig, to_json(config)) == config


def test_an_older_row_gets_the_defaults_of_newer_fields():
    assert from_dict(RoundConfig, {"seed": 3}) == RoundConfig(seed=3)


def test_an_unknown_setting_is_refused_by_name():
    with pytest.raises(InvalidInput, match="temprature"):
        from_dict(RoundConfig, {"temprature": 1})


@pytest.mark.parametrize("values", [{"selection": {"batch_size": 0}}, {"preset": "fast"}, {"seed": "seven"}])
def test_a_senseless_value_is_refused(values):
    with pytest.raises(InvalidInput):
        from_dict(RoundConfig, values)


def test_a_round_stored_with_a_setting_that_is_gone_can_still_be_read():
    values = json.loads(to_json(RoundConfig()))
    values["training"]["processes"] = 1
    values["training"] |= {"hint_neighbors": 10, "hint_reach": 0.97, "hint_power": 2.0}
    values["selection"]["unsure_share"] = 0.05
    assert from_json(RoundConfig, json.dumps(values)) == RoundConfig()
