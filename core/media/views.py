"""Augmented views of items that do not depend on the rest of the pool.

View v of an item depends on its name (content hash), v and the seed alone: the draws come from a Philox generator keyed
by these, so views can be computed in any order and in any block, and more views begin with the same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.config import AugmentationConfig, to_json
from core.media.augment_audio import WAVEFORM_DRAWS, view_pictures
from core.media.augment_images import WEAK_DRAWS, shift_and_flip
from core.media.inputs import Inputs, media_key
from core.media.noise import noise_clips, noise_key
from core.rows import BlockProgress
from core.types import Progress, Report, Rows, ignore

VERSION = 1
CLIPS_AT_ONCE = {"cpu": 32, "cuda": 2_048}  # a CPU's cache fits a few; a GPU is efficient with many


def item_draws(name: str, n_views: int, n_draws: int, seed: int) -> NDArray[np.float32]:
    """(n_views, n_draws) uniform numbers in [0, 1); the first rows are the same for any larger n_views."""
    digest = hashlib.sha256(f"{seed}:views:{name}".encode()).digest()
    rng = np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], np.uint64)))
    return rng.random((n_views, n_draws), dtype=np.float32)


def augmentation_key(config: AugmentationConfig) -> str:
    """Names the settings of the waveform's augmentation; empty for the defaults, so that older rows stay valid. The
    warp is applied to views later and is not part of it."""
    plain = AugmentationConfig()
    views_only = replace(config, light_warp=plain.light_warp, strong_warp=plain.strong_warp)
    return "" if views_only == plain else f"-{hashlib.sha256(to_json(views_only).encode()).hexdigest()[:16]}"


def views_key(inputs: Inputs) -> str:
    """Names what views depend on besides the item, its clean input and the seed; empty for the defaults."""
    if inputs.kind == "image":
        return ":flip" if inputs.config.flip else ""
    noise = f":{noise_key(inputs.config)}" if inputs.config.noise_folder else ""
    return noise + augmentation_key(inputs.augmentation)


def noise_on(device: torch.device, inputs: Inputs) -> Tensor:
    return torch.from_numpy(noise_clips(inputs.config)).to(device)


def views(
    inputs: Inputs,
    rows: NDArray[np.int64],
    n_views: int,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    report: Report = ignore,
) -> NDArray[np.float32]:
    """(len(rows), n_views, H, W, C) float32, normalized as `inputs.clean`: weak augmentation of the items at `rows`."""
    names = [inputs.names[row] for row in rows]
    if inputs.kind == "audio":
        return view_bank(inputs, n_views, seed=seed, device=device, rows=rows, report=report).take(
            np.arange(len(rows))
        ).astype(np.float32)  # fmt: skip
    made = np.empty((len(rows), n_views, *inputs.shape), np.float32)
    for position, (name, row) in enumerate(zip(names, rows, strict=True)):
        picture = torch.from_numpy(inputs.clean.take(np.array([row]))).permute(0, 3, 1, 2).to(device)
        draws = torch.from_numpy(item_draws(name, n_views, WEAK_DRAWS, seed)).to(device)
        shifted = shift_and_flip(picture.expand(n_views, -1, -1, -1), draws, inputs.config.flip)
        made[position] = shifted.permute(0, 2, 3, 1).cpu().numpy()
        if position % 64 == 0:
            report(Progress("views", position, len(rows)))
    return made


def view_bank(
    inputs: Inputs,
    n_views: int,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    rows: NDArray[np.int64] | None = None,
    report: Report = ignore,
) -> Rows:
    """(len(rows), n_views, H, W, 1) float16 views of clips, cached per item; all rows when `rows` is None."""
    chosen = np.arange(len(inputs)) if rows is None else np.asarray(rows, np.int64)
    names = [inputs.names[row] for row in chosen]
    noise = noise_on(torch.device(device), inputs)
    progress = BlockProgress("views", len(names), report)

    def compute(positions: Sequence[int]) -> NDArray[np.float16]:
        made = []
        per_pass = max(1, CLIPS_AT_ONCE.get(noise.device.type, 32) // n_views)
        for start in range(0, len(positions), per_pass):
            part = np.asarray(positions[start : start + per_pass])
            clips = torch.from_numpy(inputs.sources.take(chosen[part]).astype(np.float32)).to(device)
            draws = np.concatenate([item_draws(names[p], n_views, WAVEFORM_DRAWS, seed) for p in part])
            repeated, drawn = clips.repeat_interleave(n_views, 0), torch.from_numpy(draws).to(device)
            made_here = view_pictures(repeated, drawn, noise, inputs.config, inputs.augmentation)
            pictures = made_here[..., None].half().cpu().numpy()
            made.append(pictures.reshape(len(part), n_views, *pictures.shape[1:]))
            if start % 32 == 0:
                progress.within_block(start, "augmenting a block")
        return np.concatenate(made)

    settings = f"{noise_key(inputs.config)}{augmentation_key(inputs.augmentation)}"
    key = f"views-{VERSION}-{media_key(inputs.config, 'audio')}-{settings}-{n_views}-{seed}"
    return inputs.cache.rows(key, names, compute, progress.follow)
