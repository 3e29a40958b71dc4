"""Thirty seconds of random faults: no acknowledged label is lost or doubled, and a round finishes afterwards.

The five minutes of `benchmarks.drills` run the same drill, with rounds of the whole preset.
"""

from __future__ import annotations

import pytest

from tests.drills.drill import Options, run_drill

SEED = 17
# Rounds of little arithmetic: every worker that is started after a kill would load umap for its first map.
QUICK = {"training.bank_views": 0, "kernel.network": "fnn", "kernel.n_landmarks": 12, "map.n_neighbors": 500}


@pytest.mark.slow(60)
@pytest.mark.timeout(1_500)
def test_thirty_seconds_of_faults_lose_and_duplicate_no_acknowledged_label(capsys):
    result = run_drill(Options(seconds=30, seed=SEED, changes=QUICK))
    found = {name: result[name] for name in ("lost", "doubled", "inconsistencies")}
    assert found == {"lost": 0, "doubled": 0, "inconsistencies": []}, result
    assert result["acknowledged"] > 0
    assert result["rounds_finished"] > 0
    assert sum(result["faults"].values()) >= 5, result["faults"]
