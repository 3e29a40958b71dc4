"""The client: errors as exceptions, repeated requests, and no import of the server."""

from __future__ import annotations

import ast
from pathlib import Path

import httpx2
import pandas as pd
import pytest

import winnow_client.connection as connection_module
from winnow_client.client import Client
from winnow_client.connection import Connection
from winnow_client.errors import ApiError

PACKAGE = Path(connection_module.__file__).parent


def answering(monkeypatch, *answers: httpx2.Response | Exception) -> tuple[Client, list[httpx2.Request]]:
    """A client whose server returns these responses, and the requests that the server gets."""
    waiting, seen = list(answers), []

    def handle(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        answer = waiting.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(connection_module.time, "sleep", lambda seconds: None)
    client = Client("http://winnow.example/", "winnow_secret")
    headers = {"Authorization": "Bearer winnow_secret"}
    base = "http://winnow.example/api/v1"
    client._connection._http = httpx2.Client(transport=httpx2.MockTransport(handle), base_url=base, headers=headers)
    return client, seen


def test_an_error_has_the_servers_sentence_and_code(monkeypatch):
    body = {"error": "There is no project 3.", "code": "not_found", "fields": []}
    client, seen = answering(monkeypatch, httpx2.Response(404, json=body))
    with pytest.raises(ApiError, match="There is no project 3") as caught:
        client.me()
    assert (caught.value.status, caught.value.code) == (404, "not_found")
    assert seen[0].headers["authorization"] == "Bearer winnow_secret"
    assert str(seen[0].url) == "http://winnow.example/api/v1/me"


def test_an_answer_that_is_not_ours_is_an_error_too(monkeypatch):
    client, _ = answering(monkeypatch, httpx2.Response(400, text="<html>proxy</html>"))
    with pytest.raises(ApiError, match="returned 400"):
        client.me()


def test_reading_is_repeated_after_a_lost_connection_and_creating_is_not(monkeypatch):
    lost = httpx2.ConnectError("connection refused")
    client, seen = answering(monkeypatch, lost, httpx2.Response(429, json={}), httpx2.Response(200, json=[]))
    assert client.projects() == [] and len(seen) == 3
    client, seen = answering(monkeypatch, lost)
    with pytest.raises(httpx2.ConnectError):
        client.create_project("Birds", "audio")
    assert len(seen) == 1


def test_labels_are_repeated_with_the_same_uuids(monkeypatch):
    """The server stores an event once, so a repeated request is safe."""
    project = {"id": 1, "name": "Birds", "kind": "audio", "guidelines": "", "settings": {}}
    owl = {"id": 7, "name": "owl", "key": "1", "color": None}
    done = {"applied": [{"uuid": "u", "accepted": True, "reason": ""}] * 2}
    client, seen = answering(
        monkeypatch,
        httpx2.Response(200, json=[project]),
        httpx2.Response(200, json=[owl]),
        httpx2.ReadTimeout("slow"),
        httpx2.Response(200, json=done),
    )
    frame = pd.DataFrame({"label": ["owl", None, "owl"]}, index=[3, 4, 5])
    answer = client.project("Birds").label_frame(frame)
    assert list(answer.index) == [3, 5] and answer["accepted"].all()
    assert seen[2].content == seen[3].content and b'"item_id":3' in seen[3].content


def test_a_class_that_does_not_exist_labels_nothing(monkeypatch):
    project = {"id": 1, "name": "Birds", "kind": "audio", "guidelines": "", "settings": {}}
    client, seen = answering(monkeypatch, httpx2.Response(200, json=[project]), httpx2.Response(200, json=[]))
    with pytest.raises(ApiError, match=r"no classes \['owl'\]"):
        client.project(1).label_frame(pd.DataFrame({"label": ["owl"]}, index=[3]))
    assert len(seen) == 2


def test_the_package_imports_nothing_of_the_server():
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] in ("app", "core", "storage")]
    assert Connection.__module__ == "winnow_client.connection"
