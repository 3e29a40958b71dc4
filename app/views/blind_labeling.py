"""Blind labeling: with several annotators per item, nobody sees labels or predictions of an item before labeling it.

`ProjectSettings.is_blind` says whether a project is blind. Cards and tiles apply the rule to the item they show; the
map, Review and the table of picks leave out what `items_to_hide` names.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from storage.database.store import Store
from storage.labeling.labeled_items import own_classes
from storage.labeling.pool import Pool
from storage.projects.projects import get_project


def items_to_hide(store: Store, project_id: int, annotator: int | None) -> NDArray[np.int64]:
    """(n,) ids of the items that this annotator may still label and has not labeled; empty if the project is not blind.

    Without an annotator nothing is hidden.
    """
    if annotator is None or not get_project(store, project_id).settings.is_blind:
        return np.empty(0, np.int64)
    own = own_classes(store, project_id, annotator)
    return np.setdiff1d(Pool(store, project_id).waiting_ids(), np.fromiter(own, np.int64, len(own)))
