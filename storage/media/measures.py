"""What import measured of a project's pool: durations and rates of clips, sizes of pictures. Test items are left out,
so that no setting depends on them."""

from __future__ import annotations

import numpy as np
from sqlalchemy import select

from core.types import PoolMeasures
from storage.database.schema import Item
from storage.database.store import Store


def pool_measures(store: Store, project_id: int) -> PoolMeasures:
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
