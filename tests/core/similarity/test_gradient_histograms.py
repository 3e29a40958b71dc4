"""Gradient histograms against a loop over pixels, and the changes to which they are invariant."""

from __future__ import annotations

import numpy as np
import pytest

from core.similarity.gradient_histograms import BINS, BLOCK, CELLS, cell_weights, gradient_histograms


def by_hand(picture: np.ndarray) -> np.ndarray:
    """The docstring's formula for one picture (H, W, C), pixel by pixel."""
    gray = picture.mean(2)
    height, width = gray.shape
    h = np.zeros((CELLS, CELLS, BINS))
    for y in range(height):
        for x in range(width):
            g_y = gray[y + 1, x] - gray[y - 1, x] if 0 < y < height - 1 else 0.0
            g_x = gray[y, x + 1] - gray[y, x - 1] if 0 < x < width - 1 else 0.0
            angle = np.arctan2(g_y, g_x) % np.pi / np.pi * BINS
            for b in range(BINS):
                t = max(0.0, 1 - min(abs(angle - b), BINS - abs(angle - b)))
                for k in range(CELLS):
                    for m in range(CELLS):
                        a_y = max(0.0, 1 - abs((y + 0.5) / height * CELLS - (k + 0.5)))
                        a_x = max(0.0, 1 - abs((x + 0.5) / width * CELLS - (m + 0.5)))
                        h[k, m, b] += a_y * a_x * np.hypot(g_y, g_x) * t
    flat = h.reshape(-1)
    return np.sqrt(flat / np.linalg.norm(flat))


@pytest.mark.parametrize("shape", [(16, 16, 1), (9, 20, 3)])
def test_histograms_are_those_of_the_formula(shape):
    pictures = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    found = gradient_histograms(pictures)
    assert found.shape == (2, CELLS * CELLS * BINS) and found.dtype == np.float32
    np.testing.assert_allclose(found, [by_hand(picture) for picture in pictures], atol=2e-4)


def test_the_cells_of_a_side_share_every_pixel_between_their_centers():
    weights = cell_weights(32)
    np.testing.assert_allclose(weights[:, 2:-2].sum(0), 1.0, atol=1e-6)
    assert (np.diff(weights.argmax(1)) == 4).all()


def test_brightness_contrast_and_inverted_colors_change_nothing_and_a_flat_picture_has_no_shape():
    picture = np.random.default_rng(1).normal(size=(1, 16, 16, 1)).astype(np.float32)
    expected = gradient_histograms(picture)
    for other in (picture + 3, 5 * picture, -picture):
        np.testing.assert_allclose(gradient_histograms(other), expected, atol=2e-3)
    assert not gradient_histograms(np.ones((1, 16, 16, 3), np.float32)).any()


def test_a_shifted_stroke_stays_more_similar_than_a_turned_one():
    def stroke(turned: bool, at: int) -> np.ndarray:
        picture = np.zeros((32, 32), np.float32)
        picture[4:28, at : at + 3] = 1
        return (picture.T if turned else picture)[None, :, :, None]

    upright, shifted, turned = (gradient_histograms(stroke(*one))[0] for one in ((False, 14), (False, 16), (True, 14)))
    assert upright @ shifted > 0.85 > 0.6 > upright @ turned


def test_blocks_do_not_change_the_result():
    pictures = np.random.default_rng(2).normal(size=(BLOCK + 3, 8, 8, 1)).astype(np.float32)
    found = gradient_histograms(pictures)
    np.testing.assert_allclose(found[-2:], gradient_histograms(pictures[-2:]), atol=1e-6)
