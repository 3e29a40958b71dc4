"""A small load test: the memory of the page server does not grow with the number of labels."""

from __future__ import annotations

import json
import urllib.request
import uuid
from pathlib import Path

from app.web import tickets
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from tests.browser.conftest import Server

SESSIONS = 20
GROWTH_MB = 24  # for 4,000 labels after the first 1,000; operators can do an eight-hour run of 100,000 labels


def resident_mb(server: Server) -> float:
    assert server.process is not None
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def post(server: Server, path: str, ticket: str, body: dict[str, object]) -> dict[str, object]:
    headers = {"X-Winnow-Ticket": ticket, "Content-Type": "application/json", "Origin": server.url}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def label_a_while(server: Server, project: int, items: list[int], classes: list[int], people: list[str]) -> None:
    """Each annotator fetches cards, labels 50 times, and requests the work state."""
    for ticket in people:
        post(server, f"/api/projects/{project}/cards", ticket, {"holder": ticket[:20], "limit": 4})
        events = [
            {"uuid": str(uuid.uuid4()), "item_id": items[k % len(items)], "kind": "label", "class_id": classes[k % 3]}
            for k in range(50)
        ]
        answer = post(server, f"/api/projects/{project}/labels", ticket, {"events": events})
        assert all(one["accepted"] for one in answer["applied"])  # type: ignore[attr-defined]
        post(server, f"/api/projects/{project}/state", ticket, {})


def test_memory_does_not_grow_with_the_labels_people_give(server, store, audio):
    """20 sessions, 5,000 labels in all; operators can do an eight-hour run."""
    items = [item.id for item in Pool(store, audio.id).items(limit=20)]
    classes = [row.id for row in list_classes(store, audio.id)]
    key = tickets.signing_key(server.home)
    people = [tickets.issue(key, annotator_named(store, f"Soak {n}").id, 3600) for n in range(SESSIONS)]
    label_a_while(server, audio.id, items, classes, people)
    before = resident_mb(server)
    for _ in range(4):
        label_a_while(server, audio.id, items, classes, people)
    assert resident_mb(server) - before < GROWTH_MB
