"""Malformed requests get a message and no server error; an invalid event is refused alone, and it is logged."""

from __future__ import annotations

import json
import logging
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes, retire_class
from tests.app import sample_store

FUZZED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
NUMBERS = st.sampled_from([0, 1, -1, 7, 2**31, 2**62, 2**63, -(2**63), 10**40, 0.5, 1e308, True, False])
TEXTS = st.sampled_from(["", "x", "label", "undo", "\x00", "\ud800", "é" * 300, "0001-01-01T00:00:00Z", "sure"])
SCALARS = st.none() | NUMBERS | TEXTS | st.floats() | st.text(max_size=5)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner), max_leaves=8)
FIELDS = ("holder", "previous", "limit", "release", "items", "offset", "order", "class_id", "events")
TIMES = st.sampled_from(["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01", "2026-01-01T00:00Z"])
CONDITIONS: dict[str, st.SearchStrategy[object]] = {
    **dict.fromkeys(("label_id", "class_id", "annotator_id", "round_id", "like", "after", "offset", "limit"), NUMBERS),
    **dict.fromkeys(("least", "most"), st.floats(0, 1) | NUMBERS | st.floats()),
    **dict.fromkeys(("since", "until"), TIMES),
    **dict.fromkeys(("split", "search"), TEXTS),
    "show": st.sampled_from(["waiting", "labeled", "test", "all", "none"]),
    "order": st.sampled_from(["sure", "unsure", "labeled", "newest", "oldest", "name", "outliers", "duplicates"]),
    "marks": st.lists(st.sampled_from(["flagged", "skipped", "noted", "contested", "unreadable", "x"]), max_size=2),
    "items": st.lists(NUMBERS, max_size=3),
}
QUERIES = st.fixed_dictionaries({}, optional=CONDITIONS)
PAIRS = st.lists(st.lists(NUMBERS | st.sampled_from([2, 3, 4]), min_size=2, max_size=2), max_size=3) | VALUES
ACTIONS = st.fixed_dictionaries(
    {"action": st.sampled_from(["queue", "take-back", "test", "pool", "plan-delete", "delete", "x"])},
    optional={"items": st.lists(NUMBERS | st.sampled_from([2, 3]), max_size=3) | VALUES, "query": QUERIES | VALUES}
    | {"ranks": PAIRS, "skipped": PAIRS, "confirm": VALUES},
)
NUMBER_FIELDS = ("item_id", "class_id", "suggested_class_id", "suggested_confidence", "seconds")
TEXT_FIELDS = ("uuid", "kind", "undoes", "suggestion", "note", "at")
CHANGES = (
    st.tuples(st.sampled_from(NUMBER_FIELDS), NUMBERS)
    | st.tuples(st.sampled_from(TEXT_FIELDS), TEXTS)
    | st.tuples(st.sampled_from(NUMBER_FIELDS + TEXT_FIELDS), VALUES)
)


@pytest.fixture
def project(page_store):
    made = sample_store.audio_project(page_store, n=6, labels_per_item=2, blind=False)
    sample_store.finish_round(page_store, made, 3)
    return made


def event(item_id, class_id, **more):
    return {"uuid": str(uuid.uuid4()), "item_id": item_id, "kind": "label", "class_id": class_id} | more


def sent(post, address, body):
    answer = post(address, json.dumps(body).encode())
    assert answer.status < 500, (address, body, answer.body)
    assert answer.status == 200 or answer.json()["error"].endswith(".")
    return answer


@pytest.mark.slow
@FUZZED
@given(
    st.sampled_from(["labels", "cards", "state", "recent", "release", "tiles"]),
    st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, VALUES)),
)
def test_no_body_of_a_request_makes_a_server_error(post, project, route, body):
    sent(post, f"/api/projects/{project.id}/{route}", body)


@pytest.mark.slow
@FUZZED
@given(QUERIES)
def test_no_query_of_items_makes_a_server_error(post, project, query):
    sent(post, f"/api/projects/{project.id}/tiles", query)


@pytest.mark.slow
@FUZZED
@given(ACTIONS)
def test_no_action_on_items_makes_a_server_error(post, project, action):
    sent(post, f"/api/projects/{project.id}/items/act", action)


@pytest.mark.slow
@FUZZED
@given(data=st.data())
def test_no_event_makes_a_server_error_or_harms_the_others(post, project, page_store, data):
    """Each odd event is valid except for the field that is drawn; a good one is sent with them."""
    items = [item.id for item in Pool(page_store, project.id).items()]
    classes = [row.id for row in list_classes(page_store, project.id)]
    changes = data.draw(st.lists(CHANGES, min_size=1, max_size=4))
    odd = [event(items[0], classes[0]) | {name: value} for name, value in changes]
    good = event(items[1], classes[1])
    answer = sent(post, f"/api/projects/{project.id}/labels", {"events": [*odd, good]})
    assert answer.status == 200
    applied = answer.json()["applied"]
    assert len(applied) == len(odd) + 1
    assert {"uuid": good["uuid"], "accepted": True, "reason": ""} in applied


@pytest.mark.parametrize("items", [None, 3, "7", {"a": 1}, [10**40], ["1"], [True], [None]])
@pytest.mark.parametrize("route", ["cards", "tiles"])
def test_items_that_are_no_list_of_numbers_get_a_message(post, project, route, items):
    answer = post(f"/api/projects/{project.id}/{route}", {"items": items})
    if route == "tiles" and items is None:
        assert answer.status == 200
    else:
        assert (answer.status, answer.json()["error"]) == (422, "items must be a list of whole numbers.")


@pytest.mark.parametrize("name", ["least", "most"])
@pytest.mark.parametrize("value", [-0.1, 1.5, 1e308, float("nan"), float("inf")])
def test_a_confidence_outside_0_and_1_gets_a_message(post, project, name, value):
    """Predictions are stored as float32, which 1e308 overflows."""
    answer = post(f"/api/projects/{project.id}/tiles", json.dumps({name: value}).encode())
    assert (answer.status, answer.json()["error"]) == (422, f"{name} must be a number from 0 to 1.")


BAD = {
    "an unknown suggested class": ({"suggested_class_id": 10**9}, "The suggested class 1000000000 is not in this"),
    "a confidence of 7": ({"suggested_confidence": 7}, "The suggested confidence is 7"),
    "a confidence below 0": ({"suggested_confidence": -0.1}, "The suggested confidence is -0.1"),
    "a confidence that is no number": ({"suggested_confidence": float("nan")}, "The suggested confidence is nan"),
    "an infinite confidence": ({"suggested_confidence": float("inf")}, "The suggested confidence is inf"),
    "a time in year 1": ({"at": "0001-01-01T00:00:00+14:00"}, "is before 1970"),
    "a label that undoes another event": ({"undoes": str(uuid.uuid4())}, "cannot undo another one"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_an_invalid_event_is_refused_alone(post, project, page_store, case):
    change, reason = BAD[case]
    items = [item.id for item in Pool(page_store, project.id).items()]
    class_id = list_classes(page_store, project.id)[0].id
    events = [event(items[0], class_id), event(items[1], class_id) | change, event(items[2], class_id)]
    answer = post(f"/api/projects/{project.id}/labels", json.dumps({"events": events}).encode())
    assert answer.status == 200
    assert [one["accepted"] for one in answer.json()["applied"]] == [True, False, True]
    assert reason in answer.json()["applied"][1]["reason"]
    stored = Pool(page_store, project.id).recent(annotator_named(page_store, "Ana").id)
    assert {row.item_id for row in stored} == {items[0], items[2]}


def test_a_suggested_class_of_another_project_is_refused_and_a_retired_one_is_not(post, project, page_store):
    other = sample_store.image_project(page_store, n=1)
    foreign = list_classes(page_store, other.id)[0].id
    items = [item.id for item in Pool(page_store, project.id).items()]
    own = list_classes(page_store, project.id)
    retire_class(page_store, project.id, own[3].id)
    events = [event(items[0], own[0].id, suggested_class_id=which) for which in (foreign, own[3].id)]
    answer = post(f"/api/projects/{project.id}/labels", {"events": events})
    assert [one["accepted"] for one in answer.json()["applied"]] == [False, True]


def test_one_annotator_cannot_undo_the_label_of_another_with_an_event_that_is_no_undo(post, project, page_store):
    item = Pool(page_store, project.id).items()[0].id
    one, two = (row.id for row in list_classes(page_store, project.id)[:2])
    first = event(item, one)
    post(f"/api/projects/{project.id}/labels", {"events": [first]}, person="Ana")
    sly = event(item, two, undoes=first["uuid"])
    answer = post(f"/api/projects/{project.id}/labels", {"events": [sly]}, person="Ben")
    assert answer.json()["applied"][0]["accepted"] is False
    assert Pool(page_store, project.id).own_state(item, annotator_named(page_store, "Ana").id).class_id == one


def test_refusals_are_logged_in_one_line_with_ids_and_without_names(post, project, page_store, caplog):
    items = [item.id for item in Pool(page_store, project.id).items()]
    own = list_classes(page_store, project.id)
    retire_class(page_store, project.id, own[9].id)
    events = [event(items[0], own[0].id), event(items[1], own[9].id), event(items[2], None, kind="note", note="a\x00b")]
    with caplog.at_level(logging.WARNING, "app.web.routes.api"):
        post(f"/api/projects/{project.id}/labels", {"events": events})
        post(f"/api/projects/{project.id}/labels", {"events": [event(items[3], own[0].id)]})
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1 and "\n" not in lines[0]
    assert lines[0].startswith(f"refused 2 of 3 events in project {project.id} of annotator ")
    assert f"{events[1]['uuid']} label item {items[1]} class {own[9].id}: The class … was retired" in lines[0]
    assert events[2]["uuid"] in lines[0] and own[9].name not in lines[0]
