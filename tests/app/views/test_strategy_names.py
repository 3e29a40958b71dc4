"""One display name per strategy, and the glossary lists all of them."""

from __future__ import annotations

import re
from pathlib import Path

from app.simulation.report import curves, reach_table, table
from app.views.strategy_names import strategy_title
from core.acquisition import catalog

GLOSSARY = Path(__file__).resolve().parents[3] / "docs" / "glossary.md"
SUMMARY = {
    "accuracy": {"bico": {"10": 0.5}, "k_center": {"10": 0.4}},
    "deviation": {"bico": {"10": 0.1}, "k_center": {"10": 0.0}},
    "labels_to_90": {name: {"mean": None, "reached": 0, "seeds": 2} for name in ("bico", "k_center")},
}


def test_every_strategy_has_its_own_title_and_an_unknown_stored_name_is_shown_unchanged():
    titles = [strategy_title(name) for name in catalog.names()]
    assert len(set(titles)) == len(titles) and all(titles)
    assert strategy_title("bico") == "Bilevel coreset"
    assert strategy_title("a strategy of an older version") == "a strategy of an older version"


def test_the_glossary_lists_the_display_name_and_the_stored_name_of_every_strategy():
    section = GLOSSARY.read_text().split("## Strategies")[1]
    listed = re.findall(r"^\| (.+?) \| `(\w+)` \|$", section, re.MULTILINE)
    assert {stored: title for title, stored in listed} == {name: strategy_title(name) for name in catalog.names()}


def test_simulation_reports_use_the_display_names():
    for text in (table(SUMMARY), reach_table(SUMMARY)):
        assert "| Bilevel coreset |" in text and "| k-center |" in text
        assert "bico" not in text and "k_center" not in text
    assert [trace.name for trace in curves(SUMMARY).data if trace.name] == ["Bilevel coreset", "k-center"]
