"""Every strategy by name, under one signature and the same constraints.

    select(request, config, report) -> Selection

runs `config.strategy`. Whatever the strategy, only eligible rows are chosen, a region gets its share, near-duplicates
are not chosen twice while others remain, and every pick carries its reason. The request is never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from core.acquisition import constraints, reasons
from core.acquisition.catalog import Entry, entry, names
from core.acquisition.strategies import (
    badge,
    bico,
    consistency,
    k_center,
    k_means,
    margin,
    max_entropy,
    max_herding,
    prob_cover,
    typiclust,
    uncertainty_herding,
    uniform,
)
from core.config import SelectionConfig
from core.types import Progress, Report, Selection, SelectionRequest, ignore

__all__ = ["Strategy", "get", "names", "select"]

Select = Callable[[SelectionRequest, SelectionConfig, Report], Selection]

_SELECT: dict[str, Select] = {
    "bico": bico.select,
    "uniform": uniform.select,
    "max_entropy": max_entropy.select,
    "margin": margin.select,
    "k_center": k_center.select,
    "consistency": consistency.select,
    "badge": badge.select,
    "k_means": k_means.select,
    "typiclust": typiclust.select,
    "prob_cover": prob_cover.select,
    "max_herding": max_herding.select,
    "uncertainty_herding": uncertainty_herding.select,
}


@dataclass(frozen=True, slots=True)
class Strategy:
    """A strategy and what people read about it."""

    entry: Entry
    select: Select


def get(name: str) -> Strategy:
    return Strategy(entry(name), _SELECT[entry(name).name])


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    """The next batch by `config.strategy`; `request.batch_size` items, in the order chosen."""
    strategy = get(config.strategy)
    constraints.check(request)
    m = request.batch_size
    report(Progress("select", 0, m, strategy.entry.title))
    twins = constraints.find_near_duplicates(request, config)
    chosen = np.empty(0, np.int64)
    drafts: list[Selection] = []
    notes: list[str] = []
    if not twins.complete:
        notes.append("The pool is too dense to tell near-duplicates apart: only equal items count as duplicates.")
    for part, rows in constraints.parts(request):
        steps = constraints.distinct_first(request, twins, rows, chosen, part)
        if rows is steps[-1][1]:
            notes.append(f"{steps[-1][0]} near-duplicates were let in: there are not enough distinct items.")
        for count, allowed in steps:
            inner = constraints.part_request(request, count, allowed, chosen)
            drafts.append(strategy.select(inner, config, _continued(report, len(chosen), m)))
            chosen = np.concatenate([chosen, _rows_of(request, drafts[-1])])
    merged = _merge(request, drafts, notes)
    finished = reasons.attach(request, config, merged, chosen)
    report(Progress("select", m, m, strategy.entry.title))
    return finished


def _continued(report: Report, done: int, total: int) -> Report:
    """A report for a part of the batch, told as part of the whole."""

    def tell(progress: Progress) -> None:
        report(replace(progress, done=done + progress.done, total=total))

    return tell


def _rows_of(request: SelectionRequest, draft: Selection) -> np.ndarray:
    order = np.argsort(request.item_ids, kind="stable")
    return order[np.searchsorted(request.item_ids, draft.item_ids, sorter=order)]


def _merge(request: SelectionRequest, drafts: list[Selection], notes: list[str]) -> Selection:
    """One selection of all parts; reasons of the strategy only when every part gave them."""
    complete = all(len(draft.reasons) == len(draft.item_ids) for draft in drafts)
    told = [note for draft in drafts for note in draft.notes]
    return Selection(
        item_ids=np.concatenate([draft.item_ids for draft in drafts]),
        scores=np.concatenate([draft.scores for draft in drafts]),
        strategy=drafts[0].strategy,
        reasons=tuple(reason for draft in drafts for reason in draft.reasons) if complete else (),
        notes=tuple(dict.fromkeys([*notes, *told])),
    )
