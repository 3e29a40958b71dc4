"""TCM: TypiClust while there are few labels, then the smallest margin (Doucet et al., 2024).

Below SWITCH labels per class the batch is that of TypiClust, otherwise that of margin sampling. The score is that of
the strategy in use, and a note names it.

Departures and details
- The abstract and public summaries of the paper (arXiv 2403.03728) say that TypiClust comes first and margin sampling
  second, that a heuristic gives the point of transition together with a rule for the step size, and that the transition
  may be early with a pretrained backbone. They do not state the numbers of the heuristic, and the authors' code was not
  found. SWITCH is a choice of this implementation.
- The transition depends on the number of labels per class, not on the number of rounds, so that the batch size does not
  matter.
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
