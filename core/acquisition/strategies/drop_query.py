"""DropQuery: items whose predicted class changes under dropout of their features, one per cluster (Gupte et al., 2024).

    x_m     = x with each feature set to 0 with probability 0.75 and the others divided by 0.25,   m = 1, 2, 3
    unsure  = { x : the predicted class of more than half of the x_m differs from that of x }
    batch   = from each of `batch_size` k-means clusters of the unsure items, the item nearest to the center

The score is the number of changed predictions; clusters come largest first.

Departures and details
- The paper drops input features of its linear classifier. A request has embeddings and predictions, so the linear
  classifier is recovered from them: the least-squares map from embeddings (with a constant) to log-probabilities over
  all rows, with a small ridge. For a linear head on its embeddings this is the head itself.
- The probability 0.75, the three draws, the majority, the k-means clusters of the embeddings and the item nearest to
  each center were compared with the authors' code (github.com/sanketx/AL-foundation-models, query_strategies/dropout).
  In that code, the classifier is also trained with this dropout, followed by batch normalization; the head here is not.
  Embeddings are scaled to length 1 there; those of a head on an encoder already have length 1.
- If there are fewer unsure candidates than picks, those with the smallest margins are added. The authors' code adds
  random items instead, and one version of it counts a single changed prediction as enough if fewer than 25 items per
  pick are unsure. Neither is in the paper's description.
- Before the first model, the picks are the items nearest to the centers of k-means, as in the paper's initialization.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.acquisition.clustering import k_means as cluster
from core.acquisition.pool_view import RowArray, candidate_rows, draft, generator, is_cold, on_device, space
from core.acquisition.ranking import margin_uncertainty
from core.acquisition.strategies import k_means
from core.config import SelectionConfig
from core.types import Report, Selection, SelectionRequest, ignore

DROPOUT, DRAWS = 0.75, 3
RIDGE = 1e-4  # of the mean square of a feature


def linear_classifier(x: Tensor, P: Tensor) -> Tensor:
    """(e + 1, C) the ridge map from rows x (n, e), with a 1 appended, to centered log-probabilities of P (n, C)."""
    logits = P.clamp_min(1e-6).log()
    logits = logits - logits.mean(1, keepdim=True)
    rows = torch.cat([x, torch.ones_like(x.narrow(1, 0, 1))], 1)
    gram = rows.T @ rows
    gram.diagonal().add_(RIDGE * gram.diagonal().mean() + 1e-12)
    weights: Tensor = torch.linalg.solve(gram, rows.T @ logits)
    return weights


def changed_predictions(x: Tensor, weights: Tensor, rng: np.random.Generator) -> Tensor:
    """(n,) how many of DRAWS predictions under dropout differ from the prediction without dropout."""
    slopes, offsets = weights.narrow(0, 0, x.shape[1]), weights.narrow(0, x.shape[1], 1)
    own = (x @ slopes + offsets).argmax(1)
    changed = torch.zeros_like(own)
    for _ in range(DRAWS):
        kept = torch.as_tensor(rng.random(x.shape) >= DROPOUT, device=x.device).to(x) / (1 - DROPOUT)
        changed += ((x * kept) @ slopes + offsets).argmax(1) != own
    return changed


def unsure_rows(request: SelectionRequest, changed: NDArray[np.int64], uncertainty: NDArray[np.float64]) -> RowArray:
    """Candidates with more than half of their predictions changed; if too few, also those with the smallest margins."""
    rows = candidate_rows(request)
    unsure = rows[changed[rows] > DRAWS / 2]
    if len(unsure) >= request.batch_size:
        return unsure
    others = np.setdiff1d(rows, unsure)
    nearest = others[np.argsort(-uncertainty[others], kind="stable")]
    return np.concatenate([unsure, nearest[: request.batch_size - len(unsure)]])


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    if is_cold(request):
        note = "No model yet: the items nearest to the centers of k-means."
        return replace(k_means.select(request, config, report), strategy="drop_query", notes=(note,))
    x = on_device(space(request)).double()
    P = on_device(request.probabilities).double()
    rng = generator(request, "drop_query")
    changed = changed_predictions(x, linear_classifier(x, P), rng).cpu().numpy()
    unsure = unsure_rows(request, changed, margin_uncertainty(P).cpu().numpy())
    points = x[on_device(unsure)]
    clusters = cluster(points, request.batch_size, rng)
    sizes = torch.bincount(clusters.assigned, minlength=request.batch_size)
    picked = unsure[k_means.distinct_nearest(points, clusters, torch.argsort(sizes, descending=True, stable=True))]
    count = int((changed[candidate_rows(request)] > DRAWS / 2).sum())
    note = f"{count:,} items change their predicted class under dropout."
    return draft(request, "drop_query", picked, changed[picked], (note,))
