"""The API: the same functions as the browser's routes, with tokens, roles, limits and one shape of errors."""

from __future__ import annotations

import hashlib
import time
import uuid

import pytest

from core.version import VERSION
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.roles import set_role
from storage.projects.tokens import list_tokens, revoke_token
from tests.app import sample_store
from tests.app.asgi_client import ask
from tests.app.web.api.callers import BOTH_DATABASES, api_app, caller

pytestmark = pytest.mark.usefixtures("page_store")


@pytest.fixture
def app(page_store):
    return api_app()


@pytest.fixture
def project(page_store):
    return sample_store.audio_project(page_store, n=12)


@pytest.fixture
def call(app, page_store):
    return caller(app, page_store)


def label(item_id, class_id, **more):
    return {"uuid": str(uuid.uuid4()), "item_id": item_id, "kind": "label", "class_id": class_id} | more


@BOTH_DATABASES
def test_only_the_description_is_served_without_a_token(app, project, page_store):
    for path in (f"/api/v1/projects/{project.id}/items", "/api/v1/projects", "/api/v1/me", "/api/v1/nothing"):
        answer = ask(app, "GET", path)
        assert answer.status == 401 and answer.json()["code"] == "unauthorized" and answer.json()["error"]
    assert ask(app, "GET", "/api/v1/me", headers={"authorization": "Bearer winnow_wrong"}).status == 401
    assert ask(app, "GET", "/api/v1/openapi.json").json()["info"]["version"] == VERSION
    page = ask(app, "GET", "/api/v1/docs")
    assert page.status == 200 and b"<script" not in page.body and b"http://" not in page.body
    assert b"https://" not in page.body and b"/api/v1/projects/{project}/labels" in page.body
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


@BOTH_DATABASES
def test_a_session_cookie_authorizes_nothing(app, project, page_store):
    """A foreign page can make a browser send cookies; the API does not read them."""
    from app.web import resources, tickets
    from app.web.access import ACCESS_COOKIE, SESSION_COOKIE

    ticket = tickets.issue(resources.key(), annotator_named(page_store, "Ana").id, 60)
    cookie = f"{SESSION_COOKIE}={ticket}; {ACCESS_COOKIE}={resources.rules().cookie_for_token()}"
    body = {"name": "Forged", "kind": "audio"}
    answer = ask(app, "POST", "/api/v1/projects", body, {"cookie": cookie, "content-type": "application/json"})
    assert answer.status == 401
    answer = ask(app, "POST", "/api/v1/projects", body, {"cookie": cookie, "x-winnow-ticket": ticket})
    assert answer.status == 401


@BOTH_DATABASES
def test_a_revoked_token_is_refused_and_a_used_one_has_its_time(app, page_store, call):
    assert call("GET", "/me").json() == {
        "token": "token of Ana", "role": "owner", "annotator_id": 1, "annotator": "Ana"
    }  # fmt: skip
    token = list_tokens(page_store)[0]
    assert token.last_used_at is not None
    revoke_token(page_store, token.id)
    assert call("GET", "/me").status == 401


@BOTH_DATABASES
def test_projects_and_classes_are_created_read_and_changed(call, page_store):
    made = call("POST", "/projects", {"name": "Birds", "kind": "audio", "classes": ["robin", "wren"]})
    assert made.status == 201
    path = f"/projects/{made.json()['id']}"
    changed = call("PATCH", path, {"guidelines": "Listen twice.", "settings": {"batch_size": 3}}).json()
    assert (changed["guidelines"], changed["settings"]["batch_size"]) == ("Listen twice.", 3)
    assert changed["settings"]["strategy"] == made.json()["settings"]["strategy"]
    robin, wren = (row["id"] for row in call("GET", f"{path}/classes").json())
    owl = call("POST", f"{path}/classes", {"name": "owl"}).json()["id"]
    assert call("PATCH", f"{path}/classes/{owl}", {"name": "barn owl", "color": "#112233"}).json()["name"] == "barn owl"
    assert call("POST", f"{path}/classes/{wren}/merge", {"into": robin}).json()["effective_id"] == robin
    assert call("POST", f"{path}/classes/{wren}/unmerge").json()["effective_id"] is None
    assert call("POST", f"{path}/classes/{owl}/retire").json()["retired_at"] is not None
    assert call("POST", f"{path}/classes/{owl}/restore").json()["retired_at"] is None
    assert [row.name for row in list_classes(page_store, made.json()["id"])] == ["robin", "wren", "barn owl"]
    assert call("POST", "/projects", {"name": "Birds", "kind": "audio"}).status == 409
    wrong = call("PATCH", path, {"settings": {"strategy": "none such"}})
    assert wrong.status == 422 and "none such" in wrong.json()["error"]
    detail = call("GET", path).json()
    assert detail["role"] == "owner" and detail["counts"]["total"] == 0


@BOTH_DATABASES
def test_pages_of_items_hold_each_item_once(call, project, page_store):
    wanted = [item.id for item in Pool(page_store, project.id).items()]
    seen, cursor = [], 0
    while cursor is not None:
        page = call("GET", f"/projects/{project.id}/items?limit=5&cursor={cursor}").json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert seen == wanted
    exact = call("GET", f"/projects/{project.id}/items?limit=12").json()
    assert len(exact["items"]) == 12 and exact["next_cursor"] is None
    assert [item["name"] for item in call("GET", f"/projects/{project.id}/items?search=CLIP_007").json()["items"]] == [
        "clip_007.wav"
    ]


@BOTH_DATABASES
def test_media_are_the_imported_bytes_whole_and_in_ranges(call, project, page_store):
    item = Pool(page_store, project.id).items()[0]
    path = f"/projects/{project.id}/items/{item.id}/media"
    whole = call("GET", path)
    assert whole.body == page_store.media.read(item.sha256) and whole.headers["content-type"] == "audio/wav"
    assert call("GET", path, range="bytes=4-9").body == whole.body[4:10]


@BOTH_DATABASES
def test_a_label_is_stored_once_under_the_tokens_annotator(call, project, page_store):
    class_id = list_classes(page_store, project.id)[2].id
    item = call("POST", f"/projects/{project.id}/next", {"holder": "notebook"}).json()["items"][0]["item"]
    event = label(item["id"], class_id, seconds=1.5)
    for _ in range(2):
        applied = call("POST", f"/projects/{project.id}/labels", {"events": [event]}).json()["applied"]
        assert applied == [{"uuid": event["uuid"], "accepted": True, "reason": ""}]
    history = call("GET", f"/projects/{project.id}/items/{item['id']}/history").json()
    ana = annotator_named(page_store, "Ana").id
    assert [(one["uuid"], one["annotator_id"], one["class_id"]) for one in history] == [(event["uuid"], ana, class_id)]
    shown = call("GET", f"/projects/{project.id}/items/{item['id']}").json()
    assert (shown["label"], shown["n_labels"], shown["waiting"]) == ("two", 1, False)
    foreign = call("POST", f"/projects/{project.id}/labels", {"events": [label(10**9, class_id), event]}).json()
    assert [one["accepted"] for one in foreign["applied"]] == [False, True]


@BOTH_DATABASES
def test_two_holders_get_different_items_until_one_releases(call, project):
    def lease(holder):
        given = call("POST", f"/projects/{project.id}/next", {"limit": 3, "holder": holder}).json()
        return [one["item"]["id"] for one in given["items"]]

    one, two = lease("one"), lease("two")
    assert len(set(one + two)) == 6 and lease("one") == one
    assert call("POST", f"/projects/{project.id}/release", {"holder": "one"}).status == 204
    assert set(lease("three")) & set(one)


@BOTH_DATABASES
@pytest.mark.slow
def test_rounds_are_requested_followed_cancelled_and_read(call, project, page_store):
    path = f"/projects/{project.id}"
    assert call("GET", f"{path}/predictions").status == 404
    asked = call("POST", f"{path}/rounds")
    assert asked.status == 202 and asked.json()["status"] == "requested"
    assert call("POST", f"{path}/rounds").json()["id"] == asked.json()["id"]
    ended = call("POST", f"{path}/rounds/{asked.json()['id']}/cancel").json()
    assert ended["status"] == "cancelled" and ended["progress"]["waiting_for_worker"] is False
    picked = sample_store.finish_round(page_store, project, 4)
    rounds = call("GET", f"{path}/rounds").json()
    assert [row["status"] for row in rounds] == ["finished", "cancelled"]
    picks = call("GET", f"{path}/rounds/{rounds[0]['id']}/picks").json()
    assert [pick["item_id"] for pick in picks] == picked
    assert picks[0]["reason"]["pick_outer_before"] == 1.284
    next_ones = call("POST", f"{path}/next", {"limit": 2}).json()["items"]
    assert [one["item"]["id"] for one in next_ones] == picked[:2] and next_ones[0]["predictions"]


@BOTH_DATABASES
def test_pages_of_predictions_equal_the_rounds_own_arrays(call, project, page_store):
    from app.views.predictions import newest_predictions

    sample_store.finish_round(page_store, project, 4)
    found = newest_predictions(page_store, project.id)
    rows, cursor = [], 0
    while cursor is not None:
        page = call("GET", f"/projects/{project.id}/predictions?limit=5&cursor={cursor}").json()
        rows, cursor = rows + page["predictions"], page["next_cursor"]
    by_item = {row["item_id"]: row for row in rows}
    assert len(rows) == len(by_item) == len(found.item_ids) == 12
    for item_id, share in zip(found.item_ids, found.probabilities, strict=True):
        row = by_item[int(item_id)]
        assert row["probabilities"] == pytest.approx(share.tolist(), abs=1e-6)
        assert row["class_id"] == page["classes"][int(share.argmax())]["id"]


@BOTH_DATABASES
def test_a_blind_project_hides_labels_and_predictions_until_the_caller_has_labeled(app, page_store):
    project = sample_store.audio_project(page_store, n=6, labels_per_item=2)
    ana, ben = caller(app, page_store), caller(app, page_store, person="Ben")
    items = [item.id for item in Pool(page_store, project.id).items()]
    class_id, path = list_classes(page_store, project.id)[4].id, f"/projects/{project.id}"
    sample_store.finish_round(page_store, project, 2)
    assert ana("POST", f"{path}/labels", {"events": [label(items[0], class_id)]}).json()["applied"][0]["accepted"]
    seen = [ask("GET", f"{path}/items/{items[0]}").json() for ask in (ana, ben)]
    assert [one["label"] for one in seen] == ["four", None] and seen[1]["class_id"] is None
    assert [len(ask("GET", f"{path}/items/{items[0]}/history").json()) for ask in (ana, ben)] == [1, 0]
    found = [ask("GET", f"{path}/items?class_id={class_id}").json()["items"] for ask in (ana, ben)]
    assert [len(one) for one in found] == [1, 0]
    assert ben("GET", f"{path}/predictions").json()["predictions"] == []
    assert not any(one["predictions"] for one in ben("POST", f"{path}/next", {"limit": 3}).json()["items"])
    rounds = ben("GET", f"{path}/rounds").json()
    picks = ben("GET", f"{path}/rounds/{rounds[0]['id']}/picks").json()
    assert len(picks) == 2 and not any("pick_guess" in pick["reason"] or pick["label"] for pick in picks)
    ben("POST", f"{path}/labels", {"events": [label(items[0], class_id)]})
    assert ben("GET", f"{path}/items/{items[0]}").json()["label"] == "four"
    assert len(ben("GET", f"{path}/items/{items[0]}/history").json()) == 2


@BOTH_DATABASES
def test_roles_hold_for_tokens(app, project, page_store, call):
    viewer = caller(app, page_store, "viewer", "Vera")
    annotator = caller(app, page_store, "annotator", "Ann")
    path = f"/projects/{project.id}"
    item = Pool(page_store, project.id).items()[0].id
    class_id = list_classes(page_store, project.id)[0].id
    assert viewer("GET", f"{path}/items").status == 200
    refused = viewer("POST", f"{path}/next", {})
    assert refused.status == 403 and refused.json()["code"] == "forbidden" and "viewer" in refused.json()["error"]
    events = {"events": [label(item, class_id)]}
    assert not viewer("POST", f"{path}/labels", events).json()["applied"][0]["accepted"]
    assert annotator("POST", f"{path}/labels", events).json()["applied"][0]["accepted"]
    for send in (
        lambda: annotator("POST", f"{path}/rounds"),
        lambda: annotator("POST", f"{path}/classes", {"name": "x"}),
        lambda: annotator("POST", f"{path}/exports", {}),
        lambda: annotator("PATCH", path, {"name": "x"}),
        lambda: annotator("POST", "/projects", {"name": "x", "kind": "audio"}),
    ):
        assert send().status == 403
    set_role(page_store, project.id, annotator_named(page_store, "Olga").id, "owner")
    assert call("GET", path).status == 404 and call("GET", "/projects").json() == []


@BOTH_DATABASES
def test_every_error_has_the_documented_shape(call, project):
    answers = [
        call("GET", "/projects/999999"),
        call("GET", f"/projects/{2**70}"),
        call("GET", "/no/such/path"),
        call("DELETE", "/projects"),
        call("POST", "/projects", {"name": "", "kind": "video", "more": 1}),
        call("POST", "/projects", b"{"),
        call("POST", "/projects", b'{"name": "\\ud800", "kind": "audio"}'),
        call("POST", "/projects", {"name": "a\0b", "kind": "audio"}),
        call("POST", f"/projects/{project.id}/labels", b"[" * 50_000),
        call("GET", "/projects", host="evil.example"),
        call("POST", "/projects", {}, origin="http://evil.example"),
    ]
    statuses = [404, 422, 404, 405, 422, 422, 422, 422, 400, 421, 403]
    assert [answer.status for answer in answers] == statuses
    for answer in answers:
        body = answer.json()
        assert set(body) == {"error", "code", "fields"} and body["error"] and body["code"]
    assert {one["field"] for one in answers[4].json()["fields"]} == {"body.name", "body.kind", "body.more"}


@BOTH_DATABASES
def test_a_body_above_the_limit_is_refused(call, project):
    answer = call("POST", f"/projects/{project.id}/labels", b'{"events": [' + b" " * (16 * 2**20) + b"]}")
    assert answer.status == 413 and answer.json()["code"] == "too_large" and "16,777,216" in answer.json()["error"]


@BOTH_DATABASES
def test_more_requests_than_the_rate_get_429_and_the_time_to_wait(app, page_store, monkeypatch):
    monkeypatch.setenv("WINNOW_API_RATE", "3")
    slow = caller(api_app(), page_store)
    assert [slow("GET", "/me").status for _ in range(4)] == [200, 200, 200, 429]
    refused = slow("GET", "/me")
    assert refused.json()["code"] == "too_many_requests" and 1 <= int(refused.headers["retry-after"]) <= 21
    assert caller(app, page_store, person="Ben")("GET", "/me").status == 200


def form(files: dict[str, bytes], **fields: str) -> tuple[bytes, str]:
    """A multipart body and its content type."""
    parts = [f'--x\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode() for k, v in fields.items()]
    for name, data in files.items():
        head = f'--x\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
        parts.append(head.encode() + data + b"\r\n")
    return b"".join(parts) + b"--x--\r\n", "multipart/form-data; boundary=x"


def follow(call, project, job) -> dict:
    until = time.monotonic() + 120
    while job["status"] == "running":
        assert time.monotonic() < until
        time.sleep(0.2)
        job = call("GET", f"/projects/{project.id}/jobs/{job['id']}").json()
    return job


@pytest.mark.slow
def test_files_are_uploaded_imported_exported_and_downloaded(call, project, page_store, tmp_path):
    import io
    import zipfile

    files = {"zero/new.wav": sample_store.clip(9_001), "one/other.wav": sample_store.clip(9_002)}
    body, kind = form(files, labels="given")
    answer = call("POST", f"/projects/{project.id}/items", body, content_type=kind)
    assert answer.status == 202, answer.json()
    job = follow(call, project, answer.json())
    assert job["status"] == "finished" and job["result"]["imported"] == 2, job
    again = follow(call, project, call("POST", f"/projects/{project.id}/items", body, content_type=kind).json())
    assert again["status"] == "finished" and again["result"]["imported"] == 0
    assert Pool(page_store, project.id).counts().total == 14 and Pool(page_store, project.id).counts().labeled == 2
    export = call("POST", f"/projects/{project.id}/exports", {"format": "csv"}).json()
    export = follow(call, project, export)
    assert export["status"] == "finished", export
    data = call("GET", f"/projects/{project.id}/exports/{export['id']}/file")
    with zipfile.ZipFile(io.BytesIO(data.body)) as archive:
        assert archive.read("labels.csv").decode().count("\n") == 3
    check_windows(call, project, page_store)
    twice, kind = form({"a.wav": b"1"})
    wrong = call("POST", f"/projects/{project.id}/items", twice.replace(b"--x--", b"") + twice, content_type=kind)
    assert wrong.status == 422 and "same name as another" in wrong.json()["error"]


def check_windows(call, project, store) -> None:
    """A recording is uploaded in overlapping windows, one is labeled, and an Audacity track has its place."""
    import io
    import zipfile

    from tests.storage.made_media import wav

    path, recording = f"/projects/{project.id}", wav(5, n_samples=20_000)  # 2.5 s
    body, kind = form({"night.wav": recording}, window_seconds="1", hop_seconds="0.5")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("WINNOW_MAX_FILE_BYTES", str(len(recording) - 1))  # of a file that is not cut
        assert call("POST", f"{path}/items", form({"night.wav": recording})[0], content_type=kind).status == 422
        job = follow(call, project, call("POST", f"{path}/items", body, content_type=kind).json())
    assert job["status"] == "finished" and job["result"]["imported"] == 4, job
    found = call("GET", f"{path}/items?search=night.wav").json()["items"]
    assert [one["first_frame"] for one in found] == [0, 4_000, 8_000, 12_000]
    assert {one["last_frame"] - one["first_frame"] for one in found} == {7_999}
    assert {one["recording_sha256"] for one in found} == {hashlib.sha256(recording).hexdigest()}
    classes = list_classes(store, project.id)
    call("POST", f"{path}/labels", {"events": [label(found[1]["id"], classes[0].id)]})
    export = follow(call, project, call("POST", f"{path}/exports", {"format": "audacity"}).json())
    data = call("GET", f"{path}/exports/{export['id']}/file").body
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        track = next(name for name in archive.namelist() if "night" in name)
        start, end, name = archive.read(track).decode().strip().split("\t")
    assert (float(start), float(end), name) == (0.5, 1.5, classes[0].name)
    body, kind = form({"night.wav": recording}, hop_seconds="0.5")
    refused = call("POST", f"{path}/items", body, content_type=kind)
    assert refused.status == 422 and "hop_seconds needs window_seconds" in refused.json()["error"]


@BOTH_DATABASES
@pytest.mark.slow
def test_a_project_is_duplicated_measured_and_deleted_by_its_name(call, project, page_store):
    path = f"/projects/{project.id}"
    assert call("POST", f"{path}/duplicate", {"name": "Copy"}).status == 201
    items = [item.id for item in Pool(page_store, project.id).items()]
    moved = call("POST", f"{path}/test-items", {"item_ids": items[:2]}).json()
    assert (moved["moved"], moved["unchanged"]) == (2, 0)
    assert call("GET", f"{path}/disk").json()["media_files"] == 12
    plan = call("GET", f"{path}/deletion").json()
    assert (plan["items"], plan["whole_project"]) == (12, True)
    refused = call("POST", f"{path}/deletion", {"confirm": "spoken digits"})
    assert refused.status == 422 and "not the project's name" in refused.json()["error"]
    job = follow(
        call, project, call("POST", f"{path}/deletion", {"confirm": project.name, "item_ids": items[:3]}).json()
    )
    assert job["status"] == "finished" and job["result"]["items"] == 3
    answer = call("POST", f"{path}/deletion", {"confirm": project.name})
    assert answer.status == 202
    until = time.monotonic() + 120
    while call("GET", path).status != 404:
        assert time.monotonic() < until
        time.sleep(0.2)
    assert [row["name"] for row in call("GET", "/projects?archived=true").json()] == ["Copy"]


@BOTH_DATABASES
@pytest.mark.slow
def test_a_deletion_whose_process_died_continues_when_the_server_starts(project, page_store):
    from app.jobs.deletions import resume_deletions
    from storage.projects.deletion import request_deletion, unfinished_deletions

    request_deletion(page_store, project.id, project.name)
    assert len(resume_deletions(page_store)) == 1 and resume_deletions(page_store) == []
    until = time.monotonic() + 120
    while unfinished_deletions(page_store):
        assert time.monotonic() < until
        time.sleep(0.2)
