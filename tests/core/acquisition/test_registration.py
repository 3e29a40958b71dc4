"""One module and one catalog entry make a strategy, and the entry declares what the strategy reads."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest

from core.acquisition import catalog, registry
from core.acquisition import strategies as strategies_package
from core.config import SelectionConfig
from core.types import SelectionRequest, ignore

NEWEST = """
from core.acquisition.pool_view import candidate_rows, draft


def select(request, config, report):
    rows = candidate_rows(request)[::-1][: request.batch_size]
    return draft(request, "newest", rows, list(range(len(rows), 0, -1)))
"""
FIELD_OF_NEED = {
    "predictions": "probabilities",
    "embeddings": "embeddings",
    "kernel_features": "features",
    "view_features": "view_features",
}


def test_one_module_and_one_entry_make_a_strategy(tmp_path, monkeypatch, request_of):
    (tmp_path / "newest.py").write_text(NEWEST)
    monkeypatch.setattr(strategies_package, "__path__", [*strategies_package.__path__, str(tmp_path)])
    entry = catalog.Entry("newest", "Newest first", "The items imported last.", prediction_views=3)
    monkeypatch.setattr(catalog, "ENTRIES", (*catalog.ENTRIES, entry))
    try:
        assert catalog.names()[-1] == "newest" and catalog.entry("newest").prediction_views == 3
        request = request_of()
        selection = registry.select(request, SelectionConfig(strategy="newest", n_views=0, near_duplicate=0.0))
        candidates = request.item_ids[request.eligible & ~request.labeled]
        np.testing.assert_array_equal(selection.item_ids, candidates[::-1][: request.batch_size])
        assert selection.strategy == "newest" and len(selection.reasons) == request.batch_size
    finally:
        sys.modules.pop("core.acquisition.strategies.newest", None)


class Recording(SelectionRequest):
    """A request that records which of its fields are read."""

    def __getattribute__(self, name):
        if name in READABLE:
            READ.add(name)
        return super().__getattribute__(name)


READABLE = {"probabilities", "embeddings", "features", "view_features", "view_probabilities"}
READ: set[str] = set()


@pytest.mark.parametrize("strategy", catalog.names())
def test_a_strategy_reads_no_more_than_its_entry_declares(strategy, request_of):
    request = request_of()
    recording = Recording(**{field.name: getattr(request, field.name) for field in fields(request)})
    READ.clear()
    registry.strategy_function(strategy)(
        recording, SelectionConfig(strategy=strategy, n_views=3), lambda progress: None
    )
    entry = catalog.entry(strategy)
    declared = {FIELD_OF_NEED[need] for need in entry.needs if need in FIELD_OF_NEED}
    if entry.prediction_views:
        declared |= {"view_probabilities", "probabilities"}
    if strategy == "prob_cover":
        declared |= {"probabilities"}  # for the number of classes alone
    assert declared >= READ


@pytest.mark.parametrize("strategy", [entry.name for entry in catalog.ENTRIES if "labels" not in entry.needs])
def test_labeled_rows_change_nothing_for_a_strategy_that_does_not_declare_labels(strategy, request_of):
    """The labeled rows are marked as not eligible instead, so the candidates stay the same."""
    request = request_of()
    labeled = request.labeled.copy()
    labeled[np.flatnonzero(labeled)[1:]] = False  # one stays: a request without labels is a cold start
    fewer = replace(request, labeled=labeled, eligible=request.eligible & ~request.labeled)
    run, config = registry.strategy_function(strategy), SelectionConfig(strategy=strategy, n_views=3)
    found = [run(one, config, ignore).item_ids.tolist() for one in (request, fewer)]
    assert found[0] == found[1]


def test_listing_the_strategies_loads_no_torch():
    code = "import sys, core.acquisition.catalog as c; assert c.names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
