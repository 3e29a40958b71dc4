"""Drawing in limited child processes: a hostile file affects only one child, for a bounded time."""

from __future__ import annotations

import io
import threading
import time

import pytest
from PIL import Image

from app.views.previews import pool as preview_pool
from app.views.previews.pool import PreviewBusy, PreviewFailed, PreviewPool
from core.limits import Limits
from tests.storage import made_media

pytestmark = pytest.mark.slow


@pytest.fixture
def make_pool():
    pools: list[PreviewPool] = []

    def make(n_children: int = 1, **limits: float) -> PreviewPool:
        pools.append(PreviewPool(Limits(**limits), n_children))
        return pools[-1]

    yield make
    for pool in pools:
        pool.shutdown()


def size_of(drawing: bytes) -> tuple[int, int]:
    return Image.open(io.BytesIO(drawing)).size


def test_an_mp3_with_a_wrong_header_is_drawn_from_its_samples(make_pool):
    drawing = make_pool().draw(made_media.lying_mp3(), "audio", "spectrogram.png", "lying")
    assert size_of(drawing) == (900, 320)


def test_a_file_that_takes_too_long_ends_its_child_and_the_next_one_is_drawn(make_pool):
    pool = make_pool(decode_seconds=1.0)
    pool.draw(made_media.picture(), "image", "thumb.png", "warm")
    before = time.monotonic()
    with pytest.raises(PreviewFailed, match="limit of 1 s"):
        pool.draw(made_media.long_picture(), "image", "picture.png", "long")
    assert time.monotonic() - before < 15
    assert size_of(pool.draw(made_media.picture(), "image", "picture.png", "small")) == (12, 8)


def test_a_file_that_ended_its_child_is_refused_at_once_the_second_time(make_pool):
    pool, slow = make_pool(decode_seconds=1.0), made_media.long_picture()
    for _ in range(2):
        before = time.monotonic()
        with pytest.raises(PreviewFailed):
            pool.draw(slow, "image", "picture.png", "long")
    assert time.monotonic() - before < 0.2


def test_the_reason_of_a_refusal_reaches_the_caller_and_the_child_continues(make_pool):
    pool = make_pool(max_pixels=50)
    with pytest.raises(PreviewFailed, match="max_pixels"):
        pool.draw(made_media.picture(), "image", "picture.png", "large")
    assert size_of(pool.draw(made_media.picture(size=(5, 5)), "image", "picture.png", "small")) == (5, 5)


def test_a_drawing_above_the_memory_limit_is_refused(make_pool):
    pool = make_pool(decode_bytes=600 << 20)
    huge = made_media.picture("BMP", size=(7_000, 7_000))
    with pytest.raises(PreviewFailed, match="decode_bytes"):
        pool.draw(huge, "image", "picture.png", "huge")


def test_a_reply_above_the_size_limit_is_refused(make_pool, monkeypatch):
    monkeypatch.setattr(preview_pool, "MAX_REPLY_BYTES", 10)
    with pytest.raises(PreviewFailed):
        make_pool().draw(made_media.picture(), "image", "picture.png", "any")


def test_closing_the_pool_ends_a_drawing_under_way_at_once(make_pool):
    pool = make_pool()
    pool.draw(made_media.picture(), "image", "thumb.png", "warm")
    found: list[Exception] = []

    def draw() -> None:
        try:
            pool.draw(made_media.long_picture(), "image", "picture.png", "long")
        except Exception as problem:
            found.append(problem)

    thread = threading.Thread(target=draw)
    thread.start()
    time.sleep(1.0)
    before = time.monotonic()
    pool.close()
    thread.join(10)
    assert time.monotonic() - before < 5 and isinstance(found[0], PreviewBusy)
    with pytest.raises(PreviewBusy):
        pool.draw(made_media.picture(), "image", "thumb.png", "later")
