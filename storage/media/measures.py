"""The measurements made at import over a project's pool: durations and rates of clips, sizes of pictures. Test items
are left out, so that no setting depends on them."""

from __future__ import annotations

import numpy as np
from sqlalchemy import func, select

from core.types import PoolMeasures
from storage.database.schema import Item
from storage.database.store import Store


def pool_measures(store: Store, project_id: int) -> PoolMeasures:
    """The measures of the readable items of the pool."""
    columns = (Item.seconds, Item.sample_rate, Item.width, Item.height)
    query = select(*columns).where(
        Item.project_id == project_id, Item.held_out.is_(False), Item.condition != "unreadable"
    )
    with store.read() as connection:
        rows = connection.execute(query).all()
    clips = [(row[0], row[1]) for row in rows if row[0] and row[1]]
    pictures = [(row[2], row[3]) for row in rows if row[2] and row[3]]
    return PoolMeasures(
        seconds=np.array([seconds for seconds, _ in clips], np.float64),
        sample_rates=np.array([rate for _, rate in clips], np.int64),
        widths=np.array([width for width, _ in pictures], np.int64),
        heights=np.array([height for _, height in pictures], np.int64),
    )


def typical_and_extreme_items(store: Store, project_id: int, n: int = 6) -> list[int]:
    """At most n item ids, evenly spaced from the shortest to the longest clip, or from the tallest to the widest
    picture."""
    size = func.coalesce(Item.seconds, 1.0 * Item.width / func.nullif(Item.height, 0))
    pool = (Item.project_id == project_id, Item.held_out.is_(False), Item.condition == "ok", size.is_not(None))
    with store.read() as connection:
        total = connection.execute(select(func.count()).select_from(Item).where(*pool)).scalar_one()
        places = sorted({round(k * (total - 1) / max(n - 1, 1)) for k in range(min(n, total))})
        found: list[int] = []
        for place in places:
            query = select(Item.id).where(*pool).order_by(size, Item.id).limit(1).offset(place)
            found += connection.execute(query).scalars().all()
    return found
