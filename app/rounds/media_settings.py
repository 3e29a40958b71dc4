"""A project's media settings: which part of a clip or picture the model receives.

Until the first round is requested, they are derived from the pool (`core.media.derivation`). That request stores them,
so that later imports do not change the model's input. A project with rounds from before these settings existed keeps
the preset's 1 s or 32 x 32 pixels until someone changes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from core.config import MediaConfig, from_dict, require
from core.media.derivation import derive_media, with_length
from core.types import MediaKind, PoolMeasures
from storage.database.store import Store
from storage.media.measures import pool_measures
from storage.projects import projects
from storage.projects.projects import ProjectRow
from storage.rounds.log import RoundLog

Origin = Literal["stored", "pool", "preset"]
NOTICEABLE = 1.1  # factor: one side of a picture scaled more than the other, or frequencies above the mel band
SHOWN: dict[MediaKind, tuple[str, ...]] = {
    "audio": (
        "seconds",
        "clip_from",
        "audio_channel",
        "predict_windows",
        "sample_rate",
        "n_mels",
        "f_min",
        "f_max",
        "hop",
        "n_fft",
    ),
    "image": ("image_size", "image_width", "image_fit", "channels", "flip", "patches"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectMedia:
    """The current media settings and their origin: stored with the project, derived from the pool now, or those of the
    preset because earlier rounds used them."""

    config: MediaConfig
    origin: Origin


def of_project(store: Store, project: ProjectRow) -> ProjectMedia:
    """The current media settings of a project and their origin."""
    channels: Literal[1, 3] = 3 if project.kind == "image" else 1
    if project.settings.media:
        stored = from_dict(MediaConfig, {"channels": channels} | project.settings.media)
        return ProjectMedia(config=stored, origin="stored")
    if RoundLog(store, project.id).latest() is not None:
        return ProjectMedia(config=MediaConfig(channels=channels), origin="preset")
    return ProjectMedia(config=derive_media(project.kind, pool_measures(store, project.id)), origin="pool")


def fix(store: Store, project_id: int) -> ProjectRow:
    """Store the derived settings if the project has neither settings nor rounds. Returns the project."""
    project = projects.get_project(store, project_id)
    if project.settings.media:
        return project
    found = of_project(store, project)
    if found.origin != "pool":
        return project
    return projects.change_settings(store, project_id, {"media": dataclasses.asdict(found.config)})


def change(store: Store, project: ProjectRow, values: Mapping[str, Any]) -> ProjectRow:
    """Replace some of the current media settings. Hop and window are computed from the clip length, rate and number of
    mel bins unless `values` contains them. Refuses frequencies that the sample rate does not have."""
    before = of_project(store, project).config
    config = from_dict(MediaConfig, dataclasses.asdict(before) | dict(values))
    if "f_max" in values:
        require(
            config.f_max <= config.sample_rate / 2,
            f"Frequencies up to {config.f_max:,.0f} Hz need a sample rate of {2 * config.f_max:,.0f} Hz or more "
            f"(media.sample_rate); it is {config.sample_rate:,} Hz.",
        )
    if {"seconds", "sample_rate", "n_mels"} & set(values) and not {"hop", "n_fft"} & set(values):
        config = with_length(config, config.seconds)
    return projects.change_settings(store, project.id, {"media": dataclasses.asdict(config)})


def reset(store: Store, project: ProjectRow) -> ProjectRow:
    """Store the settings that are derived from the current pool."""
    derived = derive_media(project.kind, pool_measures(store, project.id))
    return projects.change_settings(store, project.id, {"media": dataclasses.asdict(derived)})


def what_is_lost(kind: MediaKind, config: MediaConfig, measures: PoolMeasures) -> str:
    """A short description of the part of the pool's content that does not reach the model."""
    return _lost_of_pictures(config, measures) if kind == "image" else _lost_of_clips(config, measures)


def _lost_of_clips(config: MediaConfig, measures: PoolMeasures) -> str:
    n, length = len(measures.seconds), f"{config.seconds:g} s"
    if n == 0:
        return "No clip has been measured yet."
    n_long = int((measures.seconds > config.seconds + 1e-3).sum())
    if n_long == 0:
        return f"Nothing is cut: all {n:,} clips are at most {length} long.{_lost_frequencies(config, measures)}"
    part = {"loudest": f"loudest {length}", "center": f"middle {length}", "start": f"first {length}"}[config.clip_from]
    many = f"{n_long:,} of {n:,} clips are" if n_long != 1 else f"1 of {n:,} clips is"
    windows = f" Predictions use up to {config.predict_windows} windows of each." if config.predict_windows > 1 else ""
    return f"{many} longer than {length}: the model learns from their {part}.{windows}" + _lost_frequencies(
        config, measures
    )


def _lost_frequencies(config: MediaConfig, measures: PoolMeasures) -> str:
    n = int((measures.sample_rates > NOTICEABLE * 2 * config.f_top).sum())
    clips = "1 clip has" if n == 1 else f"{n:,} clips have"
    return f" Frequencies above {config.f_top:,.0f} Hz are left out; {clips} a sample rate for them." if n else ""


def _lost_of_pictures(config: MediaConfig, measures: PoolMeasures) -> str:
    n = len(measures.widths)
    if n == 0:
        return "No picture has been measured yet."
    height, width = config.picture_size
    n_larger = int((measures.widths * measures.heights > width * height).sum())
    aspects = np.log(measures.widths / measures.heights / (width / height))
    n_apart = int((np.abs(aspects) > np.log(NOTICEABLE)).sum())
    how = {
        "stretch": f"{n_apart:,} are stretched by more than 10 %",
        "crop": f"{n_apart:,} lose more than 10 % at their edges",
        "fit": f"{n_apart:,} get borders of more than 10 %",
    }[config.image_fit]
    gray = "" if config.channels == 3 else " Color is removed."
    return f"{n_larger:,} of {n:,} pictures are reduced to {width} x {height} pixels; {how}.{gray}"
