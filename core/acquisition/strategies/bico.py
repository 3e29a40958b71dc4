"""Batch active learning by bilevel coresets (Borsos et al., 2021, eq. 12): the batch whose labels lower the loss most.

With D_train the labeled items and D_u the pool with soft pseudo-labels, choose M in D_u so that softmax regression on
D_train u M has a low loss on D_train u D_u: `core.coresets.bilevel.greedy` on the kernel features. A labeled or chosen
item enters the inner problem as its augmented views (`request.view_features`), or as itself if there are none. The
score is the negative implicit gradient at the time of choice. Reasons contain the outer loss before and after, and the
rank of the gradient among all unlabeled rows that were evaluated.

Departures and details

- The outer set is all rows of the request, labeled ones with their labels; candidates are the eligible rows. Above
  `config.max_candidates` rows, a seeded sample represents the unlabeled rows.
- With `config.uncertainty_power` = a > 0 the outer loss weights an unlabeled item by (1 - margin)^a, where margin is
  the difference of its two largest probabilities, and its label is its most probable class. The batch then covers what
  the model is uncertain about. Equal weights (a = 0) are the paper's choice; they favor items on which the proxy is
  weak but the model, which has seen the unlabeled items, is mostly right (docs/reproduction.md).
- `config.proxy = "embedding"` replaces kernel features by the last layer, scaled to a mean square length of 1.
  "similarity" replaces them by diffusion features of the similarity graph (`core.similarity.diffusion`) if there is
  one, without views: a label then extends over its cluster, and the batch covers the clusters that matter most.
  "similarity-head" is "similarity" with a graph and "head" without one; without a model it is "kernel".
- `config.proxy = "head"`: the proxy is the model's own last layer, a softmax head on the features of an encoder or of
  the trained network. With its own predictions as labels, P - Y vanishes, and so does the implicit gradient. The
  objective is therefore the expected loss to second order: the Hessian of the head's loss does not depend on the
  unknown label, so neither does the decrease of the posterior variance of the logits. With one curvature for all
  classes and items, this is weighted V-optimal design (`core.coresets.design`) with the labeled items given:

      minimize  sum_i u_i z_i^T Sigma z_i / sum_i u_i,   u_i = (1 - margin_i)^uncertainty_power,  0 on labeled rows

  z joins the head's embedding and diffusion features of a neighbor graph, each of length 1, because the head is trained
  on labels that spread over such a graph. The graph is `request.similarity_features`, or that of the embeddings with
  the leading C principal components leveled, as in `core.learning.head`. With few labels, u is nearly constant and the
  batch represents the pool; later it represents the uncertain items. The score is the decrease; the outer loss of the
  reasons is the weighted variance.
- Cold start: Bayesian V-optimal design on the kernel features, centered and of length 1 (`core.coresets.design`). It is
  the closed-form case of the same framework and needs no pseudo-labels. The score is the decrease of the mean variance.
- Cold start with proxy "head" and without any label: one typical item from each cluster of the pool, found from such a
  design (`core.acquisition.first_batch`). The score is the share of the pool in the cluster.
- The design is also used if there is only one class, because there is nothing to discriminate.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from core.acquisition.first_batch import first_batch
from core.acquisition.geometry import centered_unit, unit_rows
from core.acquisition.pool_view import (
    RowArray,
    candidate_rows,
    draft,
    is_cold,
    labeled_rows,
    on_device,
    sample,
    sampled_note,
    unlabeled_rows,
)
from core.acquisition.ranking import margin_uncertainty
from core.config import SelectionConfig
from core.coresets import bilevel, design
from core.learning.head import SPREAD, leveled, principal_components
from core.similarity.diffusion import resolvent_features
from core.similarity.spreading import neighbor_affinity
from core.types import PickReason, Report, Selection, SelectionRequest, ignore

COLD_ROWS = 20_000  # the design costs rows * q^2 once
DIFFUSION_LENGTH = 0.1**0.5  # of diffusion features: the default penalty then weighs ten times as much as at length 1
COLD_PRIOR = design.Prior(penalty=1.0, noise=0.01)
HEAD_PRIOR = design.Prior(penalty=1.0, noise=1.0)
NEIGHBORS, GRAPH_FEATURES = 10, 128  # of the graph
HEAD_ROWS = 5_000  # neighbors cost rows^2, diffusion features rows * q^2


def proxy_of(request: SelectionRequest, config: SelectionConfig) -> str:
    """The proxy that is used for these items: "kernel", "embedding", "similarity" or "head"."""
    has_graph = request.similarity_features is not None
    if config.proxy == "similarity":
        return "similarity" if has_graph else "kernel"
    if config.proxy == "similarity-head":
        return "similarity" if has_graph else ("head" if request.has_model else "kernel")
    return config.proxy


def proxy_features(request: SelectionRequest, config: SelectionConfig) -> NDArray[np.float32]:
    """(n, q) features of the proxy model."""
    proxy = proxy_of(request, config)
    if proxy == "similarity" and request.similarity_features is not None:
        return DIFFUSION_LENGTH * request.similarity_features()
    if proxy == "kernel" or request.embeddings.shape[1] == 0:
        return request.features
    scaled: NDArray[np.float32] = request.embeddings / np.sqrt(np.square(request.embeddings).sum(1).mean() + 1e-12)
    return scaled


def head_vectors(request: SelectionRequest) -> NDArray[np.float32]:
    """(n, e) the head's embeddings, or the features if there are none."""
    return request.embeddings if request.embeddings.shape[1] else request.features


def head_features(request: SelectionRequest, rows: RowArray) -> NDArray[np.float32]:
    """(len(rows), q) rows of length 1: the head's embedding joined with diffusion features of its neighbor graph, or of
    the request's graph if it has one."""
    own = unit_rows(head_vectors(request)[rows])
    if request.similarity_features is not None:
        spread = request.similarity_features()[rows]
    else:
        mean, V, variances = principal_components(own, own.shape[1])
        near = unit_rows((own - mean) @ leveled(V, variances, request.n_classes))
        spread = resolvent_features(neighbor_affinity(near, NEIGHBORS), GRAPH_FEATURES, SPREAD)
    joined: NDArray[np.float32] = np.concatenate([own, unit_rows(spread)], 1) * np.float32(0.5**0.5)
    return joined


def uncalibrated(probabilities: NDArray[np.float32], temperature: float) -> NDArray[np.float32]:
    """(n, C) softmax(logits / temperature) converted to temperature 1. The weights of the expected loss use the head's
    own probabilities, with which they were chosen and measured (docs/benchmark.md)."""
    if temperature == 1.0:
        return probabilities
    raised = np.asarray(probabilities, np.float64) ** temperature
    return np.asarray(raised / raised.sum(1, keepdims=True), np.float32)


def head_weights(request: SelectionRequest, config: SelectionConfig, rows: RowArray) -> NDArray[np.float64]:
    """(len(rows),) u: the weights of rows in the expected loss; equal if no unlabeled row is uncertain."""
    probabilities = uncalibrated(request.probabilities[rows], request.temperature)
    uncertainty = margin_uncertainty(torch.from_numpy(probabilities)).clamp_min(0.0).double().numpy()
    weights: NDArray[np.float64] = np.where(request.labeled[rows], 0.0, uncertainty**config.uncertainty_power)
    return weights if weights.any() else np.ones(len(rows))


def inner_rows(
    request: SelectionRequest, config: SelectionConfig, features: NDArray[np.float32], row: int
) -> NDArray[np.float32]:
    """(A, q) an item's rows in the inner problem: its first `config.n_views` views, or its own features."""
    if request.view_features is None or proxy_of(request, config) != "kernel" or config.n_views == 0:
        return features[row : row + 1]
    return request.view_features(row)[: config.n_views]


def base_rows(
    request: SelectionRequest, config: SelectionConfig, features: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(N, q), (N, C) the labeled items' rows of the inner problem and their targets."""
    blocks = [inner_rows(request, config, features, int(row)) for row in labeled_rows(request)]
    targets = np.repeat(request.probabilities[request.labeled], [len(block) for block in blocks], axis=0)
    return np.concatenate(blocks), targets


def outer_rows(request: SelectionRequest, limit: int) -> tuple[RowArray, tuple[str, ...]]:
    """Rows of the outer loss: all labeled rows, and all unlabeled rows or a sample of them with enough candidates."""
    unlabeled, candidates = unlabeled_rows(request), candidate_rows(request)
    limit = max(limit, 10 * request.batch_size)
    if len(unlabeled) <= limit:
        return np.sort(np.concatenate([labeled_rows(request), unlabeled])), ()
    share = max(len(candidates) / len(unlabeled), 0.1)
    offered = sample(candidates, int(limit * share), request, "bico-candidates")
    others = sample(np.setdiff1d(unlabeled, candidates), limit - len(offered), request, "bico-pool")
    rows = np.sort(np.concatenate([labeled_rows(request), offered, others]))
    return rows, sampled_note("Candidates and outer loss", len(offered) + len(others), len(unlabeled))


def outer_problem(
    request: SelectionRequest, config: SelectionConfig, rows: RowArray
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """(len(rows), C) the labels of the outer loss, and (len(rows),) its weights (None: equal weights)."""
    targets = request.probabilities[rows]
    if not config.uncertainty_power:
        return targets, None
    uncertainty = margin_uncertainty(torch.from_numpy(targets)).clamp_min(0.0).numpy() ** config.uncertainty_power
    weights = np.where(request.labeled[rows], 1.0, uncertainty).astype(np.float32)
    return np.eye(targets.shape[1], dtype=np.float32)[targets.argmax(1)], weights


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    proxy = proxy_of(request, config)
    if proxy == "head" and not request.labeled.any() and bool(head_vectors(request).any()):
        return typical_batch(request, config, report)
    if is_cold(request):
        return design_batch(request, config, "No model yet", report)
    if request.n_classes < 2:
        return design_batch(request, config, "There is only one class", report)
    if proxy == "head":
        return head_batch(request, config, report)
    features = proxy_features(request, config)
    rows, notes = outer_rows(request, config.max_candidates)
    targets, weights = outer_problem(request, config, rows)
    base, base_targets = base_rows(request, config, features)
    found = bilevel.greedy(
        on_device(base),
        base_targets,
        on_device(features if len(rows) == len(features) else features[rows]),
        on_device(targets),
        request.batch_size,
        config.penalty,
        views=lambda position: inner_rows(request, config, features, int(rows[position])),
        settings=bilevel.Settings(
            candidates=(request.eligible & ~request.labeled)[rows],
            ranked=~request.labeled[rows],
            outer_weights=weights,
            report=report,
        ),
    )
    reasons = tuple(
        PickReason(
            order=k + 1,
            score=float(found.scores[k]),
            outer_before=float(found.outer_losses[k]),
            outer_after=float(found.outer_losses[k + 1]),
            gradient_rank=int(found.ranks[k]),
            first_gradient_rank=int(found.first_ranks[k]),
        )
        for k in range(request.batch_size)
    )
    return draft(request, "bico", rows[found.rows], found.scores, notes + found.problems(), reasons)


def head_batch(request: SelectionRequest, config: SelectionConfig, report: Report) -> Selection:
    """A batch by the expected loss of the head: V-optimal design weighted by uncertainty, with the labels given."""
    rows, notes = outer_rows(request, min(config.max_candidates, HEAD_ROWS))
    found = design.greedy(
        on_device(head_features(request, rows)),
        request.batch_size,
        HEAD_PRIOR,
        given=request.labeled[rows],
        candidates=(request.eligible & ~request.labeled)[rows],
        stands_for=head_weights(request, config, rows),
        report=report,
    )
    reasons = tuple(
        PickReason(
            order=k + 1,
            score=float(found.gains[k]),
            outer_before=float(found.values[k]),
            outer_after=float(found.values[k + 1]),
        )
        for k in range(request.batch_size)
    )
    return draft(request, "bico", rows[found.rows], found.gains, notes, reasons)


def head_path(request: SelectionRequest, config: SelectionConfig, picked: RowArray) -> list[float]:
    """The weighted variance of the head before the first of `picked` rows and after each."""
    outer, _ = outer_rows(request, min(config.max_candidates, HEAD_ROWS))
    rows = np.union1d(outer, picked)
    z, weights = on_device(head_features(request, rows)), on_device(head_weights(request, config, rows))
    forms = design.Forms(z, z[on_device(request.labeled[rows])], HEAD_PRIOR, weights)
    values = [float(forms.value)]
    for position in np.searchsorted(rows, picked):
        forms.add(z[int(position)])
        values.append(float(forms.value))
    return values


def typical_batch(request: SelectionRequest, config: SelectionConfig, report: Report) -> Selection:
    """The first batch of a round with an encoder, without labels."""
    rows, notes = outer_rows(request, min(config.max_candidates, HEAD_ROWS))
    spaces = [head_vectors(request)[rows]]
    if request.picture_vectors is not None:
        spaces.append(request.picture_vectors(rows))
    found = first_batch(spaces, request.n_classes, request.batch_size, request.eligible[rows], report)
    by = "the shapes in the pictures" if found.space else "the encoder's features"
    note = f"No model yet: the batch has a typical item from each of {request.batch_size} clusters of {by}."
    return draft(request, "bico", rows[found.rows], found.shares, (note, *notes))


def design_batch(request: SelectionRequest, config: SelectionConfig, why: str, report: Report) -> Selection:
    """A batch by Bayesian V-optimal design on the kernel features; labeled rows are already part of the design."""
    with_head = proxy_of(request, config) == "head"
    rows, notes = outer_rows(request, min(config.max_candidates, HEAD_ROWS if with_head else COLD_ROWS))
    own = on_device(head_features(request, rows) if with_head else request.features[rows])
    Z = own if with_head else centered_unit(own)  # the former are centered already
    if Z.shape[1] == 0 or not bool(Z.any()):
        Z = torch.ones(len(rows), 1, device=Z.device)
    found = design.greedy(
        Z,
        request.batch_size,
        COLD_PRIOR,
        given=request.labeled[rows],
        candidates=(request.eligible & ~request.labeled)[rows],
        report=report,
    )
    note = f"{why}: the batch is a Bayesian V-optimal design on the kernel features."
    return draft(request, "bico", rows[found.rows], found.gains, (note, *notes))
