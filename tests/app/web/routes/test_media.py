"""Media: only with a session, only the named bytes, never in a form that a browser would execute."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from PIL import Image

from app.rounds import media_settings
from app.views.previews.drawing import magma
from app.web.routes.media import media_path, model_path, picture_path, sound_path
from core.media.inputs import prepare
from core.rows import MemoryRowCache
from storage.database.store import Store
from storage.importing.open import open_source
from storage.importing.run import run_import
from storage.labeling.pool import Pool
from storage.media.pack_index import Slot
from storage.media.packs import PackWriter
from storage.projects.projects import create_project, get_project
from tests.app import sample_store
from tests.app.asgi_client import ask
from tests.storage import made_media


@pytest.fixture
def clip(page_store):
    project = sample_store.audio_project(page_store, n=2)
    return Pool(page_store, project.id).items()[0]


def test_the_bytes_are_served_whole_and_in_ranges_with_a_strong_tag(get, clip, page_store):
    """The content type comes from an allow-list, and the answer cannot run scripts."""
    data = page_store.media.read(clip.sha256)
    whole = get(media_path(clip, "file"))
    assert (whole.status, whole.body) == (200, data)
    assert whole.headers["content-type"] == "audio/wav"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert whole.headers["content-security-policy"].startswith("sandbox")
    assert whole.headers["cache-control"].startswith("private")
    tag = whole.headers["etag"]
    assert tag.startswith('"') and clip.sha256 in tag
    part = get(media_path(clip, "file"), range="bytes=100-199")
    assert (part.status, part.body) == (206, data[100:200])
    assert part.headers["content-range"] == f"bytes 100-199/{len(data)}"
    assert get(media_path(clip, "file"), range=f"bytes={len(data)}-").status == 416
    assert get(media_path(clip, "file"), if_none_match=tag).status == 304


@pytest.mark.slow
def test_a_format_that_browsers_do_not_play_or_show_is_served_as_one_that_they_do(get, page_store, tmp_path):
    """AIFF is played as FLAC, TIFF and AVIF are shown as PNG; the bytes as imported stay available."""
    aiff = made_media.sound("AIFF", subtype="PCM_16")
    project = create_project(page_store, "Old sounds", "audio", ["a", "b"])
    source = made_media.write_files(tmp_path / "sounds", {"x.aiff": aiff})
    assert run_import(page_store, project.id, open_source(source)).imported == 1
    [item] = Pool(page_store, project.id).items()
    assert item.media_type == "audio/aiff" and sound_path(item) == media_path(item, "sound.flac")
    assert get(media_path(item, "file")).body == aiff
    played = get(sound_path(item))
    assert (played.status, played.headers["content-type"]) == (200, "audio/flac")
    samples, _ = soundfile.read(io.BytesIO(played.body), dtype="int16")
    original, _ = soundfile.read(io.BytesIO(aiff), dtype="int16")
    assert abs(samples.astype(int) - original).max() <= 1
    part = get(sound_path(item), range="bytes=0-3")
    assert (part.status, part.body) == (206, b"fLaC")
    pictures = create_project(page_store, "Scans", "image", ["a", "b"])
    files = {"x.avif": made_media.avif(), "x.tiff": made_media.tiff()}
    source = made_media.write_files(tmp_path / "scans", files)
    assert run_import(page_store, pictures.id, open_source(source)).imported == 2
    for item in Pool(page_store, pictures.id).items():
        data = files[item.name]
        shown = get(picture_path(item))
        assert (shown.status, shown.headers["content-type"]) == (200, "image/png")
        assert Image.open(io.BytesIO(shown.body)).size == Image.open(io.BytesIO(data)).size


RANGES = ("bytes=100-199", "bytes=0-0", "bytes=20000-", "bytes=-7", "bytes=5-9999999", "bytes=99999999-", "bytes=-0")


def test_packed_bytes_are_served_like_those_of_a_file(get, clip, page_store):
    """The same answers to every range before and after the bytes went into a pack."""
    names = ("content-range", "content-length", "content-type", "accept-ranges", "etag", "cache-control")

    def answer(**asked: str) -> tuple[int, bytes, list[str | None]]:
        one = get(media_path(clip, "file"), **asked)
        right = one.status < 400
        return one.status, one.body if right else b"", [one.headers.get(name) for name in names[: 6 if right else 1]]

    def answers() -> list[tuple[int, bytes, list[str | None]]]:
        tag = get(media_path(clip, "file")).headers["etag"]
        conditional = [answer(if_range=one, range="bytes=1-2") for one in ('"other"', tag)]
        return [answer(), *(answer(range=one) for one in RANGES), *conditional]

    before = answers()
    pack(page_store, clip.sha256)
    assert page_store.media.locate(clip.sha256) is None
    assert answers() == before
    assert [status for status, _, _ in before] == [200, 206, 206, 206, 206, 206, 416, 416, 200, 206]
    for odd in ("bytes=1-2,5-6", "lines=1-2", "bytes=9-1", "bytes=-", f"bytes={'9' * 5_000}-"):
        assert get(media_path(clip, "file"), range=odd).body == before[0][1]
    assert get(media_path(clip, "spectrogram.png")).status == 200


def test_a_packed_item_whose_bytes_changed_is_marked_and_not_sent(get, clip, page_store):
    """The hash is compared when bytes are read from a pack."""
    slot = pack(page_store, clip.sha256)
    path = page_store.media.packs.path(slot)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"x")
    assert get(media_path(clip, "file")).status == 404
    assert Pool(page_store, clip.project_id).item(clip.id).condition == "changed"
    path.unlink()
    assert get(media_path(clip, "thumb.png")).status == 404
    assert Pool(page_store, clip.project_id).item(clip.id).condition == "missing"
    path.write_bytes(data)
    assert get(media_path(clip, "file")).body == data
    assert Pool(page_store, clip.project_id).item(clip.id).condition == "ok"


def pack(store: Store, sha256: str) -> Slot:
    """Put the bytes of a file into a pack instead."""
    writer = PackWriter(store.media.root)
    writer.append(sha256, store.media.read(sha256))
    writer.close()
    store.media.path(sha256).unlink()
    [slot] = store.media.packs.slots(sha256)
    return slot


def test_without_a_session_there_is_nothing(routes, clip):
    """Media need a session, on loopback too."""
    assert ask(routes, "GET", media_path(clip, "file")).status == 401
    assert ask(routes, "GET", media_path(clip, "file"), None, {"cookie": "winnow_session=made.up"}).status == 401


def test_another_project_hash_or_part_is_not_found(get, clip, page_store):
    """Item, project and hash must belong together; anything else is 404."""
    other = sample_store.image_project(page_store, "Other", 1)
    base = f"/api/media/{clip.project_id}/{clip.id}/{clip.sha256}"
    for address in (
        media_path(clip, "file").replace(f"/media/{clip.project_id}/", f"/media/{other.id}/"),
        base.replace(clip.sha256, "0" * 64) + "/file",
        base + "/picture.png",
        base + "/../../secret",
        base + "/file.html",
        f"/api/media/{clip.project_id}/{10**30}/{clip.sha256}/file",
        f"/api/media/{10**30}/{clip.id}/{clip.sha256}/file",
    ):
        assert get(address).status == 404, address


def test_pictures_are_drawn_once_and_served_as_png(get, clip, page_store):
    drawn = get(media_path(clip, "spectrogram.png"))
    assert drawn.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(drawn.body)).size == (900, 320)
    kept = list((page_store.home / "cache" / "pictures").rglob("*spectrogram*"))
    assert len(kept) == 1 and kept[0].read_bytes() == drawn.body
    kept[0].write_bytes(b"kept")
    assert get(media_path(clip, "spectrogram.png")).body == b"kept"
    assert Image.open(io.BytesIO(get(media_path(clip, "thumb.png")).body)).size == (240, 136)
    sound = get(media_path(clip, "sound.json")).json()
    assert sound["seconds"] == pytest.approx(0.64) and len(sound["peaks"]) == 148 and max(sound["peaks"]) == 1.0


def test_a_missing_or_changed_file_is_reported_and_other_bytes_are_never_sent(get, clip, page_store):
    """The hash is compared when bytes are read from a file."""
    path = page_store.media.path(clip.sha256)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"x")
    assert get(media_path(clip, "file")).status == 404
    assert get(media_path(clip, "spectrogram.png")).status == 404
    path.unlink()
    answer = get(media_path(clip, "file"))
    assert answer.status == 404 and "cannot be read" in answer.json()["error"]


@pytest.mark.parametrize("part", ["file", "spectrogram.png", "thumb.png"])
def test_requesting_a_missing_or_changed_file_marks_its_item_until_the_right_bytes_are_back(
    get, clip, page_store, part
):
    """Also if the picture was drawn and cached before; the queue skips the item, its labels are kept."""
    pool = Pool(page_store, clip.project_id)
    path = page_store.media.path(clip.sha256)
    data = path.read_bytes()
    waiting = pool.counts().waiting
    assert get(media_path(clip, part)).status == 200
    path.unlink()
    assert get(media_path(clip, part)).status == 404
    assert pool.item(clip.id).condition == "missing" and "cannot be read" in pool.item(clip.id).condition_note
    assert pool.counts().waiting == waiting - 1
    path.write_bytes(data[:-1] + b"x")
    assert get(media_path(clip, part)).status == 404
    assert pool.item(clip.id).condition == "changed"
    path.write_bytes(data)
    assert get(media_path(clip, part)).status == 200
    assert (pool.item(clip.id).condition, pool.counts().waiting) == ("ok", waiting)


def test_content_that_cannot_be_decoded_gives_an_error_response(get, page_store):
    """Damaged files that are requested."""
    project = sample_store.create_project(page_store, "Broken", "image", ["a"])
    broken = sample_store.picture(1)[:200]
    [item] = sample_store.add_items(page_store, project, [("half.png", broken)])
    answer = get(media_path(Pool(page_store, project.id).item(item), "picture.png"))
    assert answer.status in (404, 422) and answer.json()["error"]
    assert "half" not in answer.json()["error"]  # the card shows it, and a file name may reveal the class


def test_the_drawing_of_an_item_is_the_input_of_the_network(get, clip, page_store):
    """The reference is the input that a round prepares; other settings have another address and another drawing."""
    project = get_project(page_store, clip.project_id)
    config = media_settings.of_project(page_store, project).config
    answer = get(model_path(clip, config))
    assert answer.status == 200 and answer.headers["content-type"] == "image/png"
    drawn = np.asarray(Image.open(io.BytesIO(answer.body)).convert("RGB"))
    inputs = prepare([clip.sha256], page_store.media.read, "audio", config, MemoryRowCache())
    levels = ((inputs.clean.take(np.array([0]))[0, ::-1, :, 0] + 1.5) / 3 * 255).round().clip(0, 255)
    times = drawn.shape[0] // config.n_mels
    assert drawn.shape == (times * config.n_mels, times * config.n_frames, 3)
    found = drawn[::times, ::times].astype(int)
    expected = magma()[levels.astype(np.uint8)].astype(int)
    assert np.abs(found - expected).max() <= 4  # one level
    media_settings.change(page_store, project, {"n_mels": 20})
    changed = media_settings.of_project(page_store, get_project(page_store, project.id)).config
    assert model_path(clip, changed) != model_path(clip, config)
    other = Image.open(io.BytesIO(get(model_path(clip, changed)).body))
    assert other.height % 20 == 0 and get(model_path(clip, changed)).headers["etag"] != answer.headers["etag"]


def test_the_small_picture_of_an_item_is_found_by_its_number_with_a_session_and_in_its_project(routes, get, clip):
    """For points of the map, which have no hash."""
    address = f"/api/preview/{clip.project_id}/{clip.id}"
    assert ask(routes, "GET", address).status == 401
    answer = get(address)
    assert (answer.status, answer.headers["location"]) == (302, media_path(clip, "thumb.png"))
    assert get(f"/api/preview/{clip.project_id}/{clip.id + 1_000}").status == 404
    assert get(f"/api/preview/{clip.project_id + 1}/{clip.id}").status == 404
