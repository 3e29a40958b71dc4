"""The inputs of a pool are computed once per item, and a damaged item does not stop the others."""

from __future__ import annotations

import numpy as np
import pytest

from core.config import MediaConfig
from core.errors import Cancelled, InvalidInput, NotFound
from core.media.inputs import media_key, prepare
from core.media.views import item_draws, view_bank, views
from core.rows import MemoryRowCache
from tests.core.media.samples import MemoryReader, png, tone, wav


@pytest.fixture
def clips() -> MemoryReader:
    return MemoryReader(*(wav(tone(200 * k)) for k in range(1, 6)))


def test_items_are_read_once_and_come_out_normalized(clips):
    cache = MemoryRowCache()
    inputs = prepare(clips.hashes, clips, "audio", MediaConfig(), cache)
    assert inputs.shape == (32, 32, 1) and inputs.clean.dtype == np.float32 and inputs.readable.all()
    assert clips.reads == 5
    again = prepare(clips.hashes[::-1], clips, "audio", MediaConfig(), cache)
    assert clips.reads == 5
    np.testing.assert_array_equal(again.clean.take(np.array([4])), inputs.clean.take(np.array([0])))


def test_other_settings_are_other_inputs():
    plain = MediaConfig()
    assert media_key(plain, "audio") != media_key(MediaConfig(n_mels=40), "audio")
    assert media_key(plain, "audio") == media_key(MediaConfig(image_size=64, flip=True), "audio")
    assert media_key(plain, "image") != media_key(MediaConfig(channels=1), "image")
    assert media_key(plain, "image") == media_key(MediaConfig(n_mels=40, flip=True), "image")


def test_an_unreadable_item_is_named_and_the_others_are_prepared(clips):
    reader = MemoryReader(*clips.files.values(), b"RIFF....WAVEbroken")
    cache = MemoryRowCache()
    for _ in range(2):  # remembered as unreadable, too
        inputs = prepare(reader.hashes, reader, "audio", MediaConfig(), cache)
        assert inputs.readable.tolist() == [True] * 5 + [False]
        assert "1 of 6 items cannot be read" in inputs.notes[0] and reader.hashes[-1][:12] in inputs.notes[0]
        assert (inputs.clean.take(np.array([5])) == -1.5).all()


def test_a_missing_file_is_read_again(clips):
    hashes, lost = clips.hashes, clips.hashes[2]

    def read(name: str) -> bytes:
        if name == lost:
            raise NotFound("gone")
        return clips(name)

    cache = MemoryRowCache()
    inputs = prepare(hashes, read, "audio", MediaConfig(), cache)
    assert inputs.readable.tolist() == [True, True, False, True, True]
    assert prepare(hashes, clips, "audio", MediaConfig(), cache).readable.all()


def test_an_empty_pool_says_what_to_do():
    with pytest.raises(InvalidInput, match="import"):
        prepare([], lambda name: b"", "audio", MediaConfig(), MemoryRowCache())


def test_preparing_can_be_cancelled(clips):
    def cancel(progress):
        raise Cancelled("stop")

    with pytest.raises(Cancelled):
        prepare(clips.hashes, clips, "audio", MediaConfig(), MemoryRowCache(), cancel)


def test_pictures_are_normalized_with_the_pools_statistics():
    rng = np.random.default_rng(0)
    reader = MemoryReader(*(png(rng.normal((60, 120, 200), 20, (32, 32, 3)).clip(0, 255)) for _ in range(20)))
    inputs = prepare(reader.hashes, reader, "image", MediaConfig(), MemoryRowCache())
    values = inputs.clean.take(np.arange(20))
    np.testing.assert_allclose(inputs.mean, np.array([60, 120, 200]) / 255, atol=0.01)
    np.testing.assert_allclose(values.mean((0, 1, 2)), 0, atol=0.1)
    np.testing.assert_allclose(values.std((0, 1, 2)), 1, atol=0.1)


@pytest.mark.parametrize("kind", ["audio", "image"])
def test_a_view_depends_on_the_item_the_number_and_the_seed_alone(kind, clips):
    rng = np.random.default_rng(0)
    reader = clips if kind == "audio" else MemoryReader(*(png(rng.integers(0, 255, (32, 32, 3))) for _ in range(5)))
    inputs = prepare(reader.hashes, reader, kind, MediaConfig(), MemoryRowCache())
    all_views = views(inputs, np.arange(5), 4)
    assert all_views.shape == (5, 4, *inputs.shape) and all_views.dtype == np.float32
    alone = prepare(reader.hashes[3:4], reader, kind, MediaConfig(), MemoryRowCache())
    scale = inputs.scale / alone.scale
    shifted = (inputs.mean - alone.mean) / alone.scale  # another pool, other statistics
    np.testing.assert_allclose(views(alone, np.array([0]), 2)[0], all_views[3, :2] * scale + shifted, atol=2e-3)
    assert not np.allclose(all_views[0, 0], all_views[0, 1])
    assert not np.array_equal(views(inputs, np.arange(5), 4, seed=1), all_views)


def test_more_views_begin_with_the_same_ones_and_the_bank_is_made_once(clips):
    few, many = (item_draws("a" * 64, n, 10, seed=0) for n in (3, 8))
    np.testing.assert_array_equal(few, many[:3])
    assert many.min() >= 0 and many.max() < 1
    inputs = prepare(clips.hashes, clips, "audio", MediaConfig(), MemoryRowCache())
    bank = view_bank(inputs, 3)
    assert bank.shape == (5, 3, 32, 32, 1) and bank.dtype == np.float16
    part = view_bank(inputs, 3, rows=np.array([4, 1]))
    np.testing.assert_array_equal(part.take(np.arange(2)), bank.take(np.array([4, 1])))


def test_held_out_pictures_do_not_enter_the_normalization():
    """The pool's inputs do not depend on the held-out pictures."""
    generator = np.random.default_rng(0)
    pool = [png(generator.integers(60, 120, (32, 32, 3)).astype(np.uint8)) for _ in range(4)]
    white, black = (png(np.full((32, 32, 3), level, np.uint8)) for level in (255, 0))
    held_out = np.array([False] * 4 + [True])
    found = []
    for other in (white, black):
        reader = MemoryReader(*pool, other)
        inputs = prepare(reader.hashes, reader, "image", MediaConfig(), MemoryRowCache(), held_out=held_out)
        found.append(inputs)
    np.testing.assert_array_equal(found[0].mean, found[1].mean)
    np.testing.assert_array_equal(found[0].clean.take(np.arange(4)), found[1].clean.take(np.arange(4)))
    assert found[0].key == found[1].key
