"""Processes that share nothing but the database and the artifact folder."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from app.rounds import requests as round_requests
from storage.database.store import Store
from storage.media import shared as shared_media
from storage.rounds import workers
from storage.rounds.log import RoundLog
from tests.app.worker_processes import Place, crew_in, quick_config, until
from tests.round_pools import draw_project

TIMEOUT_SECONDS = 240.0


def undisturbed_picks(tmp_path: Path) -> list[int]:
    """The picks of one worker on one machine, by position in the project's list of items."""
    with Store.open(home=tmp_path / "alone") as store, crew_in(tmp_path / "alone") as crew:
        drawn = draw_project(store, n_items=48)
        drawn.label(drawn.item_ids[:9])
        row = round_requests.request_round(store, drawn.project_id, config=quick_config())
        crew.start(Place(home=store.home))
        log = RoundLog(store, drawn.project_id)
        until(lambda: not log.get(row.id).unfinished, TIMEOUT_SECONDS, "the undisturbed round")
        assert log.get(row.id).status == "finished", log.get(row.id).error
        return [drawn.item_ids.index(pick.item_id) for pick in log.picks(row.id)]


@pytest.mark.postgres
@pytest.mark.slow
def test_two_machines_share_a_round_lose_one_and_end_with_the_same_picks(postgres_url, tmp_path):
    """PostgreSQL, two workers, one killed with -9 in the middle: the same picks, nothing computed twice except the lost
    unit, and labels can be given meanwhile."""
    expected = undisturbed_picks(tmp_path)
    shared = str(tmp_path / "artifacts")
    home = tmp_path / "home"
    with Store.open(postgres_url, home) as opened, crew_in(tmp_path) as crew:
        store = Store(opened.url, home, shared)
        drawn = draw_project(store, n_items=48)
        drawn.label(drawn.item_ids[:9])
        gate = tmp_path / "gate"  # both are at a unit before any unit is done
        common = {"url": postgres_url, "artifacts": shared, "unit_rows": 6, "gates": {"unit features": gate}}
        here = crew.start(Place(home=home, **common))
        there = crew.start(Place(home=tmp_path / "elsewhere", **common))
        until(lambda: len(workers.living_workers(store)) == 2, TIMEOUT_SECONDS, "two workers")
        row = round_requests.request_round(store, drawn.project_id, config=quick_config())
        until(lambda: here.lines("-features-") and there.lines("-features-"), TIMEOUT_SECONDS, "both at work")
        there.kill()
        killed = time.monotonic()
        while time.monotonic() - killed < 1.0:  # labels can be given meanwhile
            drawn.label([drawn.item_ids[20]])
            time.sleep(0.05)
        gate.touch()
        log = RoundLog(store, drawn.project_id)
        until(lambda: not log.get(row.id).unfinished, TIMEOUT_SECONDS, "the end of the round")
        done = log.get(row.id)
        assert done.status == "finished", done.error + done.log
        assert [drawn.item_ids.index(pick.item_id) for pick in log.picks(row.id)] == expected
        assert done.metrics["n_labeled"] == 9
        begun = Counter(line.split("unit ")[1].split()[0] for line in crew.lines(": unit ") if line.endswith("begins"))
        lost = {unit for unit, count in begun.items() if count > 1}
        assert len(begun) == 16  # eight of predictions, eight of features
        assert len(lost) <= 1 and sum(begun.values()) <= 17
        for stage in ("snapshot", "train", "select"):
            assert len(crew.lines(f": {stage} begins")) <= 1 + (stage == "select")
        store.close()


@pytest.fixture
def s3(monkeypatch):
    """An S3 server on loopback with one bucket, and the environment variables for it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()  # one made before would look for an earlier server
    S3FileSystem().mkdir("winnow")
    yield environment
    S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.mark.slow
def test_a_round_works_with_artifacts_in_an_object_store(s3, tmp_path):
    """Through a local cache, so that arrays stay memory-mapped; a machine without local copies reads all of them."""
    expected = undisturbed_picks(tmp_path)
    address = f"s3://winnow/{uuid.uuid4().hex}"
    home = tmp_path / "home"
    with Store.open(home=home) as opened, crew_in(tmp_path) as crew:
        store = Store(opened.url, home, address)
        drawn = draw_project(store, n_items=48)
        drawn.label(drawn.item_ids[:9])
        shared_media.share(store, drawn.project_id, drawn.item_ids[-1])
        crew.start(Place(home=tmp_path / "elsewhere", url=store.url, artifacts=address, environment=s3))
        row = round_requests.request_round(store, drawn.project_id, config=quick_config())
        log = RoundLog(store, drawn.project_id)
        until(lambda: not log.get(row.id).unfinished, TIMEOUT_SECONDS, "the end of the round")
        assert log.get(row.id).status == "finished", log.get(row.id).error + log.get(row.id).log
        assert [drawn.item_ids.index(pick.item_id) for pick in log.picks(row.id)] == expected
        array = log.arrays(row.id, "probabilities")
        assert array.shape == (48, 3) and Path(array.filename).is_relative_to(home)  # mapped from the local cache
        store.close()
