"""Why an item was picked, in words: every strategy has a sentence without terms of the field."""

from __future__ import annotations

import re

import pytest

from app.views.cards.pick_sentences import SENTENCES, pick_sentence
from core.acquisition import catalog

TERMS = re.compile(r"loss|proxy|coreset|entropy|gradient|embedding|kernel|cluster|margin|augment|herding|bilevel", re.I)


@pytest.mark.parametrize("strategy", catalog.names())
@pytest.mark.parametrize("kind", ["audio", "image"])
def test_every_strategy_has_a_plain_sentence(strategy, kind):
    found = pick_sentence(strategy, kind, 41)
    assert not TERMS.search(found) and "{" not in found and found.endswith(".")
    assert ("clip" in found) is (kind == "audio" and strategy != "uniform")
    assert ("41 similar" in found) is (strategy != "uniform")
    assert set(SENTENCES) == set(catalog.names())


def test_a_strategy_that_the_catalog_no_longer_has_is_named():
    assert pick_sentence("retired: one, two", "image") == "It was chosen by the strategy retired: one, two."


def test_a_pick_that_represents_only_itself_mentions_no_other_items():
    assert "stands for" not in pick_sentence("bico", "image", 1)
