"""Uploads: only with a ticket, bounded, written into an archive whose names never become paths."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Callable
from urllib.parse import quote

import pytest
from starlette.applications import Starlette

from app.jobs.operations import import_media, preview_import
from app.jobs.requests import ImportRequest, PreviewRequest
from app.web import resources, tickets
from app.web.routes import uploads as upload_routes
from app.web.routes.uploads import upload_path
from core.limits import limits_from
from core.types import ignore
from storage.importing.open import open_source
from storage.importing.run import ImportOptions, locator, run_import
from storage.labeling.pool import Pool
from storage.media.windows import WindowOptions
from storage.projects.annotators import annotator_named
from storage.projects.projects import create_project
from tests.app.asgi_client import Answer, ask
from tests.storage.made_media import wav

UPLOAD = "0123456789abcdef" * 2
HOSTILE = ("../../outside.wav", "/etc/outside.wav", "<img src=x onerror=alert(1)>.wav", "![x](http://203.0.113.7/).wav")


@pytest.fixture(autouse=True)
def no_uploads_in_progress(monkeypatch) -> None:
    monkeypatch.setattr(upload_routes, "_growing", {})


@pytest.fixture
def server(page_store) -> Starlette:
    return Starlette(routes=upload_routes.upload_routes())


@pytest.fixture
def put(server, page_store) -> Callable[..., Answer]:
    """`put(name, data)`: one file of the upload, sent by Ana."""
    ticket = tickets.issue(resources.key(), annotator_named(page_store, "Ana").id, 60)

    def send(name: str, data: bytes = b"", upload: str = UPLOAD, **more: str) -> Answer:
        headers = {"x-winnow-ticket": ticket, "x-winnow-name": quote(name, safe="")} | more
        return ask(server, "PUT", f"/api/uploads/{upload}", data, headers)

    return send


@pytest.fixture
def done(server, page_store) -> Callable[..., Answer]:
    ticket = tickets.issue(resources.key(), annotator_named(page_store, "Ana").id, 60)

    def close(upload: str = UPLOAD, **more: str) -> Answer:
        return ask(server, "POST", f"/api/uploads/{upload}/done", {}, {"x-winnow-ticket": ticket} | more)

    return close


def test_nothing_is_taken_without_a_ticket(server, page_store):
    """An upload without a valid ticket leaves no file."""
    for headers in ({}, {"x-winnow-ticket": "made.up"}):
        answer = ask(server, "PUT", f"/api/uploads/{UPLOAD}", b"x", headers | {"x-winnow-name": "a.wav"})
        assert answer.status == 401 and answer.json()["error"].startswith("You are signed out")
        assert ask(server, "POST", f"/api/uploads/{UPLOAD}/done", {}, headers).status == 401
    assert not (page_store.home / "uploads").exists()


def test_uploads_without_a_usable_name_are_refused(put, done, page_store):
    """Identifiers with path parts, empty and overlong names, and names with NUL; nothing is written."""
    for upload in ("x", "A" * 32, "0" * 33, "..%2f..%2fx"):
        assert put("a.wav", b"x", upload=upload).status in (404, 422), upload
        assert done(upload).status == 404
    for name in ("", "n" * 5000, "a\0b.wav"):
        assert put(name, b"x").status == 422, name
    assert done().status == 404
    assert list(page_store.home.glob("uploads/*")) == []
    with pytest.raises(ValueError, match="not the name of an upload"):
        upload_path("../../etc/passwd")


def test_files_keep_their_names_in_one_archive_and_hostile_names_never_become_paths(put, done, page_store):
    """The import writes nothing elsewhere; accepted files keep their names."""
    for number, name in enumerate(HOSTILE):
        assert put(name, wav(number)).json() == {"bytes": len(wav(number))}
    assert put("page.wav", b"<html>" * 9).status == 200
    assert not upload_path(UPLOAD).exists()
    assert done().status == 200
    with zipfile.ZipFile(upload_path(UPLOAD)) as packed:
        assert packed.namelist() == [*HOSTILE, "page.wav"]
        assert packed.read(HOSTILE[0]) == wav(0)
    project = create_project(page_store, "Uploads", "audio", ["a"])
    options = ImportOptions(labels="ignore", skip_problems=True)
    source = open_source(upload_path(UPLOAD), options.limits, locator(page_store))
    try:
        report = run_import(page_store, project.id, source, options)
    finally:
        source.close()
    assert sorted(item.name for item in Pool(page_store, project.id).items()) == sorted(HOSTILE[2:])
    assert {name for name, _ in report.refused} == {*HOSTILE[:2], "page.wav"}
    assert not list(page_store.home.parent.rglob("outside.wav"))


def test_a_single_zip_is_kept_byte_by_byte(put, done, tmp_path):
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as packed:
        packed.writestr("dog/a.wav", wav(1))
    data = (tmp_path / "in.zip").read_bytes()
    assert put("in.zip", data, **{"x-winnow-alone": "yes"}).status == 200
    assert done().status == 200
    assert upload_path(UPLOAD).read_bytes() == data


def test_sizes_are_bounded_file_by_file_and_together(put, done, page_store, monkeypatch):
    """The message for a file above a limit states the limit, and no file remains."""
    monkeypatch.setenv("WINNOW_MAX_FILE_BYTES", "1000")
    monkeypatch.setenv("WINNOW_MAX_RECORDING_BYTES", "1000")
    monkeypatch.setenv("WINNOW_MAX_ZIP_BYTES", "2500")
    answer = put("big.wav", b"x" * 1001)
    assert answer.status == 413 and "1,000 bytes" in answer.json()["error"]
    assert list((page_store.home / "uploads").iterdir()) == []
    assert [put(f"{n}.wav", b"x" * 1000).status for n in range(3)] == [200, 200, 413]
    assert put("whole.zip", b"x" * 2501, upload="f" * 32, **{"x-winnow-alone": "yes"}).status == 413
    assert done().status == 200
    with zipfile.ZipFile(upload_path(UPLOAD)) as packed:
        assert packed.namelist() == ["0.wav", "1.wav"]


def test_a_recording_above_the_limit_of_clips_can_be_uploaded_and_cut(put, done, page_store, monkeypatch):
    """Whether the import cuts it is not known during the upload. A file that it does not cut is refused then."""
    recording = wav(1, n_samples=40_000)  # 5 s
    monkeypatch.setenv("WINNOW_MAX_FILE_BYTES", str(len(recording) - 1))
    assert put("night.wav", recording).status == 200
    assert done().status == 200
    whole, cut = (
        ImportOptions(limits=limits_from()),
        ImportOptions(limits=limits_from(), windows=WindowOptions(seconds=1)),
    )
    project = create_project(page_store, "Night", "audio")
    for options, expected in ((whole, 0), (cut, 5)):
        request = ImportRequest(source=str(upload_path(UPLOAD)), project=project.name, options=options)
        seen = preview_import(
            page_store, PreviewRequest(source=request.source, project="Night", options=options), ignore
        )
        _, report = import_media(page_store, request, ignore)
        assert report.imported == expected
        assert [verdict.problem for verdict in seen.problems] == [reason for _, reason in report.refused]
        if not expected:
            assert "max_file_bytes" in seen.problems[0].problem and "(--windows)" in seen.problems[0].problem


def test_uploads_that_were_never_imported_are_removed(put, done, page_store):
    folder = page_store.home / "uploads"
    assert put("a.wav", b"x", upload="a" * 32).status == 200
    assert put("b.zip", b"x", upload="b" * 32, **{"x-winnow-alone": "yes"}).status == 200
    old = time.time() - upload_routes.KEPT_SECONDS - 10
    for path in folder.iterdir():
        os.utime(path, (old, old))
    assert put("c.wav", b"x", upload="c" * 32).status == 200
    assert [path.name for path in folder.iterdir()] == [f"{'c' * 32}.part"]
    assert done("a" * 32).status == 404 and done("c" * 32).status == 200


def restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the state that a killed server loses."""
    monkeypatch.setattr(upload_routes, "_growing", {})


def test_a_file_after_a_restart_of_the_server_is_refused_because_the_earlier_ones_are_lost(put, done, monkeypatch):
    assert put("a.wav", b"x", **{"x-winnow-position": "0"}).status == 200
    restart(monkeypatch)
    answer = put("b.wav", b"y", **{"x-winnow-position": "1"})
    assert answer.status == 409 and "Choose the files again" in answer.json()["error"]


def test_an_upload_that_lost_files_cannot_be_closed(put, done, monkeypatch):
    assert put("a.wav", b"x", **{"x-winnow-position": "0"}).status == 200
    restart(monkeypatch)
    assert done(**{"x-winnow-files": "1"}).status == 409
    assert not upload_path(UPLOAD).exists()
    other = "e" * 32
    assert [put(f"{n}.wav", b"x", other, **{"x-winnow-position": str(n)}).status for n in range(2)] == [200, 200]
    assert done(other, **{"x-winnow-files": "2"}).status == 200
    with zipfile.ZipFile(upload_path(other)) as packed:
        assert packed.namelist() == ["0.wav", "1.wav"]


def test_a_single_zip_is_closed_with_its_count(put, done):
    assert put("in.zip", b"PK", **{"x-winnow-alone": "yes", "x-winnow-position": "0"}).status == 200
    assert done(**{"x-winnow-files": "1"}).status == 200


def test_a_full_disk_gives_a_message_and_no_file_remains(put, page_store, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(upload_routes, "_keep", full)
    answer = put("a.wav", b"x")
    assert answer.status == 507 and "a.wav was not stored: No space left on device" in answer.json()["error"]
    assert list((page_store.home / "uploads").iterdir()) == []
