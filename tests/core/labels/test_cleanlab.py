"""Suspected labels against cleanlab on the same out-of-fold probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from core.labels.errors import suspect_labels

filters = pytest.importorskip("cleanlab.filter", reason="cleanlab is a development dependency")


@pytest.mark.parametrize("seed", range(4))
def test_suspects_and_their_order_agree_with_cleanlab(seed):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 5, 300)
    p = np.stack([rng.dirichlet(np.where(np.arange(5) == one, 6.0, 0.7)) for one in truth])
    labels, wrong = truth.copy(), rng.choice(300, 45, replace=False)
    labels[wrong] = (truth[wrong] + rng.integers(1, 5, 45)) % 5
    found = suspect_labels(p, labels)
    theirs = filters.find_label_issues(
        labels, p, filter_by="confident_learning", return_indices_ranked_by="normalized_margin"
    )
    assert found.rows.tolist() == theirs.tolist(), "the same labels in the same order"
    assert len(found.rows) > 20
    assert np.isin(found.rows[:20], wrong).mean() >= 0.9
