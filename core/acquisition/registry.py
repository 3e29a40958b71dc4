"""Runs the strategy that a request's settings name, under the constraints that hold for every strategy.

    select(request, config, report) -> Selection

Only eligible rows are chosen, a region gets its share, near-duplicates are not chosen together while others remain, and
every pick has a reason. The request is not changed. `core.acquisition.catalog` lists the strategies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import cast

import numpy as np
from numpy.typing import NDArray

from core.acquisition import catalog, constraints, reasons
from core.config import SelectionConfig
from core.types import Progress, Report, Selection, SelectionRequest, ignore

Select = Callable[[SelectionRequest, SelectionConfig, Report], Selection]
STRATEGIES_PACKAGE = "core.acquisition.strategies"


def strategy_function(name: str) -> Select:
    """The `select` function of a listed strategy; raises `InvalidInput` if it is not listed."""
    return cast(Select, import_module(f"{STRATEGIES_PACKAGE}.{catalog.entry(name).name}").select)


def select(
    request: SelectionRequest, config: SelectionConfig, report: Report = ignore, *, explain: bool = True
) -> Selection:
    """The next batch by `config.strategy`: `request.batch_size` items in the order in which they are chosen.

    Without `explain`, picks have only the reasons that the strategy itself gives, which is cheaper if reasons are not
    read.
    """
    run, title = strategy_function(config.strategy), catalog.entry(config.strategy).title
    constraints.check(request)
    m = request.batch_size
    report(Progress("select", 0, m, title))
    twins = constraints.find_near_duplicates(request, config)
    chosen = np.empty(0, np.int64)
    drafts: list[Selection] = []
    notes: list[str] = []
    if not twins.complete:
        notes.append("The pool is too dense to search for near-duplicates: only equal items count as duplicates.")
    for part, rows in constraints.parts(request):
        steps = constraints.distinct_first(request, twins, rows, chosen, part)
        if rows is steps[-1][1]:
            notes.append(f"{steps[-1][0]} near-duplicates were chosen: there are not enough distinct items.")
        for count, allowed in steps:
            inner = constraints.part_request(request, count, allowed, chosen)
            drafts.append(run(inner, config, _continued(report, len(chosen), m)))
            chosen = np.concatenate([chosen, _rows_of(request, drafts[-1])])
    merged = _merge(request, drafts, notes)
    finished = reasons.attach(request, config, merged, chosen) if explain else merged
    report(Progress("select", m, m, title))
    return finished


def _continued(report: Report, done: int, total: int) -> Report:
    """A callback for one part of the batch that reports progress of the whole batch."""

    def report_part(progress: Progress) -> None:
        report(replace(progress, done=done + progress.done, total=total))

    return report_part


def _rows_of(request: SelectionRequest, draft: Selection) -> NDArray[np.int64]:
    """(m,) rows of the request that the draft chose, in order."""
    order = np.argsort(request.item_ids, kind="stable")
    return order[np.searchsorted(request.item_ids, draft.item_ids, sorter=order)]


def _merge(request: SelectionRequest, drafts: list[Selection], notes: list[str]) -> Selection:
    """One selection of all parts. It has the strategy's reasons only if every part has them."""
    complete = all(len(draft.reasons) == len(draft.item_ids) for draft in drafts)
    draft_notes = [note for draft in drafts for note in draft.notes]
    return Selection(
        item_ids=np.concatenate([draft.item_ids for draft in drafts]),
        scores=np.concatenate([draft.scores for draft in drafts]),
        strategy=drafts[0].strategy,
        reasons=tuple(reason for draft in drafts for reason in draft.reasons) if complete else (),
        notes=tuple(dict.fromkeys([*notes, *draft_notes])),
    )
