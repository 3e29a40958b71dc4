"""What strategies get to see: the candidate rows, their kernel features, and the request made of them.

Large pools: strategies see the labeled rows and at most `selection.max_candidates` of the rows that may be chosen,
drawn with the round's seed, those of a region of interest first. Kernel features are computed for these rows alone.
Pools that never stop growing come with a buffer of candidates (`core.rounds.stream_buffer`): then strategies see what
it offers, filled up with drawn rows only where it offers less than a batch.

Landmarks last: a round keeps those of the previous round until the pool has doubled (`core.kernels.landmarks`), so that
features of known items stay valid. They are part of what a round leaves, not of a machine's cache, so a round gives the
same features wherever it runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from core.config import to_json
from core.errors import InvalidInput
from core.kernels import landmarks
from core.kernels.nystrom import KernelFeatures, Scope
from core.media.inputs import Inputs
from core.media.views import views
from core.rounds.context import Candidates, Featured, Landmarks, PoolPredictions, Work
from core.rows import LazyRows, SomeRows
from core.similarity.diffusion import diffusion_features
from core.similarity.graph import SimilarityGraph
from core.types import Report, SelectionRequest

VIEW_SEED = 0  # the views of an item are the same in every round, so that their features are computed once


def choose_candidates(work: Work, inputs: Inputs) -> Candidates:
    """Labeled rows and the rows that may be chosen, at most `max_candidates` of them."""
    snapshot, limit = work.snapshot, work.config.selection.max_candidates
    eligible = np.flatnonzero(snapshot.eligible & inputs.readable)
    labeled = np.flatnonzero(snapshot.labeled & inputs.readable)
    notes: tuple[str, ...] = ()
    if work.offered is not None and not work.offered[eligible].all():
        n_waiting, eligible = len(eligible), _offered(eligible, work.offered, work)
        notes = (f"Picked from {len(eligible):,} of {n_waiting:,} unlabeled items, the candidate pool of the folder.",)
    if len(eligible) > limit:
        notes = (f"Picked from {limit:,} of {len(eligible):,} unlabeled items, drawn with the seed of the round.",)
        eligible = _sample(eligible, limit, work)
    return Candidates(rows=np.union1d(labeled, eligible), notes=notes)


def _offered(eligible: NDArray[np.int64], offered: NDArray[np.bool_], work: Work) -> NDArray[np.int64]:
    """The offered rows. Of a region of interest, and where less than a batch is offered, drawn rows join them: never
    more than are offered, or than a batch has."""
    chosen, outside = eligible[offered[eligible]], eligible[~offered[eligible]]
    batch_size = work.config.selection.batch_size
    most = max(int(offered.sum()), batch_size)
    if work.region is not None:
        chosen = np.union1d(chosen, _sample(outside[work.region[outside]], most, work))
    return chosen if len(chosen) >= batch_size else np.union1d(chosen, _sample(outside, most, work))


def _sample(eligible: NDArray[np.int64], limit: int, work: Work) -> NDArray[np.int64]:
    """`limit` of the rows; those of the region of interest come first."""
    order = work.runtime.numpy_generator("candidates").permutation(eligible)
    if work.region is not None:
        order = np.concatenate([order[work.region[order]], order[~work.region[order]]])
    return order[:limit]


def choose_landmarks(work: Work, inputs: Inputs) -> Landmarks:
    """The previous round's landmarks while the pool is less than twice as large as when they were drawn."""
    kernel = work.config.kernel
    key = hashlib.sha256(f"{to_json(kernel)};{inputs.key}".encode()).hexdigest()[:24]
    usable = np.flatnonzero(inputs.readable & ~work.snapshot.held_out)
    before = work.previous.landmarks if work.previous is not None else None
    if before is not None and before.key == key and len(usable) < landmarks.GROWTH * before.pool_size:
        return before
    names = [inputs.names[row] for row in usable]
    drawn = landmarks.choose_landmarks(names, SomeRows(inputs.clean, usable), kernel, report=work.report)
    return Landmarks(names=drawn, pool_size=len(usable), key=key)


def fit_kernel(work: Work, inputs: Inputs, chosen: Landmarks) -> KernelFeatures:
    """The feature map of the landmarks, or the one the cache remembers."""
    scope = Scope(landmarks=chosen.names, inputs_key=inputs.key, device=work.runtime.device)
    return KernelFeatures.prepare(inputs.clean, inputs.names, work.config.kernel, work.cache, scope, work.report)


def kernel_features(work: Work, inputs: Inputs, kernel: KernelFeatures, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(len(rows), q) Nyström features, remembered per item and kernel."""
    names = [inputs.names[row] for row in rows]
    found = kernel.rows(SomeRows(inputs.clean, rows), names, work.report)
    return np.asarray(found.take(np.arange(len(rows))), np.float32)


def view_features(
    work: Work, inputs: Inputs, kernel: KernelFeatures, rows: NDArray[np.int64]
) -> Callable[[int], NDArray[np.float32]] | None:
    """Candidate -> (A, q) features of its augmented views, remembered; None when no views are asked for."""
    n_views = work.config.selection.n_views
    if n_views == 0:
        return None

    def of(candidate: int) -> NDArray[np.float32]:
        row = rows[candidate : candidate + 1]
        names = [f"{inputs.names[row[0]]}:view{view}:{VIEW_SEED}" for view in range(n_views)]
        made = LazyRows((n_views, *inputs.shape), lambda: views(inputs, row, n_views, seed=VIEW_SEED)[0])
        return np.asarray(kernel.rows(made, names).take(np.arange(n_views)), np.float32)

    return of


def similarity_features(
    likeness: SimilarityGraph | None, rows: NDArray[np.int64], report: Report
) -> Callable[[], NDArray[np.float32]] | None:
    """() -> (len(rows), q) diffusion features of the candidates, made once when first asked for; None where no likeness
    is known for all of them."""
    if likeness is None or not np.isin(rows, likeness.rows).all():
        return None

    @cache
    def made() -> NDArray[np.float32]:
        return diffusion_features(likeness, report=report)[np.searchsorted(likeness.rows, rows)]

    return made


def selection_request(
    work: Work, inputs: Inputs, guesses: PoolPredictions, candidates: Candidates, featured: Featured
) -> tuple[SelectionRequest | None, tuple[str, ...]]:
    """What strategies may know, on the candidate rows; None when nothing can be chosen. With what to tell people."""
    snapshot, rows = work.snapshot, candidates.rows
    eligible = (snapshot.eligible & inputs.readable)[rows]
    broken = int((~np.isfinite(featured.features).all(1)).sum())
    if broken:
        raise InvalidInput(f"The kernel features of {broken} of {len(rows)} items are not numbers. Check these items.")
    wanted, available = work.config.selection.batch_size, int(eligible.sum())
    if available == 0:
        return None, (f"Nothing was picked: none of the {len(snapshot.item_ids):,} items is unlabeled.",)
    notes = (f"Asked for {wanted} items; only {available} can be picked.",) if available < wanted else ()
    by_view = guesses.view_probabilities
    region = work.region[rows] if work.region is not None else None
    if region is not None and not (region & eligible).any():
        region, notes = (
            None,
            (*notes, "The selected area has no unlabeled items, so the picks are from the whole pool."),
        )
    request = SelectionRequest(
        item_ids=snapshot.item_ids[rows],
        labeled=snapshot.labeled[rows],
        eligible=eligible,
        probabilities=np.asarray(guesses.probabilities[rows]),
        embeddings=np.asarray(guesses.embeddings[rows]),
        features=np.asarray(featured.features),
        batch_size=min(wanted, available),
        seed=work.runtime.seed_for("select"),
        view_features=view_features(work, inputs, featured.kernel, rows),
        view_probabilities=np.asarray(by_view[:, rows]) if by_view is not None else None,
        similarity_features=similarity_features(guesses.likeness, rows, work.report),
        region=region,
        region_share=work.region_share,
        has_model=guesses.has_model,
    )
    return request, notes
