"""Measures whether augmented views of labeled items, encoded like the items, improve the head, on pool items alone.

    python -m experiments.encoders.views --data DATA --encoders FOLDER [--items 600] [--seeds 5] [--views 4]

Pictures (flowers, EfficientNet-lite0) are cropped to 60 to 100 % of their area and mirrored; clips (Speech Commands,
Moonshine-tiny) are shifted, scaled and mixed with noise. Views are added to the labeled rows of the fit with the label
of their item, so that every item has the same weight. The head is fitted on 70 % of the items and measured on the rest
of the pool, with and without views, on the same labels. No test item is read.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.config import HeadConfig
from core.encoders.description import AudioInput, PictureInput
from core.encoders.folders import Encoder, open_encoder
from core.encoders.recipes import make_built_in
from core.encoders.runner import EncoderRunner
from core.encoders.windows import audio_windows, picture_windows
from core.learning.head import fit_head
from core.media.audio import decode_audio
from core.media.images import decode_image
from core.types import UNLABELED
from experiments.encoders.speech_embedding import COUNTS, POOL_SHARE, read_pool

AT_ONCE = 16


def views_of(data: bytes, encoder: Encoder, n_views: int, draw: np.random.Generator) -> list[Any]:
    """Windows of the item, or of `n_views` augmented copies of it."""
    source = encoder.description.input
    if isinstance(source, PictureInput):
        image = decode_image(data)
        if not n_views:
            return [picture_windows(image, source)]
        found = []
        for _ in range(n_views):
            side = float(np.sqrt(draw.uniform(0.6, 1.0)))
            width, height = round(side * image.width), round(side * image.height)
            left, top = draw.integers(0, image.width - width + 1), draw.integers(0, image.height - height + 1)
            part = image.crop((left, top, left + width, top + height))
            found.append(picture_windows(part.transpose(0) if draw.random() < 0.5 else part, source))
        return found
    assert isinstance(source, AudioInput)
    samples, rate = decode_audio(data)
    if not n_views:
        return [audio_windows(samples, rate, source)]
    return [audio_windows(_changed(samples, rate, draw), rate, source) for _ in range(n_views)]


def _changed(samples: NDArray[np.float32], rate: int, draw: np.random.Generator) -> NDArray[np.float32]:
    moved = np.roll(samples, int(draw.integers(-rate // 10, rate // 10 + 1))) * draw.uniform(0.8, 1.2)
    level = np.sqrt(np.mean(samples**2)) * 10 ** (-draw.uniform(10, 40) / 20)
    return np.asarray(moved + level * draw.normal(size=len(samples)), np.float32)


def encoded(runner: EncoderRunner, items: list[Any]) -> NDArray[np.float32]:
    rows = [row for start in range(0, len(items), AT_ONCE) for row in runner.encode(items[start : start + AT_ONCE])]
    return np.stack([np.asarray(row, np.float32) for row in rows])


def gains(
    paths: list[Path], classes: NDArray[np.int64], encoder: Encoder, seeds: int, n_views: int
) -> NDArray[np.float64]:
    """(seeds, counts, 2) accuracies without and with views."""
    n_classes, found = int(classes.max()) + 1, np.zeros((seeds, len(COUNTS), 2))
    with EncoderRunner(encoder) as runner:
        quiet = np.random.default_rng(0)
        features = encoded(runner, [views_of(path.read_bytes(), encoder, 0, quiet)[0] for path in paths])
        for seed in range(seeds):
            draw = np.random.default_rng((seed, 7))
            order = draw.permutation(len(classes))
            pool, rest = np.split(order, [int(POOL_SHARE * len(order))])
            _, first = np.unique(classes[pool], return_index=True)
            others = draw.permutation(np.setdiff1d(np.arange(len(pool)), first))
            ranked = np.concatenate([first, others])[: max(COUNTS)]
            made = [views_of(paths[pool[row]].read_bytes(), encoder, n_views, draw) for row in ranked]
            views = encoded(runner, [view for one in made for view in one])
            for place, count in enumerate(COUNTS):
                labels = np.full(len(pool), UNLABELED)
                labels[ranked[:count]] = classes[pool[ranked[:count]]]
                more = np.repeat(classes[pool[ranked[:count]]], n_views)
                joined = np.concatenate([features[pool], views[: count * n_views]])
                for column, (x, y) in enumerate([(features[pool], labels), (joined, np.concatenate([labels, more]))]):
                    head = fit_head(x, y, n_classes, HeadConfig())
                    right = head.probabilities(features[rest]).argmax(1) == classes[rest]
                    found[seed, place, column] = right.mean()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoders", type=Path, required=True)
    parser.add_argument("--items", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--views", type=int, default=4)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        ways = {
            "flowers": make_built_in(Path(home), "efficientnet-lite0"),
            "speech_commands": open_encoder(asked.encoders / "moonshine-tiny"),
        }
        for name, encoder in ways.items():
            paths, classes = read_pool(asked.data / name, asked.items)
            found = 100 * gains(paths, classes, encoder, asked.seeds, asked.views)
            gain = found[..., 1] - found[..., 0]
            error = gain.std(0, ddof=1) / asked.seeds**0.5
            rows = {
                str(count): {
                    "without": round(float(found[:, place, 0].mean()), 1),
                    "with": round(float(found[:, place, 1].mean()), 1),
                    "gain": f"{gain[:, place].mean():+.1f} ± {error[place]:.1f}",
                }
                for place, count in enumerate(COUNTS)
            }
            print(json.dumps({"set": name, "encoder": encoder.name, "labels": rows}, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
