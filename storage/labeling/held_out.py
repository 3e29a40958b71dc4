"""Moving items to the test items and back, with warnings about the effect on the measured accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, update

from core.errors import NotFound
from storage.database.bulk import chunks
from storage.database.schema import Item, LabelEvent, Round
from storage.database.store import Store, now
from storage.labeling import projections
from storage.labeling.groups import both_sides_warning
from storage.projects import audit, projects, roles


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutMove:
    moved: int
    unchanged: int  # already there
    warnings: tuple[str, ...]


def move_to_test(store: Store, project_id: int, item_ids: Sequence[int]) -> HeldOutMove:
    """Use these items for evaluation only. Their labels become test labels and train no later round."""
    return _move(store, project_id, item_ids, held_out=True)


def move_to_pool(store: Store, project_id: int, item_ids: Sequence[int]) -> HeldOutMove:
    """Return test items to the pool, including those of a test set. They can be picked and used for training again."""
    return _move(store, project_id, item_ids, held_out=False)


def _move(store: Store, project_id: int, item_ids: Sequence[int], *, held_out: bool) -> HeldOutMove:
    wanted = sorted({one for one in item_ids if 0 < one < 2**62})
    moved: list[int] = []
    n_trained = n_known = 0
    with store.write() as connection:
        projects.touch(connection, project_id)
        newest = select(func.max(Round.label_sequence)).where(
            Round.project_id == project_id, Round.status == "finished"
        )
        sequence = connection.execute(newest).scalar()
        for block in chunks(wanted):
            mine = (Item.project_id == project_id, Item.id.in_(block))
            rows = connection.execute(select(Item.id, Item.held_out).where(*mine)).all()
            n_known += len(rows)
            ids = [row.id for row in rows if row.held_out != held_out]
            connection.execute(update(Item).where(Item.id.in_(ids)).values(held_out=held_out, test_set_id=None))
            projections.refresh_states(connection, project_id, ids)
            projections.mark_changed(connection, project_id, ids)
            used = select(func.count(LabelEvent.item_id.distinct())).where(
                LabelEvent.item_id.in_(ids),
                LabelEvent.kind.in_(("label", "decide")),
                LabelEvent.sequence <= (sequence or 0),
            )
            n_trained += int(connection.execute(used).scalar_one())
            moved += ids
        if n_known < len(wanted):
            raise NotFound(
                f"{len(wanted) - n_known} of {len(wanted)} items are not in this project. Nothing was moved."
            )
        actor = roles.current_actor()
        detail = {"items": moved, "test": held_out, "at": now().isoformat()}
        by = None if actor is None else actor.annotator_id
        if moved:
            audit.record(connection, audit.Entry("move_test_items", project_id, by, detail))
    return HeldOutMove(
        moved=len(moved),
        unchanged=n_known - len(moved),
        warnings=(
            *_warnings(len(moved), n_trained, sequence is not None, held_out),
            *(both_sides_warning(store, project_id) if moved else ()),
        ),
    )


def _warnings(n_moved: int, n_trained: int, has_round: bool, held_out: bool) -> tuple[str, ...]:
    found = []
    if held_out and n_trained:
        found.append(
            f"{n_trained:,} of the items were labeled before a finished round and may have trained its model. Accuracy "
            "on them is too high until the model is trained again without them."
        )
    if not held_out and n_moved:
        found.append("A later round may train on these items. Do not use them as test items again after that.")
    if n_moved and has_round:
        found.append("The accuracy of later rounds is measured on other test items than that of earlier rounds.")
    return tuple(found)
