"""Cards and the work state as JSON for the widgets. All strings are exactly as stored.

A card contains the item, the addresses of its media, the reason why it is shown, and the suggestion of the model. The
suggestion has its item id and whether it is shown. The project shows suggestions always, never, or hides them on a
share of the items; the share is drawn from item, annotator and round, so that it is the same for every request. An item
whose label the model was trained with has no suggestion.

A hidden suggestion is not part of the card. The card has the id of its round instead, and `hidden_suggestion` returns
the class and confidence that are stored with the label.

In a blind project (`ProjectSettings.is_blind`), a suggestion is hidden until the annotator has labeled the item, and
the nearest labeled items are chosen among those that the annotator has labeled and show the annotator's own labels. The
card of a test item never has a suggestion or nearest items.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from typing import Any

from app.jobs import jobs
from app.live.current import current_predictions, live_state
from app.views.cards.pick_sentences import pick_sentence, second_look_sentence
from app.views.predictions import Prediction, RoundPredictions, newest_predictions, predictions_of
from app.views.similarity.neighbors import nearest_labeled
from app.views.strategy_names import strategy_title
from app.web.routes.media import media_path, picture_path, sound_path
from app.web.routes.recordings import recording_path
from core.errors import NotFound
from core.rounds import stage_names
from storage.database.store import Store
from storage.labeling.item_rows import ItemRow
from storage.labeling.labeled_items import items_to_hide, own_classes
from storage.labeling.pool import LabelEventRow, Pool, PoolCounts
from storage.media.types import media_kind
from storage.projects import class_rows, classes
from storage.projects.class_rows import ClassRow
from storage.projects.projects import ProjectRow, ProjectSettings, get_project
from storage.rounds.log import RoundLog, RoundRow

PICK_NUMBERS = ("outer_before", "outer_after", "stands_for", "confidence", "nearest_distance")
LIKELY = 5  # number of classes in a suggestion
PACE_OVER = 30  # newest labels from which the pace is computed
LONGEST_DECISION = 120.0  # seconds; longer times are breaks


def cards(store: Store, project: ProjectRow, annotator: int, items: Sequence[ItemRow]) -> list[dict[str, Any]]:
    """One card per item, in order."""
    pool = Pool(store, project.id)
    known = classes.list_classes(store, project.id, include_inactive=True)
    found, current = newest_predictions(store, project.id), current_predictions(store, project.id)
    ids = [item.id for item in items]
    near = _nearest(pool, ids, found, known, audience=annotator if project.settings.is_blind else 0)
    hidden = set() if project.settings.is_blind else set(items_to_hide(store, project.id, annotator).tolist())
    own = own_classes(store, project.id, annotator, ids) if project.settings.is_blind else {}
    queued = pool.prioritized(ids)
    log = RoundLog(store, project.id)
    rounds = {n: (log.get(n).strategy, len(log.picks(n))) for n in {item.pick.round_id for item in items if item.pick}}
    made = []
    for item in items:
        card = _card(item, rounds, item.id in queued, found)
        blind = project.settings.is_blind and item.id not in own
        card["suggestion"] = suggestion(item.id, annotator, project.settings, current, known, blind=blind)
        card["nearest"] = [one for one in near.get(item.id, []) if one["item_id"] not in hidden]
        card = card if not item.held_out else _blind(card)
        made.append(card | {"why": f"{card['why']} {channel_note(item, project.settings)}".strip()})
    return made


def channel_note(item: ItemRow, settings: ProjectSettings) -> str:
    """A sentence on the channel that the model receives, if the card shows and plays another mix. Otherwise empty."""
    channel, channels = int(settings.media.get("audio_channel", 0)), item.channels or 1
    if not 1 <= channel <= channels or channels == 1:
        return ""
    return (
        f"The model receives only channel {channel} of {channels}. The picture shows the mean of all channels, and all "
        "of them are played."
    )


def _blind(card: dict[str, Any]) -> dict[str, Any]:
    """The card of a test item, without anything that depends on a model."""
    nothing = suggestion(card["item_id"], 0, ProjectSettings(), None, [], blind=True)
    why = "A test item: its label measures accuracy and trains no model. No suggestion is shown."
    return card | {"suggestion": nothing, "nearest": [], "pick": None, "queued": True, "why": why, "test": True}


def with_own_state(pool: Pool, card: dict[str, Any], annotator: int) -> dict[str, Any]:
    """The card with this annotator's current label and note. For a second look, the label in question is not shown."""
    own = pool.own_state(card["item_id"], annotator)
    is_second_look = card["pick"] is not None and card["pick"]["second_look"]
    return card | {"mine": None if is_second_look else own.class_id, "note": own.note}


def _card(
    item: ItemRow, rounds: dict[int, tuple[str, int]], queued: bool, found: RoundPredictions | None
) -> dict[str, Any]:
    sound = media_kind(item.media_type) == "audio"
    pick: dict[str, Any] | None = None
    if item.pick is not None:
        strategy, n_picks = rounds[item.pick.round_id]
        pick = {"round": item.pick.round, "position": item.pick.position, "of": n_picks}
        pick |= {"strategy": strategy, "strategy_title": strategy_title(strategy)}
        pick |= {name: item.pick.reason.get(name) for name in PICK_NUMBERS}
        pick["second_look"] = item.waits_for_second_look
    return {
        "item_id": item.id,
        "name": item.name,
        "seconds": item.seconds,
        "window": recording_path(item),
        "media": {
            "file": sound_path(item) if sound else media_path(item, "file"),
            "picture": picture_path(item),
            "sound": media_path(item, "sound.json") if sound else None,
        },
        "flagged": item.flagged,
        "skipped": item.skipped,
        "mine": None,
        "note": "",
        "pick": pick,
        "queued": queued and pick is None,
        "why": _why(pick, queued, found, "audio" if sound else "image"),
    }


def _why(pick: dict[str, Any] | None, queued: bool, found: RoundPredictions | None, kind: str) -> str:
    """The reason why the item is shown, in plain words."""
    noun = "clip" if kind == "audio" else "picture"
    if pick is not None and pick["second_look"]:
        return second_look_sentence(kind)
    if pick is not None:
        return pick_sentence(pick["strategy"], kind, pick["stands_for"])
    if queued:
        return f"An annotator moved this {noun} to the front of the queue."
    if found is None:
        return f"Until a round has finished, {noun}s come in random order."
    return (
        f"Round {found.round.number} did not pick this {noun}; it comes in random order. The next round uses its label."
    )


def suggestion(
    item_id: int,
    annotator: int,
    settings: ProjectSettings,
    found: RoundPredictions | None,
    known: list[ClassRow],
    *,
    blind: bool = False,
) -> dict[str, Any]:
    """The suggestion for one item. With `blind` it is hidden, because the annotator has not labeled the item yet."""
    best = _likely(found, item_id, known)
    nothing: dict[str, Any] = {
        "item_id": item_id,
        "class_id": None,
        "confidence": None,
        "blind": blind,
        "round_id": None,
        "guesses": [],
    }
    if found is None or not best:
        return nothing | {"state": "none"}
    hidden = (
        blind
        or settings.suggestions == "hide"
        or (settings.suggestions == "random" and draw(item_id, annotator, found.round.id) < settings.hidden_share)
    )
    if hidden:
        return nothing | {"state": "hidden", "round_id": found.round.id}
    return nothing | {
        "state": "shown",
        "class_id": best[0].class_id,
        "confidence": best[0].probability,
        "guesses": [{"class_id": one.class_id, "name": one.name, "share": one.probability} for one in best],
    }


def _likely(found: RoundPredictions | None, item_id: int, known: list[ClassRow]) -> list[Prediction]:
    """The most probable classes, best first. Empty if there is no prediction or it is uniform (no model yet)."""
    best = found.most_probable(item_id, known, LIKELY) if found is not None else []
    return [] if found is None or not best or best[0].probability * len(found.column_classes) < 1.001 else best


def hidden_suggestion(store: Store, project_id: int, item_id: int, round_id: int) -> Prediction | None:
    """The suggestion of a round that a card did not show. None if the round no longer has one for the item."""
    try:
        found = predictions_of(store, RoundLog(store, project_id).get(round_id))
    except NotFound:
        return None
    best = _likely(found, item_id, classes.list_classes(store, project_id, include_inactive=True))
    return best[0] if best else None


def draw(item_id: int, annotator: int, round_id: int) -> float:
    """A pseudo-random number in [0, 1) that depends only on the item, the annotator and the round."""
    digest = hashlib.sha256(f"suggestion {item_id} {annotator} {round_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _nearest(
    pool: Pool, item_ids: Sequence[int], found: RoundPredictions | None, known: list[ClassRow], *, audience: int
) -> dict[int, list[dict[str, Any]]]:
    """item id -> the nearest labeled items: id, class name, thumbnail.

    `audience` is 0 or, in a blind project, the annotator, who sees only their own labels.
    """
    if found is None:
        return {}
    own = own_classes(pool.store, pool.project_id, audience) if audience else None
    near = nearest_labeled(pool.store, found, item_ids, labels=own, audience=audience)
    names, counts_as = {row.id: row.name for row in known}, class_rows.counts_as(known)
    rows = {row.id: row for row in pool.items_by_id(sorted({one.item_id for ones in near.values() for one in ones}))}
    return {
        item_id: [
            {
                "item_id": one.item_id,
                "name": names.get(counts_as.get(one.class_id, one.class_id), ""),
                "thumb": media_path(rows[one.item_id], "thumb.png"),
            }
            for one in ones
            if one.item_id in rows
        ]
        for item_id, ones in near.items()
    }


def work_state(store: Store, project_id: int, annotator: int) -> dict[str, Any]:
    """The work state: classes, batch, counts, pace, the next step, and the text of an empty screen."""
    project = get_project(store, project_id)
    pool = Pool(store, project_id)
    counts, batch = pool.counts(), pool.batch()
    latest = RoundLog(store, project_id).latest()
    total, done = batch.total, batch.done
    if batch.round_id is None:
        total = min(project.settings.batch_size, counts.total - counts.held_out)
        done = min(counts.labeled, total)
    active = classes.list_classes(store, project_id)
    empty = empty_text(project, counts, latest, bool(active))
    if counts.total == 0 and jobs.running_imports(store.home, project_id):
        noun = "Clips" if project.kind == "audio" else "Pictures"
        empty = _words(f"{noun} are being imported", "The first ones appear here soon.", "Show the import", "data")
    return {
        "revision": project.revision,
        "classes": [{"id": row.id, "name": row.name, "key": row.key, "color": row.color} for row in active],
        "guidelines": project.guidelines,
        "batch": {
            "round_id": batch.round_id,
            "total": total,
            "done": done,
            "then": what_next(project.settings, latest, done >= total) if counts.total else "",
        },
        "counts": {"total": counts.total - counts.held_out, "labeled": counts.labeled, "waiting": counts.waiting},
        "live": live_state(store, project_id),
        "pace_seconds": pace(pool.recent(annotator, PACE_OVER * 2)),
        "empty": empty,
    }


def pace(recent: Sequence[LabelEventRow]) -> float | None:
    """The median seconds per label over the newest labels, without breaks. None with fewer than three labels."""
    times = [event.seconds for event in recent if event.kind == "label" and event.seconds is not None]
    times = [seconds for seconds in times if seconds < LONGEST_DECISION][:PACE_OVER]
    return round(statistics.median(times), 2) if len(times) >= 3 else None


def what_next(settings: ProjectSettings, latest: RoundRow | None, batch_done: bool) -> str:
    """A phrase on the next step: the state of the current round, or how the next one starts."""
    number = (latest.number if latest else 0) + 1
    if latest is not None and latest.unfinished:
        if latest.started_at is None:
            return f"Round {latest.number} is waiting for a worker. Its picks will appear first."
        stage = f" ({stage_names.UNDER_WAY[latest.stage]})" if latest.stage in stage_names.UNDER_WAY else ""
        return f"Round {latest.number} is running{stage}. Its picks will appear first."
    if settings.automatic_rounds:
        return f"Round {number} starts automatically." if batch_done else f"then round {number} starts automatically"
    return f"{'Start' if batch_done else 'then start'} round {number} on the Train screen"


def empty_text(project: ProjectRow, counts: PoolCounts, latest: RoundRow | None, has_classes: bool) -> dict[str, Any]:
    """The text of an empty screen: the reason why there is nothing to label, and the next step."""
    noun = "clips" if project.kind == "audio" else "pictures"
    if project.archived_at is not None:
        text = "Restore it on the Data screen to continue labeling. Its labels are kept."
        return _words("This project is archived", text, "Go to Data", "data")
    if counts.total == 0:
        text = f"Import {noun} into this project, then label them here."
        return _words(f"No {noun} yet", text, f"Import {noun}", "data")
    if not has_classes:
        text = "Add classes to the project. Each class gets a key."
        return _words("No classes yet", text, "Add classes", "data")
    if counts.waiting > 0:
        text = f"All {counts.waiting:,} remaining {noun} are open in other sessions."
        text += " Idle ones are released after ten minutes."
        return _words("No items available", text, "Open the grid", "grid")
    if latest is not None and latest.unfinished:
        return _words(f"Round {latest.number} is running", "All items are labeled.", "Show progress", "train")
    left = f" {counts.skipped:,} skipped." if counts.skipped else ""
    left += f" {counts.unreadable:,} unreadable." if counts.unreadable else ""
    text = f"{counts.labeled:,} of {counts.total - counts.held_out:,} {noun} are labeled.{left}"
    return _words("All items are labeled", text, "Export labels", "export")


def _words(title: str, text: str, action: str, screen: str) -> dict[str, Any]:
    return {"title": title, "text": text, "action": action, "screen": screen}
