"""TCM: TypiClust while there are few labels, then the smallest margin (Doucet et al., 2024).

Below SWITCH labels per class the batch is TypiClust's, from there on that of margin sampling. The score is that of the
strategy in use, and a note names it.

Departures and details: the paper switches after a number of rounds. Here the number of labels per class decides, so
that the batch size does not. SWITCH is our choice; it was not checked against the paper's text.
"""

from __future__ import annotations

from dataclasses import replace

from core.acquisition.pool_view import is_cold
from core.acquisition.strategies import margin, typiclust
from core.config import SelectionConfig
from core.types import Report, Selection, SelectionRequest, ignore

SWITCH = 3  # labels per class


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    few = int(request.labeled.sum()) < SWITCH * request.n_classes
    run = typiclust.select if is_cold(request) or few else margin.select
    found = run(request, config, report)
    note = f"Below {SWITCH} labels per class: TypiClust." if few else f"From {SWITCH} labels per class on: margin."
    return replace(found, strategy="tcm", notes=(note, *found.notes))
