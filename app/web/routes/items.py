"""Routes of the item browser: a page of tiles, the choices of its filters, and actions on items.

An action lists its items or contains a query; in that case it applies to all items of the query, which is evaluated
again. Every action calls one function of `storage`, which checks the role of the person.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, cast

from app.jobs.deletions import start_deletion
from app.views.text import count
from app.views.tile_order import SORTS, Sort
from app.web import resources
from app.web.routes import cards, fields, tiles
from app.web.routes.exports import start_export
from app.web.routes.fields import Body
from app.web.routes.tiles import TileQuery, found_items
from core.errors import InvalidInput
from storage.exporting.rows import TABLES, ExportOptions, Format
from storage.labeling.browsing.item_browser import MARKS, SHOWS, ItemQuery, Mark, Show, query_choices
from storage.labeling.browsing.requeue import Sent, send_to_queue, take_back
from storage.labeling.held_out import HeldOutMove, move_to_pool, move_to_test
from storage.labeling.labeled_items import items_to_hide
from storage.labeling.state_arrays import NO_ID
from storage.projects.deletion import plan_deletion
from storage.projects.projects import ProjectRow, get_project

Answer = dict[str, Any]
ACTIONS = ("queue", "take-back", "test", "pool", "export", "plan-delete", "delete")
MOST_TILES = 240
MOST_UNDONE = 20_000  # largest number of items of an action that can be undone


def give_tiles(project: int, annotator: int, body: Body) -> Answer:
    store = resources.store()
    found = tiles.tiles(store, project, tile_query(get_project(store, project), annotator, body))
    return found | {"state": cards.work_state(store, project, annotator)}


def tile_query(project: ProjectRow, annotator: int, body: Body) -> TileQuery:
    """The query of a request. The default query selects the items that wait for a label."""
    low, high = fields.share(body, "least"), fields.share(body, "most")
    return TileQuery(
        find=ItemQuery(
            show=cast(Show, fields.choice(body, "show", SHOWS, "waiting")),
            marks=cast(tuple[Mark, ...], fields.choices(body, "marks", MARKS)),
            class_id=fields.integer(body, "label_id"),
            annotator_id=fields.integer(body, "annotator_id"),
            round_id=fields.integer(body, "round_id"),
            split=fields.text(body, "split"),
            since=fields.moment(body, "since"),
            until=fields.moment(body, "until"),
            search=fields.text(body, "search").strip(),
            items=None if body.get("items") is None else tuple(fields.integers(body, "items")),
            viewer=annotator if project.settings.is_blind else NO_ID,
            hidden=() if project.settings.is_blind else tuple(_hidden(project.id, annotator)),
        ),
        class_id=fields.integer(body, "class_id"),
        confidence=None if low is None and high is None else (low or 0.0, 1.0 if high is None else high),
        order=cast(Sort, fields.choice(body, "order", SORTS, "sure")),
        like=fields.integer(body, "like"),
        after=fields.integer(body, "after"),
        offset=max(0, fields.integer(body, "offset") or 0),
        limit=max(1, min(fields.integer(body, "limit") or 60, MOST_TILES)),
    )


def _hidden(project: int, annotator: int) -> list[int]:
    found: list[int] = items_to_hide(resources.store(), project, annotator).tolist()
    return found


def give_choices(project: int, annotator: int, body: Body) -> Answer:
    """The choices of the filters."""
    store = resources.store()
    row = get_project(store, project)
    found = query_choices(store, project, annotator if row.settings.is_blind else NO_ID)
    return {
        "annotators": [{"id": one, "name": name} for one, name in found.annotators],
        "rounds": [{"id": one, "number": number} for one, number in found.rounds],
        "splits": found.splits,
        "blind": row.settings.is_blind,
    }


def act(project: int, annotator: int, body: Body) -> Answer:
    """Run one action on items. The response has a `message` for the user."""
    store = resources.store()
    row, action = get_project(store, project), fields.choice(body, "action", ACTIONS, "")
    if action == "take-back":
        return _taken_back(project, annotator, body)
    item_ids = _item_ids(row, annotator, body)
    if not item_ids:
        raise InvalidInput("No item is selected.")
    if action == "queue":
        return _queued(project, annotator, item_ids)
    if action in ("test", "pool"):
        move = move_to_test if action == "test" else move_to_pool
        return {"message": _moved(move(store, project, item_ids), action)}
    if action == "export":
        return _export(row, item_ids, body)
    if action == "plan-delete":
        plan = plan_deletion(store, project, item_ids)
        return {"message": plan.sentence(), "confirm": row.name} | asdict(plan)
    start_deletion(store, project, fields.text(body, "confirm"), item_ids)
    return {"message": f"Deleting {count(len(item_ids), 'item')}."}


def _item_ids(project: ProjectRow, annotator: int, body: Body) -> list[int]:
    """The items in the request, or all items of its query, in order."""
    if "query" not in body:
        return list(dict.fromkeys(fields.integers(body, "items")))
    query = body["query"]
    if not isinstance(query, dict):
        raise InvalidInput("query must be an object.")
    found = found_items(resources.store(), project.id, tile_query(project, annotator, query))
    order = found.order.positions
    ids: list[int] = found.matches.states.item_ids[order[found.wanted[order]]].tolist()
    return ids


def _queued(project: int, annotator: int, item_ids: list[int]) -> Answer:
    sent = send_to_queue(resources.store(), project, item_ids, annotator=annotator)
    rest = len(item_ids) - sent.n_waiting
    parts = [f"{count(sent.n_waiting, 'item')} moved to the front of the queue."]
    if sent.skipped:
        parts.append(
            f"{count(len(sent.skipped), 'item')} {'was' if len(sent.skipped) == 1 else 'were'} skipped before."
        )
    if rest:
        parts.append(f"{count(rest, 'item')} cannot be queued: labeled, test items or unreadable.")
    undo = {
        "ranks": [[one, rank] for one, rank in sent.ranks.items()],
        "skipped": [[one, n_labels] for one, n_labels in sent.skipped.items()],
    }
    return {"message": " ".join(parts)} | ({"undo": undo} if 0 < sent.n_waiting <= MOST_UNDONE else {})


def _taken_back(project: int, annotator: int, body: Body) -> Answer:
    sent = Sent(ranks=fields.pairs(body, "ranks"), skipped=fields.pairs(body, "skipped"))
    done = take_back(resources.store(), project, sent, annotator=annotator)
    return {"message": f"{count(done, 'item')} moved back."}


def _moved(done: HeldOutMove, action: str) -> str:
    where = "Test items now" if action == "test" else "Back in the pool"
    same = f", {done.unchanged:,} already" if done.unchanged else ""
    return " ".join([f"{where}: {done.moved:,}{same}.", *done.warnings])


def _export(project: ProjectRow, item_ids: list[int], body: Body) -> Answer:
    chosen = cast(Format, fields.choice(body, "format", TABLES, "csv"))
    options = ExportOptions(format=chosen, items=tuple(item_ids), unlabeled=True)
    start_export(project, replace(options, held_out=bool(body.get("test_labels"))))
    return {
        "message": f"Exporting {count(len(item_ids), 'item')}. The file appears on Export.",
        "go": "export",
    }
