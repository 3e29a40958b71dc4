"""What the model sees, a card on Data: the network's input for six items, what is lost, and the media settings."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.rounds import media_settings
from app.rounds.media_settings import ProjectMedia
from app.views.item_names import ItemNames
from app.views.text import markup, plain
from app.web import resources, theme
from app.web.routes.media import model_path, picture_notes, picture_path
from core.config import MediaConfig
from core.errors import WinnowError
from core.types import PoolMeasures
from storage.labeling.item_rows import ItemRow
from storage.labeling.pool import Pool
from storage.media.measures import pool_measures, typical_and_extreme_items
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectRow, get_project

N_ITEMS = 6
ORIGINS = {
    "stored": "stored with the project",
    "pool": "derived from the pool; stored by the first round",
    "preset": "as in the rounds so far",
}
LEGEND = {
    "audio": "Left: the spectrogram of the whole clip. Right: what the network receives.",
    "image": "Left: the picture. Right: what the network receives.",
}
PARTS = {"loudest": "The loudest part", "center": "The middle", "start": "The start"}
FITS = {
    "stretch": "Stretch to the size",
    "crop": "Crop the edges",
    "fit": "Keep the whole picture, with borders",
}


def section(project: ProjectRow) -> None:
    """The card on Data."""
    media = media_settings.of_project(resources.store(), project)
    measures, item_ids = _pool(project.id, project.revision)
    theme.heading("What the model sees", f"{_shape(project, media.config)}, {ORIGINS[media.origin]}")
    if not item_ids:
        theme.muted("Import items to see them as the model does.")
        return
    theme.muted(LEGEND[project.kind])
    _items(project, media.config, item_ids)
    theme.muted(media_settings.what_is_lost(project.kind, media.config, measures))
    with st.expander("Change"):
        _form(project, media)


def _shape(project: ProjectRow, config: MediaConfig) -> str:
    height, width, channels = config.input_shape(project.kind)
    if project.kind == "audio":
        return f"{width} frames of {height} mel bins"
    return f"{width} x {height} pixels" + (" in color" if channels == 3 else " in gray")


@st.cache_data(show_spinner=False, max_entries=8)
def _pool(project_id: int, revision: int) -> tuple[PoolMeasures, list[int]]:
    """The measures and the displayed items of a pool, cached for each revision of the project."""
    store = resources.store()
    return pool_measures(store, project_id), typical_and_extreme_items(store, project_id, N_ITEMS)


def _items(project: ProjectRow, config: MediaConfig, item_ids: list[int]) -> None:
    """Draw pairs of pictures: the original and the network's input."""
    store = resources.store()
    found = Pool(store, project.id).items_by_id(item_ids)
    names = ItemNames(row.name for row in list_classes(store, project.id, include_inactive=True))
    whole = "Spectrogram" if project.kind == "audio" else "Original"
    parts = []
    for item in found:
        about = f"{item.seconds:.1f} s" if item.seconds else f"{item.width:,} x {item.height:,} pixels"
        name = markup(names.shown_name(item.id, item.name.rsplit("/", 1)[-1]))
        parts.append(
            f'<figure><img src="{picture_path(item)}" alt="{whole} of {name}">'
            f'<img class="winnow-pixels" src="{model_path(item, config)}" alt="Network input of {name}">'
            f"<figcaption>{name} · {markup(about)}{_notes(item)}</figcaption></figure>"
        )
    st.html(f'<div class="winnow-inputs">{"".join(parts)}</div>')


def _notes(item: ItemRow) -> str:
    sentences = picture_notes(item) if item.width else []
    return f"<br>{markup(' '.join(sentences))}" if sentences else ""


def _form(project: ProjectRow, media: ProjectMedia) -> None:
    with st.form(f"media-{project.id}", border=False):
        values = _audio_fields(media.config) if project.kind == "audio" else _picture_fields(media.config)
        buttons = st.columns(2)
        saved = buttons[0].form_submit_button("Save", width="stretch")
        again = buttons[1].form_submit_button("Derive from the pool", width="stretch")
    if media.origin != "pool":
        theme.muted("Changes apply to the next round. Its inputs are prepared again.")
    if not (saved or again):
        return
    store = resources.store()
    now = get_project(store, project.id)
    try:
        if again:
            media_settings.reset(store, now)
        else:
            changed = {name: value for name, value in values.items() if value != getattr(media.config, name)}
            media_settings.change(store, now, changed)
    except WinnowError as error:
        st.error(plain(error))
        return
    st.toast("Saved.")
    st.rerun()


def _audio_fields(config: MediaConfig) -> dict[str, Any]:
    left, right = st.columns(2)
    with left:
        seconds = st.number_input(
            "Clip length in seconds", 0.05, 60.0, config.seconds, 0.5, help="Shorter clips are padded with silence."
        )
        n_mels = st.number_input(
            "Mel bins", 4, 256, config.n_mels, help="Rows of the spectrogram that the network receives."
        )
        f_min = st.number_input(
            "Lowest frequency in Hz", 0.0, 96_000.0, config.f_min, 10.0, help="Lower frequencies are left out."
        )
        help_text = "0: the mean of all channels. 1: the first, and so on; files with fewer channels use the mean."
        channel = st.number_input("Channel", 0, 64, config.audio_channel, help=help_text)
    with right:
        part = st.selectbox(
            "Part of longer clips",
            list(PARTS),
            index=list(PARTS).index(config.clip_from),
            format_func=PARTS.__getitem__,
            help="Which part of a longer clip the model learns from.",
        )
        windows = st.number_input(
            "Windows for predictions", 1, 64, config.predict_windows, help="Longer clips are scored on several windows."
        )
        rate_help = "Clips are resampled to this rate. Frequencies above half of it are lost."
        rate = st.number_input("Sample rate in Hz", 1_000, 192_000, config.sample_rate, 1_000, help=rate_help)
        help_text = "Higher frequencies are left out. 0: half of the sample rate."
        f_max = st.number_input("Highest frequency in Hz", 0.0, 96_000.0, config.f_max, 500.0, help=help_text)
    return {
        "seconds": float(seconds), "n_mels": int(n_mels), "f_min": float(f_min), "clip_from": part,
        "predict_windows": int(windows), "sample_rate": int(rate), "f_max": float(f_max), "audio_channel": int(channel),
    }  # fmt: skip


def _picture_fields(config: MediaConfig) -> dict[str, Any]:
    left, right = st.columns(2)
    height, width = config.picture_size
    with left:
        new_width = st.number_input(
            "Width in pixels", 8, 512, width, 4, help="Width of the picture that the network receives."
        )
        fit = st.selectbox(
            "Other aspect ratios",
            list(FITS),
            index=list(FITS).index(config.image_fit),
            format_func=FITS.__getitem__,
            help="How pictures with another aspect ratio are fitted to this size.",
        )
    with right:
        new_height = st.number_input(
            "Height in pixels", 8, 512, height, 4, help="Height of the picture that the network receives."
        )
        color = st.checkbox("Color", config.channels == 3, help="Without color, pictures become grayscale.")
        mirror = st.checkbox(
            "Mirror in training", config.flip, help="Only if mirrored pictures keep their class; not for letters."
        )
        patches = st.number_input(
            "Kinds of patches", 0, 2_000, config.patches, 100,
            help="Small parts that many photographs share. A round trains further on what they tell about the pool. "
            "0: none; not for letters.",
        )  # fmt: skip
    return {
        "image_size": int(new_height),
        "image_width": int(new_width) if int(new_width) != int(new_height) else 0,
        "image_fit": fit, "channels": 3 if color else 1, "flip": bool(mirror),
        "patches": int(patches),
    }  # fmt: skip
