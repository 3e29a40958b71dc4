"""The widgets' routes: a verdict for every event, cards under leases, no data of other annotators."""

from __future__ import annotations

import threading
import uuid

import pytest

from app.views.predictions import newest_predictions
from app.web import resources, tickets
from app.web.access import SESSION_COOKIE
from app.web.routes import cards
from core.errors import StoreUnusable
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes, merge_classes
from tests.app import sample_store
from tests.app.asgi_client import ask


def event(item_id, class_id, **more):
    return {"uuid": str(uuid.uuid4()), "item_id": item_id, "kind": "label", "class_id": class_id} | more


@pytest.fixture
def project(page_store):
    return sample_store.audio_project(page_store, n=16)


def test_a_label_is_stored_once_however_often_it_is_sent(post, project, page_store):
    item = post(f"/api/projects/{project.id}/cards", {"holder": "t", "limit": 1}).json()["cards"][0]["item_id"]
    class_id = list_classes(page_store, project.id)[2].id
    one = event(item, class_id, seconds=1.5, at="2026-01-02T03:04:05.678Z")
    for _ in range(3):
        answer = post(f"/api/projects/{project.id}/labels", {"events": [one]})
        assert answer.json()["applied"] == [{"uuid": one["uuid"], "accepted": True, "reason": ""}]
    ana = annotator_named(page_store, "Ana")
    stored = Pool(page_store, project.id).recent(ana.id)
    assert [(e.item_id, e.class_id, e.seconds) for e in stored] == [(item, class_id, 1.5)]
    assert stored[0].at.isoformat() == "2026-01-02T03:04:05.678000+00:00"
    assert answer.json()["state"]["counts"]["labeled"] == 1


def test_a_session_cookie_is_kept_until_half_of_its_lifetime_so_that_browsers_keep_their_media(routes, page_store):
    ana, bea = (annotator_named(page_store, name).id for name in ("Ana", "Bea"))

    def issued(annotator: int, days: float) -> str:
        return tickets.issue(resources.key(), annotator, days * 24 * 3600)

    def sets_cookie(known: str | None) -> bool:
        headers = {"x-winnow-ticket": issued(ana, 30)} | ({"cookie": f"{SESSION_COOKIE}={known}"} if known else {})
        answer = ask(routes, "POST", "/api/session", {}, headers)
        assert answer.status == 200
        return "set-cookie" in answer.headers

    assert not sets_cookie(issued(ana, 29))
    for known in (None, issued(ana, 3), issued(bea, 29), issued(ana, 60), "forged"):
        assert sets_cookie(known)


def test_what_cannot_be_stored_is_refused_alone_with_its_reason(post, project, page_store):
    """NUL and lone surrogates, wrong types and foreign items; the good event beside them is stored."""
    other = sample_store.audio_project(page_store, "Other", 2)
    mine, theirs = (Pool(page_store, p.id).items()[0].id for p in (project, other))
    class_id = list_classes(page_store, project.id)[0].id
    events = [
        event(mine, class_id),
        event(mine, None, kind="note", note="a\x00b"),
        event(mine, None, kind="note", note="\ud800"),
        event(theirs, class_id),
        event("1; DROP TABLE", class_id),
        event(mine, 10**30),
        event(mine, class_id, at="yesterday"),
        event(mine, class_id, uuid="not-a-uuid"),
        "nonsense",
    ]
    applied = {v["uuid"]: v for v in post(f"/api/projects/{project.id}/labels", {"events": events}).json()["applied"]}
    assert len(applied) == len(events)
    accepted = [uuid for uuid, verdict in applied.items() if verdict["accepted"]]
    assert accepted == [events[0]["uuid"]]
    assert all(verdict["reason"] for verdict in applied.values() if not verdict["accepted"])
    assert len(Pool(page_store, project.id).recent(annotator_named(page_store, "Ana").id)) == 1


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"events": 3}', b"[" * 100_000])
def test_an_invalid_body_gets_a_message(post, project, body):
    answer = post(f"/api/projects/{project.id}/labels", body)
    assert answer.status == 422 and answer.json()["error"]


def test_without_a_ticket_or_with_a_forged_or_old_one_nothing_is_answered(routes, project, page_store):
    ana = annotator_named(page_store, "Ana")
    good = tickets.issue(resources.key(), ana.id, 60)
    old = tickets.issue(resources.key(), ana.id, -1)
    forged = tickets.issue(b"another key", ana.id, 60)
    changed = "e30" + good[3:]
    path = f"/api/projects/{project.id}/cards"
    for ticket in ("", old, forged, changed, "x.y", "é"):
        assert ask(routes, "POST", path, {}, {"x-winnow-ticket": ticket}).status == 401
    assert ask(routes, "POST", path, {"holder": "t"}, {"x-winnow-ticket": good}).status == 200


def test_unknown_and_absurd_projects_are_not_found(post, project):
    """An identifier that no project has, beyond 64 bits too, gives 404 and never 500."""
    for number in (999, 2**62, 10**40):
        assert post(f"/api/projects/{number}/cards", {"holder": "t"}).status == 404
        assert post(f"/api/projects/{number}/labels", {"events": []}).status == 404


def test_a_requests_origin_must_be_our_own_page(post, project):
    """A ticket alone is not sufficient for another page or another host name."""
    path = f"/api/projects/{project.id}/state"
    assert post(path, origin="http://127.0.0.1").status == 200
    assert post(path, origin="http://evil.example").status == 403
    assert post(path, host="evil.example").status == 421


def test_tabs_get_different_items_and_a_reload_gets_its_own_back(post, project):
    path = f"/api/projects/{project.id}/cards"
    ids = lambda answer: [card["item_id"] for card in answer.json()["cards"]]  # noqa: E731
    one = ids(post(path, {"holder": "one", "limit": 5}))
    two = ids(post(path, {"holder": "two", "limit": 5}))
    ben = ids(post(path, {"holder": "ben", "limit": 5}, person="Ben"))
    assert len(set(one + two + ben)) == 15
    assert ids(post(path, {"holder": "one-reloaded", "previous": "one", "limit": 5})) == one
    post(f"/api/projects/{project.id}/release", {"holder": "two"})
    assert set(ids(post(path, {"holder": "cleo", "limit": 6}, person="Cleo"))) & set(two)


def test_near_the_end_a_tab_leases_half_of_the_waiting_items_and_others_get_the_rest(post, project):
    path = f"/api/projects/{project.id}/cards"
    held = [len(post(path, {"holder": name, "limit": 60}, person=name).json()["cards"]) for name in ("Ana", "Ben")]
    assert held == [9, 7]


@pytest.mark.slow
def test_twenty_people_at_once_see_only_their_own(post, project, page_store):
    """Every response names only the caller's own actions, and every item is leased to one annotator only."""
    class_id = list_classes(page_store, project.id)[0].id
    sample_store.add_items(page_store, project, [(f"more {i}", sample_store.clip(5000 + i, 0.1)) for i in range(44)])
    given: dict[str, list[int]] = {}
    seen: dict[str, list[int]] = {}

    def work(name: str) -> None:
        cards_ = post(f"/api/projects/{project.id}/cards", {"holder": name, "limit": 3}, person=name).json()["cards"]
        given[name] = [card["item_id"] for card in cards_]
        events = [event(item, class_id) for item in given[name]]
        post(f"/api/projects/{project.id}/labels", {"events": events}, person=name)
        actions = post(f"/api/projects/{project.id}/recent", {}, person=name).json()["actions"]
        seen[name] = [action["item_id"] for action in actions]

    threads = [threading.Thread(target=work, args=(f"Person {i}",)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({item for items in given.values() for item in items}) == 60
    assert {name: sorted(items) for name, items in seen.items()} == {n: sorted(i) for n, i in given.items()}


def test_a_card_has_the_prediction_of_its_item_and_the_round_that_picked_it(post, project, page_store):
    """Compared with the round's own arrays."""
    picks = sample_store.finish_round(page_store, project, 6)
    found = post(f"/api/projects/{project.id}/cards", {"holder": "t", "limit": 8}).json()["cards"]
    assert [card["item_id"] for card in found[:6]] == picks
    opinion = newest_predictions(page_store, project.id)
    rows = {int(item): row for row, item in enumerate(opinion.item_ids)}
    names = [row.name for row in list_classes(page_store, project.id)]
    for card in found:
        best = opinion.probabilities[rows[card["item_id"]]]
        assert card["suggestion"]["item_id"] == card["item_id"]
        assert card["suggestion"]["guesses"][0]["name"] == names[int(best.argmax())]
        assert card["suggestion"]["confidence"] == pytest.approx(float(best.max()), abs=1e-4)
    assert [card["pick"]["position"] if card["pick"] else None for card in found] == [1, 2, 3, 4, 5, 6, None, None]
    assert found[0]["pick"]["outer_before"] == 1.284 and found[0]["pick"]["strategy"] == "bico"


def test_the_prediction_of_a_merged_class_counts_for_its_successor(post, project, page_store):
    sample_store.finish_round(page_store, project)
    ids = [item.id for item in Pool(page_store, project.id).items()]
    before = post(f"/api/projects/{project.id}/cards", {"items": ids}).json()["cards"]
    rows = list_classes(page_store, project.id)
    card = next(c for c in before if c["suggestion"]["class_id"] == rows[1].id)
    merge_classes(page_store, project.id, rows[1].id, rows[0].id)
    after = post(f"/api/projects/{project.id}/cards", {"items": [card["item_id"]]}).json()["cards"][0]
    assert after["suggestion"]["class_id"] == rows[0].id
    assert after["suggestion"]["confidence"] >= card["suggestion"]["confidence"]


def test_nearest_labeled_items_are_those_of_a_brute_force_search(post, project, page_store):
    import numpy as np

    sample_store.finish_round(page_store, project)
    pool, rows = Pool(page_store, project.id), list_classes(page_store, project.id)
    ana = annotator_named(page_store, "Ana").id
    labeled = [item.id for item in pool.items()[:7]]
    for i, item in enumerate(labeled):
        pool.label(item, rows[i].id, annotator=ana)
    asked = pool.items()[-1].id
    card = post(f"/api/projects/{project.id}/cards", {"items": [asked]}).json()["cards"][0]
    opinion = newest_predictions(page_store, project.id)
    at = {int(item): row for row, item in enumerate(opinion.item_ids)}
    distance = {i: float(np.linalg.norm(opinion.embeddings[at[i]] - opinion.embeddings[at[asked]])) for i in labeled}
    assert [near["item_id"] for near in card["nearest"]] == sorted(distance, key=distance.get)[:3]
    assert [near["name"] for near in card["nearest"]] == [
        rows[labeled.index(n)].name for n in sorted(distance, key=distance.get)[:3]
    ]


def test_a_finished_pool_has_no_more_cards(post, project, page_store):
    sample_store.finish_round(page_store, project)
    pool, first = Pool(page_store, project.id), list_classes(page_store, project.id)[0].id
    for item in pool.items():
        pool.label(item.id, first, annotator=annotator_named(page_store, "Ana").id)
    answer = post(f"/api/projects/{project.id}/cards", {"holder": "tab", "limit": 10})
    assert (answer.status, answer.json()["cards"]) == (200, [])


def test_the_hidden_share_is_met_and_the_draw_never_changes():
    draws = [cards.draw(item, 3, 5) for item in range(4000)]
    assert draws == [cards.draw(item, 3, 5) for item in range(4000)]
    assert abs(sum(d < 0.2 for d in draws) / 4000 - 0.2) < 0.02
    assert draws[:50] != [cards.draw(item, 4, 5) for item in range(50)]


def test_tiles_are_ordered_by_the_rounds_own_confidence(post, project, page_store):
    sample_store.finish_round(page_store, project)
    opinion = newest_predictions(page_store, project.id)
    best = dict(zip(opinion.item_ids.tolist(), opinion.probabilities.max(1).tolist(), strict=True))
    guess = dict(zip(opinion.item_ids.tolist(), opinion.probabilities.argmax(1).tolist(), strict=True))
    path = f"/api/projects/{project.id}/tiles"
    first = post(path, {"limit": 6}).json()
    rest = post(path, {"limit": 100, "offset": 6}).json()
    ids = [tile["item_id"] for tile in first["tiles"] + rest["tiles"]]
    assert ids == sorted(best, key=lambda item: -best[item]) and first["total"] == 16
    unsure = [tile["item_id"] for tile in post(path, {"order": "unsure"}).json()["tiles"]]
    assert unsure == ids[::-1]
    rows = list_classes(page_store, project.id)
    chosen = rows[guess[ids[0]]]
    only = post(path, {"class_id": chosen.id}).json()["tiles"]
    assert [tile["item_id"] for tile in only] == [i for i in ids if rows[guess[i]].id == chosen.id]
    few = post(path, {"items": [*ids[3:5], 999_999]}).json()["tiles"]
    assert [tile["item_id"] for tile in few] == ids[3:5]


def test_the_state_says_what_happens_next(post, project, page_store):
    path = f"/api/projects/{project.id}/state"
    assert post(path).json()["batch"] == {
        "round_id": None,
        "total": 10,
        "done": 0,
        "then": "then round 1 starts automatically",
    }
    pool, rows = Pool(page_store, project.id), list_classes(page_store, project.id)
    ana = annotator_named(page_store, "Ana").id
    for item in pool.items()[:4]:
        pool.label(item.id, rows[0].id, annotator=ana, seconds=2.0)
    state = post(path).json()
    assert (state["batch"]["done"], state["pace_seconds"]) == (4, 2.0)
    sample_store.finish_round(page_store, project, 5)
    assert post(path).json()["batch"]["then"] == "then round 2 starts automatically"
    from core.config import RoundConfig
    from storage.rounds.log import RoundLog

    RoundLog(page_store, project.id).request(RoundConfig())
    assert post(path).json()["batch"]["then"] == "Round 2 is waiting for a worker. Its picks will appear first."


def test_a_store_that_cannot_be_written_now_answers_503_so_that_browsers_send_again(post, project, monkeypatch):
    """A browser drops labels that are refused with 4xx; a full disk or a restore must not do that."""

    def busy(*_: object, **__: object) -> None:
        raise StoreUnusable("The disk is full, so nothing was saved. Free some space and try again.")

    monkeypatch.setattr(Pool, "apply", busy)
    answer = post(f"/api/projects/{project.id}/labels", {"events": [event(1, 1)]})
    assert answer.status == 503 and "disk is full" in answer.json()["error"]
