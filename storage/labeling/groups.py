"""Groups of items that belong together (speaker, patient, recording), which random splits do not divide.

The group of an item is the one that its source names. A window without such a group belongs to the group of its
recording. Any other item without one is a group of its own.

Test groups: a test set is drawn from whole groups where there are enough of them. These are chosen at random: as many
as contain 1.25 times the wanted number of items on average, and at least FEWEST_TEST_GROUPS. There are enough if this
is at most a third of the groups without a label, and there are FEWEST_GROUPS or more of those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from sqlalchemy import ColumnElement, Integer, case, cast, func, select

from storage.database.schema import Item
from storage.database.store import Store
from storage.database.tables.recordings import Recording

SHOWN = 5
FEWEST_GROUPS, FEWEST_TEST_GROUPS = 24, 8
SPARE = 1.25
MOST_SHARE = 1 / 3  # of the groups, for the test items


def group_column() -> ColumnElement[str]:
    """The group of an item; NULL for items without one."""
    return case((Item.group_name != "", Item.group_name), else_=Item.recording_sha256)


def n_test_groups(n_groups: int, n_items: int, wanted: int) -> int:
    """How many of `n_groups` groups with `n_items` items become test groups for `wanted` test items; 0: not enough."""
    if n_groups < FEWEST_GROUPS:
        return 0
    number = max(FEWEST_TEST_GROUPS, math.ceil(SPARE * wanted * n_groups / max(n_items, 1)))
    return number if number <= MOST_SHARE * n_groups else 0


def choose_groups(groups: Sequence[str], wanted: int, rng: np.random.Generator) -> set[str]:
    """Test groups for `wanted` test items, from the group of each item; empty where there are not enough."""
    names = sorted(set(groups))
    number = n_test_groups(len(names), len(groups), wanted)
    return {names[at] for at in rng.choice(len(names), number, replace=False)}


def groups_on_both_sides(store: Store, project_id: int) -> list[str]:
    """The groups with items in the pool and among the test items; recordings by their names."""
    group = group_column()
    held_out = cast(Item.held_out, Integer)
    query = (
        select(group)
        .where(Item.project_id == project_id, group.is_not(None))
        .group_by(group)
        .having(func.min(held_out) != func.max(held_out))
        .order_by(group)
    )
    with store.read() as connection:
        found = list(connection.execute(query).scalars())
        names = select(Recording.sha256, Recording.name).where(Recording.project_id == project_id)
        shown = {row.sha256: row.name for row in connection.execute(names)} if found else {}
    return [shown.get(one, one) for one in found]


def both_sides_warning(store: Store, project_id: int) -> list[str]:
    """One sentence when groups are divided, else nothing."""
    found = groups_on_both_sides(store, project_id)
    if not found:
        return []
    more = f" and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
    return [
        f"{len(found):,} group{'s are' if len(found) > 1 else ' is'} both in the pool and among the test items "
        f"({', '.join(found[:SHOWN])}{more}): the test accuracy may be too high for new groups."
    ]
