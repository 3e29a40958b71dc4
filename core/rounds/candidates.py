"""The input of strategies: the candidate rows, their features, and the request that contains them.

Large pools: strategies see the labeled rows and at most `selection.max_candidates` of the eligible rows, drawn with the
round's seed, those of a region of interest first. Kernel features are computed only for these rows. Pools that keep
growing have a buffer of candidates (`core.rounds.stream_buffer`): strategies then see the rows that it offers, with
drawn rows added only if it offers less than a batch.

Landmarks are reused: a round uses those of the previous round until the pool has doubled (`core.kernels.landmarks`), so
that features of known items stay valid. They belong to the results of a round, not to a machine's cache, so a round
gives the same features wherever it runs.

Kernel features are the most expensive input of a selection; `features_are_read` says which rounds read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from core.acquisition.strategies.bico import GRAPH_FEATURES, HEAD_ROWS
from core.config import to_json
from core.errors import InvalidInput
from core.kernels import landmarks
from core.kernels.nystrom import KernelFeatures, Scope
from core.learning.head import SPREAD, prepare
from core.learning.training import nothing_to_learn
from core.media.inputs import Inputs
from core.media.inputs import prepare as prepare_inputs
from core.media.views import views, views_key
from core.rounds.approach.deciding import as_stage
from core.rounds.context import Landmarks, StageContext
from core.rounds.encoding import features_of, fitted_rows
from core.rounds.outputs import CandidateFeatures, FittedKernel, Predictions, PropagatedLabels
from core.rows import LazyRows, SomeRows
from core.similarity.diffusion import diffusion_features, resolvent_features
from core.similarity.gradient_histograms import gradient_histograms
from core.similarity.graph import SimilarityGraph, graph_rows
from core.types import UNLABELED, PoolSnapshot, Report, SelectionRequest

VIEW_SEED = 0  # the views of an item are the same in every round, so that their features are computed once

PROJECTED = 64  # dimensions of the stand-in for embeddings before the first model


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The rows that strategies see."""

    rows: NDArray[np.int64]  # (m,) ascending
    notes: tuple[str, ...] = ()


def choose_candidates(context: StageContext, inputs: Inputs) -> Candidates:
    """Labeled rows and the rows that may be chosen, at most `max_candidates` of them. The same for every call."""
    snapshot, limit = context.snapshot, context.config.selection.max_candidates
    eligible = np.flatnonzero(snapshot.eligible & inputs.readable)
    labeled = np.flatnonzero(snapshot.labeled & inputs.readable)
    notes: tuple[str, ...] = ()
    if context.offered is not None and not context.offered[eligible].all():
        n_waiting, eligible = len(eligible), _offered(eligible, context.offered, context)
        notes = (f"Picked from {len(eligible):,} of {n_waiting:,} unlabeled items, the candidate pool of the folder.",)
    if len(eligible) > limit:
        notes = (f"Picked from {limit:,} of {len(eligible):,} unlabeled items, drawn with the seed of the round.",)
        eligible = _sample(eligible, limit, context)
    return Candidates(rows=np.union1d(labeled, eligible), notes=notes)


def _offered(eligible: NDArray[np.int64], offered: NDArray[np.bool_], context: StageContext) -> NDArray[np.int64]:
    """The offered rows. Drawn rows are added for a region of interest, or if less than a batch is offered: at most as
    many as are offered or as a batch has, whichever is larger."""
    chosen, outside = eligible[offered[eligible]], eligible[~offered[eligible]]
    batch_size = context.config.selection.batch_size
    most = max(int(offered.sum()), batch_size)
    if context.region is not None:
        chosen = np.union1d(chosen, _sample(outside[context.region[outside]], most, context))
    return chosen if len(chosen) >= batch_size else np.union1d(chosen, _sample(outside, most, context))


def _sample(eligible: NDArray[np.int64], limit: int, context: StageContext) -> NDArray[np.int64]:
    """`limit` of the rows; those of the region of interest come first."""
    order = context.runtime.numpy_generator("candidates").permutation(eligible)
    if context.region is not None:
        order = np.concatenate([order[context.region[order]], order[~context.region[order]]])
    return order[:limit]


def why_no_model(context: StageContext, inputs: Inputs) -> str | None:
    """A sentence that says why no model can be trained yet; None if one can be."""
    labels = np.where(inputs.readable, context.snapshot.labels, UNLABELED)
    return nothing_to_learn(labels, context.snapshot.n_classes)


def features_are_read(context: StageContext, inputs: Inputs) -> bool:
    """Whether the selection of this round reads kernel features.

    Rounds with an encoder do not. Other rounds do not either if there is a model and the proxy is the similarity graph
    that contains every candidate, or the head in its place: the proxy then reads diffusion features or embeddings,
    distances are those of the embeddings, and near-duplicates are found on the inputs.
    """
    if inputs.encoder:
        return False  # the features of the encoder are those of the proxy
    proxy = context.config.selection.proxy
    if proxy not in ("similarity", "similarity-head") or why_no_model(context, inputs) is not None:
        return True
    if proxy == "similarity-head":
        return False
    if not context.config.similarity.neighbors or inputs.kind != "audio":
        return True
    snapshot = context.snapshot
    in_graph = graph_rows(np.flatnonzero(inputs.readable & ~snapshot.held_out), snapshot.labels)
    rows = choose_candidates(context, inputs).rows
    return len(in_graph) < 2 or not bool(np.isin(rows, in_graph).all())


def choose_landmarks(context: StageContext, inputs: Inputs) -> Landmarks:
    """The previous round's landmarks, as long as the pool is less than twice as large as when they were drawn; else new
    ones."""
    kernel = context.config.kernel
    key = hashlib.sha256(f"{to_json(kernel)};{inputs.key}".encode()).hexdigest()[:24]
    usable = np.flatnonzero(inputs.readable & ~context.snapshot.held_out)
    before = context.previous.load_landmarks()
    if before is not None and before.key == key and len(usable) < landmarks.GROWTH * before.pool_size:
        return before
    names = [inputs.names[row] for row in usable]
    drawn = landmarks.choose_landmarks(names, SomeRows(inputs.clean, usable), kernel, report=context.report)
    return Landmarks(names=drawn, pool_size=len(usable), key=key)


def fit_kernel(context: StageContext, inputs: Inputs) -> FittedKernel:
    """The feature map of the round's landmarks, from the cache if it is there."""
    chosen = choose_landmarks(context, inputs)
    scope = Scope(landmarks=chosen.names, inputs_key=inputs.key, device=context.runtime.device)
    config, report = context.config.kernel, context.report
    kernel = KernelFeatures.prepare(inputs.clean, inputs.names, config, context.cache, scope, report)
    return FittedKernel(kernel=kernel, landmarks=chosen)


def kernel_features(
    context: StageContext, inputs: Inputs, kernel: KernelFeatures, rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """(len(rows), q) Nyström features, cached per item and kernel."""
    names = [inputs.names[row] for row in rows]
    found = kernel.rows(SomeRows(inputs.clean, rows), names, context.report)
    return np.asarray(found.take(np.arange(len(rows))), np.float32)


def view_features(
    context: StageContext, inputs: Inputs, kernel: KernelFeatures, rows: NDArray[np.int64]
) -> Callable[[int], NDArray[np.float32]] | None:
    """A function from a candidate to the cached features (A, q) of its augmented views; None if there are no views."""
    n_views = context.config.selection.n_views
    if n_views == 0:
        return None
    settings = views_key(inputs)

    def of(candidate: int) -> NDArray[np.float32]:
        row = rows[candidate : candidate + 1]
        names = [f"{inputs.names[row[0]]}:view{view}:{VIEW_SEED}{settings}" for view in range(n_views)]
        made = LazyRows((n_views, *inputs.shape), lambda: views(inputs, row, n_views, seed=VIEW_SEED)[0])
        return np.asarray(kernel.rows(made, names).take(np.arange(n_views)), np.float32)

    return of


def similarity_features(
    graph: SimilarityGraph | None, rows: NDArray[np.int64], report: Report
) -> Callable[[], NDArray[np.float32]] | None:
    """A function that gives (len(rows), q) diffusion features of the candidates, computed at the first call; None if
    the similarity graph does not contain all of them."""
    if graph is None or not np.isin(rows, graph.rows).all():
        return None

    @cache
    def made() -> NDArray[np.float32]:
        return diffusion_features(graph, report=report)[np.searchsorted(graph.rows, rows)]

    return made


def head_similarity(
    context: StageContext, inputs: Inputs, rows: NDArray[np.int64]
) -> Callable[[], NDArray[np.float32]] | None:
    """A function that gives (len(rows), q) diffusion features of the graph over which the head spreads labels, computed
    at the first call; None if that graph is too large or does not contain all candidates. Strategies then build their
    own graph."""
    fitted = fitted_rows(context, inputs)
    if not context.config.head.neighbors or len(fitted) > HEAD_ROWS or not np.isin(rows, fitted).all():
        return None

    @cache
    def made() -> NDArray[np.float32]:
        pool = prepare(features_of(inputs, fitted), context.snapshot.n_classes, context.config.head)
        assert pool.affinity is not None
        found = resolvent_features(pool.affinity, GRAPH_FEATURES, SPREAD, context.report)
        return found[np.searchsorted(fitted, rows)]

    return made


def flat_inputs(inputs: Inputs, rows: NDArray[np.int64]) -> Callable[[], NDArray[np.float32]]:
    """A function that gives (len(rows), d) network inputs of the candidates as vectors."""
    return lambda: np.asarray(inputs.clean.take(rows), np.float32).reshape(len(rows), -1)


def picture_vectors(
    context: StageContext, rows: NDArray[np.int64]
) -> Callable[[NDArray[np.int64]], NDArray[np.float32]]:
    """A function from candidates to (len(candidates), d) gradient histograms of the small pictures that training from
    scratch would use. The pictures are prepared when it is called."""

    def of(candidates: NDArray[np.int64]) -> NDArray[np.float32]:
        hashes, report = [context.snapshot.hashes[row] for row in rows[candidates]], as_stage("select", context.report)
        made = prepare_inputs(hashes, context.read, "image", context.config.media, context.cache, report)
        return gradient_histograms(np.asarray(made.clean.take(np.arange(len(hashes)))))

    return of


def selection_request(
    context: StageContext,
    inputs: Inputs,
    predictions: Predictions,
    labels: PropagatedLabels,
    features: CandidateFeatures | None,
) -> tuple[SelectionRequest | None, tuple[str, ...]]:
    """The request to the strategy for the candidate rows, or None if nothing can be chosen; and notes to show."""
    snapshot, rows = context.snapshot, choose_candidates(context, inputs).rows
    eligible = (snapshot.eligible & inputs.readable)[rows]
    proxy_rows = _proxy_rows(inputs, predictions, features, rows)
    wanted, available = context.config.selection.batch_size, int(eligible.sum())
    if available == 0:
        return None, (f"Nothing was picked: none of the {len(snapshot.item_ids):,} items is unlabeled.",)
    notes = (f"Asked for {wanted} items; only {available} can be picked.",) if available < wanted else ()
    by_view = predictions.view_probabilities
    region, region_notes = _open_region(context, rows, eligible)
    request = SelectionRequest(
        item_ids=snapshot.item_ids[rows],
        labeled=snapshot.labeled[rows],
        eligible=eligible,
        probabilities=np.asarray(labels.probabilities[rows]),
        embeddings=np.asarray(predictions.embeddings[rows]),
        features=proxy_rows,
        batch_size=min(wanted, available),
        seed=context.runtime.seed_for("select"),
        view_features=view_features(context, inputs, features.fitted.kernel, rows) if features is not None else None,
        view_probabilities=np.asarray(by_view[:, rows]) if by_view is not None else None,
        similarity_features=head_similarity(context, inputs, rows)
        if inputs.encoder
        else similarity_features(labels.graph, rows, context.report),
        inputs=flat_inputs(inputs, rows),
        picture_vectors=picture_vectors(context, rows)
        if inputs.encoder and inputs.kind == "image" and not predictions.has_model
        else None,
        region=region,
        region_share=context.region_share,
        windows=snapshot.windows[rows] if snapshot.windows is not None else None,
        has_model=predictions.has_model,
        temperature=predictions.temperature,
    )
    return request, (*notes, *region_notes)


def _proxy_rows(
    inputs: Inputs, predictions: Predictions, features: CandidateFeatures | None, rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """(len(rows), q) features of the proxy: with an encoder the embeddings, else the kernel features if there are any.
    Raises InvalidInput for values that are not finite."""
    found = features.features if features is not None else np.empty((len(rows), 0), np.float32)
    if inputs.encoder:
        found = predictions.embeddings[rows]
    broken = int((~np.isfinite(found).all(1)).sum())
    if broken:
        raise InvalidInput(f"The kernel features of {broken} of {len(rows)} items are not numbers. Check these items.")
    return np.asarray(found)


def _open_region(
    context: StageContext, rows: NDArray[np.int64], eligible: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_] | None, tuple[str, ...]]:
    """The region of interest on the candidate rows; None and a note if it contains no eligible row."""
    if context.region is None:
        return None, ()
    region = context.region[rows]
    if (region & eligible).any():
        return region, ()
    return None, ("The selected area has no unlabeled items, so the picks are from the whole pool.",)


def with_labels(
    probabilities: NDArray[np.float32], snapshot: PoolSnapshot, rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """The probabilities, one-hot on labeled rows."""
    labels = snapshot.labels[rows]
    given = np.flatnonzero(labels != UNLABELED)
    probabilities[given] = 0.0
    probabilities[given, labels[given]] = 1.0
    return probabilities


def project(
    inputs: Inputs, rows: NDArray[np.int64], context: StageContext, size_to: int = PROJECTED
) -> NDArray[np.float32]:
    """(len(rows), size_to) random projection of the inputs, for distances without a model on the first map."""
    size = int(np.prod(inputs.shape))
    axes = context.runtime.numpy_generator("projection").normal(size=(size, size_to)).astype(np.float32)
    projected = np.empty((len(rows), size_to), np.float32)
    for start in range(0, len(rows), 1024):
        block = rows[start : start + 1024]
        projected[start : start + 1024] = inputs.clean.take(block).reshape(len(block), size) @ axes / np.sqrt(size)
    return projected
