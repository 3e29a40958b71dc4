"""Simulated annotators: they label over HTTP like the browser, with event ids, a queue of unsent events and retries.

An event counts as acknowledged when a response says that it was accepted. The rules for failed requests are those of
`app/web/widgets/assets/client.js`: a status 4xx other than 401, 408, 421 and 429 means that the server will never
accept the events; all other requests are sent again.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

CHUNK = 200
MAX_WAITING = 60  # unsent events after which a person stops labeling until the connection is back
RETRY_SECONDS = (0.2, 0.4, 0.8, 1.5)
TIMEOUT_SECONDS = 20.0
RETRIED = (401, 408, 421, 429)


@dataclass(frozen=True)
class Place:
    """The server, project and items of an annotator."""

    port: int
    project: int
    item_ids: Sequence[int]
    truth: Mapping[int, int]  # item id -> class id
    classes: Sequence[int]
    pause: float = 0.2  # mean seconds between two actions


class Refused(Exception):
    """The server will not accept the request."""


class Lost(Exception):
    """No usable response; the request may have had its effect."""


class Annotator(threading.Thread):
    def __init__(self, number: int, annotator_id: int, ticket: str, place: Place, seed: int) -> None:
        super().__init__(daemon=True, name=f"annotator-{number}")
        self.annotator_id, self.ticket, self.place = annotator_id, ticket, place
        self.chance = random.Random(f"{seed} {number}")
        self.holder = str(uuid.uuid4())
        self.cards: list[int] = []
        self.sent: list[dict[str, Any]] = []  # all events, in the order of the actions
        self.waiting: list[dict[str, Any]] = []
        self.acknowledged: dict[str, dict[str, Any]] = {}
        self.refused: list[tuple[str, str]] = []
        self.statuses: Counter[str] = Counter()
        self.failures = 0
        self.labeling, self.stopped = threading.Event(), threading.Event()
        self.labeling.set()

    def run(self) -> None:
        """Label until `labeling` is cleared; then send unsent events until `stopped`."""
        while not self.stopped.is_set():
            if self.labeling.is_set() and len(self.waiting) < MAX_WAITING:
                self.act()
            self.send()
            pause = self.place.pause * self.chance.uniform(0.2, 1.8)
            retry = RETRY_SECONDS[min(self.failures, len(RETRY_SECONDS)) - 1] if self.failures else 0.0
            self.stopped.wait(max(pause, retry))

    def act(self) -> None:
        if not self.cards:
            self.cards = self.fetch() or [self.chance.choice(self.place.item_ids)]
        item = self.cards.pop(0)
        draw = self.chance.random()
        mine = next((event for event in reversed(self.sent) if event["kind"] == "label"), None)
        if draw < 0.05 and mine is not None and not any(event.get("undoes") == mine["uuid"] for event in self.sent):
            self.add(kind="undo", item_id=mine["item_id"], undoes=mine["uuid"])
        elif draw < 0.08:
            self.add(kind="skip", item_id=item)
        else:
            right = self.chance.random() < 0.9
            class_id = self.place.truth[item] if right else self.chance.choice(self.place.classes)
            self.add(kind="label", item_id=item, class_id=class_id)

    def add(self, **values: Any) -> None:
        event = {"uuid": str(uuid.uuid4()), "at": datetime.now(UTC).isoformat(), **values}
        self.sent.append(event)
        self.waiting.append(event)

    def fetch(self) -> list[int]:
        try:
            answer = self.post("cards", {"holder": self.holder, "limit": 4})
        except (Lost, Refused):
            return []
        return [card["item_id"] for card in answer["cards"]]

    def send(self) -> None:
        if not self.waiting:
            return
        batch = self.waiting[:CHUNK]
        again = self.chance.choice(list(self.acknowledged.values())) if self.acknowledged else None
        events = [again, *batch] if again is not None and self.chance.random() < 0.1 else batch
        try:
            answer = self.post("labels", {"events": events})
        except Lost:
            self.failures += 1
            return
        except Refused as error:
            self.refused += [(event["uuid"], str(error)) for event in batch]
            del self.waiting[: len(batch)]
            return
        self.failures = 0
        results = {one["uuid"]: one for one in answer["applied"]}
        for event in events:
            result = results.get(event["uuid"])
            if result is not None and result["accepted"]:
                self.acknowledged[event["uuid"]] = event
            elif result is not None:
                self.refused.append((event["uuid"], result["reason"]))
        self.waiting = [event for event in self.waiting if event["uuid"] not in results]

    def post(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.place.port, timeout=TIMEOUT_SECONDS)
        headers = {"Content-Type": "application/json", "X-Winnow-Ticket": self.ticket, "Connection": "close"}
        try:
            connection.request("POST", f"/api/projects/{self.place.project}/{route}", json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read()
            self.statuses[str(response.status)] += 1
            if response.status == 200:
                answer: dict[str, Any] = json.loads(data)
                return answer
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.statuses[type(error).__name__] += 1
            raise Lost(str(error)) from error
        finally:
            connection.close()
        if 400 <= response.status < 500 and response.status not in RETRIED:
            raise Refused(f"status {response.status}: {data.decode(errors='replace')[:300]}")
        raise Lost(f"status {response.status}")

    def drain(self, deadline: float) -> None:
        """Stop labeling and send the unsent events; returns when none is left or at `deadline` (monotonic)."""
        self.labeling.clear()
        while self.waiting and time.monotonic() < deadline:
            time.sleep(0.1)
        self.stopped.set()
        self.join()
