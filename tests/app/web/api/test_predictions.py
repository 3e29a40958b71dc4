"""Models and predictions over the API: limits, roles, hidden items, and the rows of a job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.jobs import jobs, operations
from app.jobs.folder import JobFolder
from app.jobs.requests import from_dict
from app.processes.messages import Message
from app.rounds.model import open_round_model
from app.web import resources
from app.web.api import predictions
from core.types import ignore
from storage.labeling.pool import Pool
from storage.projects.projects import ProjectSettings, update_project
from tests.app.real_rounds import quick_settings, run_round_here
from tests.app.web.api.callers import api_app, caller
from tests.app.web.api.test_api import form
from tests.round_pools import draw_project, picture

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def held(monkeypatch):
    """Jobs are recorded and run by `finish` in this process."""
    started: list[Path] = []

    def start(home, title, request, project_id=None, *, uses=None, makes=None):
        made = jobs.Job(id=f"{len(started):012x}", title=title, project_id=project_id, started_at=0.0,
                        uses=str(uses or ""), makes=str(makes or ""))  # fmt: skip
        folder = JobFolder(home / "jobs" / made.id)
        folder.path.mkdir(parents=True)
        from dataclasses import asdict

        from app.jobs.requests import to_dict

        folder.write_job(asdict(made) | {"request": to_dict(request), "actor": None})
        monkeypatch.setattr(JobFolder, "is_locked", lambda self: True)
        started.append(folder.path)
        return made

    monkeypatch.setattr(jobs, "start", start)
    return started


def finish(store, path: Path) -> dict:
    folder = JobFolder(path)
    done = operations.run(store, from_dict((folder.read_job() or {})["request"]), ignore)
    folder.send(Message("result", done.result))
    return dict(done.result)


@pytest.fixture
def shapes(page_store):
    drawn = draw_project(page_store, 24, n_held_out=3)
    drawn.label(drawn.item_ids[3:15])
    run_round_here(page_store, drawn.project_id, quick_settings(image_size=16))
    return drawn


def test_items_and_files_have_the_predictions_of_the_model(page_store, shapes, held):
    call = caller(api_app(), page_store, "annotator")
    base, wanted = f"/projects/{shapes.project_id}", [shapes.item_ids[20], shapes.item_ids[5]]
    assert call("POST", f"{base}/predictions/items", {"item_ids": wanted, "all_probabilities": True}).status == 202
    result = finish(page_store, held[0])
    assert (result["files"], result["trained_on"], result["unreadable"]) == (2, 1, 0)
    first = call("GET", f"{base}/jobs/{held[0].name}/predictions?limit=1").json()
    rest = call("GET", f"{base}/jobs/{held[0].name}/predictions?cursor={first['next_cursor']}").json()
    rows = first["predictions"] + rest["predictions"]
    assert [row["item_id"] for row in rows] == wanted and rest["next_cursor"] is None
    model = open_round_model(page_store, shapes.project_id)
    data = [page_store.media.read(row.sha256) for row in Pool(page_store, shapes.project_id).items_by_id(wanted)]
    expected = model.predictor.predict([model.predictor.decode(one) for one in data]).probabilities
    given = np.array([[row["probabilities"][one.name] for one in model.classes] for row in rows])
    assert np.abs(given - expected).max() < 1e-5
    new = {"a/new.png": picture(0, 77), "../../b.png": b"\x89PNG no"}
    body, kind = form(new, round="1")
    assert call("POST", f"{base}/predictions/files", body, content_type=kind).status == 202
    finish(page_store, held[1])
    rows = call("GET", f"{base}/jobs/{held[1].name}/predictions").json()["predictions"]
    assert [row["file"] for row in rows] == list(new) and [row["error"] is None for row in rows] == [True, False]
    assert rows[0]["nearest_item_id"] in shapes.item_ids and rows[1]["class_name"] is None
    assert rows[0]["probabilities"] is None and rows[0]["round"] == 1


def test_limits_and_roles_of_models_and_predictions(page_store, shapes, held):
    app, base = api_app(), f"/projects/{shapes.project_id}"
    call, viewer = caller(app, page_store, "annotator"), caller(app, page_store, "viewer", "Vic")
    items = {"item_ids": [shapes.item_ids[20]]}
    assert viewer("POST", f"{base}/predictions/items", items).status == 403
    assert call("POST", f"{base}/models", {}).status == 403, "a model needs the role editor"
    assert call("POST", f"{base}/predictions/items", items | {"round": "7"}).status == 404
    assert call("POST", f"{base}/predictions/items", {"item_ids": [1] * 10_001}).status == 422
    for _ in range(predictions.MOST_RUNNING):
        assert call("POST", f"{base}/predictions/items", items).status == 202
    refused = call("POST", f"{base}/predictions/items", items)
    assert refused.status == 409 and "which is the limit" in refused.json()["error"] and len(held) == 2
    running = call("GET", f"{base}/jobs/{held[0].name}/predictions")
    assert running.status == 409 and "is running" in running.json()["error"]
    assert call("GET", f"{base}/exports/{held[0].name}/file").status == 404, "it makes no zip file"


def test_hidden_items_have_no_predictions_for_who_may_still_label_them(page_store, shapes, held):
    settings = ProjectSettings(labels_per_item=2, blind=True)
    update_project(page_store, shapes.project_id, settings=settings)
    call, base = caller(api_app(), page_store, "annotator"), f"/projects/{shapes.project_id}"
    refused = call("POST", f"{base}/predictions/items", {"item_ids": [shapes.item_ids[20]]})
    assert refused.status == 403 and str(shapes.item_ids[20]) in refused.json()["error"] and not held
    assert resources.store() is page_store
    row = Pool(page_store, shapes.project_id).item(shapes.item_ids[20])
    body, kind = form({"new.png": picture(0, 77), "copy.png": page_store.media.read(row.sha256)})
    refused = call("POST", f"{base}/predictions/files", body, content_type=kind)
    assert refused.status == 403 and "copy.png" in refused.json()["error"] and not held
    body, kind = form({"new.png": picture(0, 77)})
    assert call("POST", f"{base}/predictions/files", body, content_type=kind).status == 202
    finish(page_store, held[0])
    assert call("GET", f"{base}/jobs/{held[0].name}/predictions").json()["predictions"][0]["error"] is None
