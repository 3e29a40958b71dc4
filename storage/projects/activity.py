"""When something last happened in a project: a label event, a round, an import."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select

from storage.database.schema import Annotator, Item, LabelEvent, Project, Round
from storage.database.store import Store
from storage.projects import roles


def last_activity(store: Store, project_id: int) -> datetime:
    """The latest of the times of the project's creation, last label event, last round and last imported item. Each is
    found through an index, so the cost does not grow with the number of labels."""
    roles.check(store, project_id, "read")
    last_of_annotator = (
        select(func.max(LabelEvent.sequence))
        .where(LabelEvent.project_id == project_id, LabelEvent.annotator_id == Annotator.id)
        .correlate(Annotator)
        .scalar_subquery()
    )
    newest = select(func.max(last_of_annotator)).select_from(Annotator).scalar_subquery()
    ended = func.coalesce(Round.finished_at, Round.started_at, Round.requested_at)
    queries = (
        select(Project.created_at).where(Project.id == project_id),
        select(LabelEvent.at).where(LabelEvent.sequence == newest),
        select(ended).where(Round.project_id == project_id).order_by(Round.number.desc()).limit(1),
        select(Item.imported_at).where(Item.project_id == project_id).order_by(Item.id.desc()).limit(1),
    )
    with store.read() as connection:
        found = [connection.execute(query).scalar_one_or_none() for query in queries]
    return max(moment for moment in found if moment is not None)
