"""A project's learning settings: the values of the preset, the project's changes, and a description of each setting.

Settings are named as in `core.config` ("training.method"). Four of them are fields of the project (`FIELDS`). Media
settings are stored as a whole (`app.rounds.media_settings`). All others are stored as changes to the preset.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.rounds import media_settings
from app.rounds.requests import PLAIN, next_config, round_config
from app.rounds.timing import estimates
from app.simulation.settings import apply_changes, parse_changes
from core.config import RoundConfig, require
from core.encoders.built_in import BUILT_IN
from core.encoders.folders import Encoder, installed
from core.kernel_names import KERNEL_NETWORKS
from storage.database.store import Store
from storage.projects import projects
from storage.projects.projects import ProjectRow

FIELDS = {"selection.strategy": "strategy", "selection.batch_size": "batch_size", "kernel.network": "kernel_network"}


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that users can change, with its choices if there are only a few."""

    name: str
    title: str
    about: str
    choices: tuple[str, ...] = ()
    most: int = 0  # upper limit of a number; 0 for a setting with choices


ENCODER = "encoder.name"
SETTINGS: tuple[Setting, ...] = (
    Setting(
        ENCODER,
        "Encoder",
        "The pretrained network for the presets Encoder and Automatic. auto uses the best one in the last comparison, "
        "otherwise the built-in one or the first one added. none works only with Automatic.",
        ("auto", "none"),
    ),
    Setting(
        "training.method",
        "Method",
        "FixMatch also learns from confident predictions, MixMatch from mixed items, supervised only from labels.",
        ("fixmatch", "mixmatch", "supervised"),
    ),
    Setting(
        "training.network",
        "Network",
        "The small ResNet takes tens of milliseconds per step on two cores. Wide ResNets are larger and need a GPU.",
        ("resnet-small", "wrn-10-1", "wrn-16-2", "wrn-28-2", "wrn-28-10"),
    ),
    Setting("training.steps", "Steps", "Training steps per round. 0: determined by Epochs.", most=1_000_000),
    Setting(
        "training.refine_steps",
        "Refinement steps",
        "Additional steps on labels that were propagated to very similar clips, or on patches of photographs. 0: none.",
        most=1_000_000,
    ),
    Setting("training.epochs", "Epochs", "Passes over the unlabeled items, used if Steps is 0.", most=10_000),
    Setting(
        "training.align",
        "Class prior",
        "The assumed class frequencies: estimated (auto), equal (uniform), or not used (off).",
        ("auto", "uniform", "off"),
    ),
    Setting(
        "selection.proxy",
        "Proxy",
        "How items are compared when a batch is picked: by kernel, last layer of the model (embedding, head), or "
        "similarity of clips. similarity-head: clips by similarity, pictures by head.",
        ("kernel", "embedding", "similarity", "head", "similarity-head"),
    ),
    Setting(
        "kernel.network",
        "Kernel",
        "How the kernel compares two items; used if Proxy is kernel, and before the first model.",
        tuple(KERNEL_NETWORKS),
    ),
    Setting(
        "kernel.n_landmarks",
        "Landmarks",
        "Items that all others are compared with. More landmarks are more accurate but slower.",
        most=100_000,
    ),
    Setting(
        "selection.n_views",
        "Views",
        "Slightly altered copies of each labeled or picked item that the selection also uses.",
        most=1_000,
    ),
    Setting(
        "labels.weigh",
        "Weigh labels by trust",
        "Labels that cross-validated predictions contradict get less weight until someone confirms them.",
    ),
    Setting(
        "labels.second_looks",
        "Second looks",
        "A batch may include labeled items whose label may be wrong, if checking them is expected to help more. "
        "Labels change only if someone changes them.",
    ),
)


def choices_of(store: Store, project: ProjectRow, setting: Setting) -> tuple[str, ...]:
    """The choices of a setting. For the encoder, these are the store's encoders for the project's media type."""
    return (*setting.choices, *encoder_names(store, project)) if setting.name == ENCODER else setting.choices


def encoder_names(store: Store, project: ProjectRow) -> list[str]:
    """The names of this store's encoders for the project's media type, the built-in ones first."""
    names = [name for name, (kind, _) in BUILT_IN.items() if kind == project.kind]
    there = (found for _, found in installed(store.home) if isinstance(found, Encoder))
    return names + [one.name for one in there if one.description.kind == project.kind and one.name not in names]


@dataclass(frozen=True, slots=True)
class SettingView:
    """A setting with its values, for screens and the command line."""

    setting: Setting
    value: Any
    preset_value: Any
    seconds: float  # estimated seconds that this change alone adds to a round

    @property
    def changed(self) -> bool:
        return bool(self.value != self.preset_value)


def listed(store: Store, project: ProjectRow) -> list[SettingView]:
    """All `SETTINGS` of a project with the preset's values and the estimated cost of each change."""
    now, named = next_config(store, project), _unchanged(store, project)
    base = estimates.by_rule(store, project, named).total
    views = []
    for setting in SETTINGS:
        value, before = value_of(now, setting.name), value_of(named, setting.name)
        seconds = 0.0
        if value != before:
            seconds = estimates.by_rule(store, project, apply_changes(named, {setting.name: value})).total - base
        views.append(SettingView(setting, value, before, seconds))
    return views


def _unchanged(store: Store, project: ProjectRow) -> RoundConfig:
    """The settings of a round of the project, without its changes to the preset."""
    plain = dataclasses.replace(project.settings, changes={}, kernel_network="")
    return next_config(store, dataclasses.replace(project, settings=plain))


def value_of(config: RoundConfig, name: str) -> Any:
    section, _, field = name.partition(".")
    return getattr(getattr(config, section), field)


def change(store: Store, project: ProjectRow, changes: Sequence[str] | Mapping[str, Any]) -> ProjectRow:
    """Store changes, as `name=value` texts or as a mapping, for all future rounds. All are checked first."""
    values = dict(changes) if isinstance(changes, Mapping) else parse(changes)
    media = {name.removeprefix("media."): value for name, value in values.items() if name.startswith("media.")}
    fields = {FIELDS.get(name, name): value for name, value in values.items() if name in FIELDS or name in PLAIN}
    others = {name: value for name, value in values.items() if "." in name and name not in FIELDS}
    others = {name: value for name, value in others.items() if not name.startswith("media.")}
    checked = {name: value for name, value in values.items() if "." in name}
    apply_changes(round_config(project.settings, project.kind), checked)  # the errors of `core.config`
    kept = {**project.settings.changes, **others}
    kept = {name: value for name, value in kept.items() if name not in FIELDS}
    if fields or others:
        project = projects.change_settings(store, project.id, {**fields, "changes": kept})
    return media_settings.change(store, project, media) if media else project


def parse(changes: Sequence[str]) -> dict[str, Any]:
    """`name=value` texts as values by name, with `PLAIN` settings."""
    plain = [change for change in changes if change.partition("=")[0].strip() in PLAIN]
    found = parse_changes([change for change in changes if change not in plain])
    for change in plain:
        name, equals, text = change.partition("=")
        require(bool(equals), f"{change!r} has no value; write it like preset=laptop.")
        text = text.strip()
        found[name.strip()] = int(text) if text.isdigit() else text
    return found


def unset(store: Store, project: ProjectRow, names: Sequence[str]) -> ProjectRow:
    """Restore the preset's value of each setting. "media" derives the media settings from the pool again."""
    known = {*project.settings.changes, *FIELDS, "media"}
    for name in names:
        require(name in known, f"{name!r} is not changed in this project. Changed: {', '.join(_changed(project))}.")
    defaults = {"strategy": "bico", "batch_size": 10, "kernel_network": ""}
    fields = {FIELDS[name]: defaults[FIELDS[name]] for name in names if name in FIELDS}
    kept = {name: value for name, value in project.settings.changes.items() if name not in names}
    project = projects.change_settings(store, project.id, {**fields, "changes": kept})
    return media_settings.reset(store, project) if "media" in names else project


def _changed(project: ProjectRow) -> list[str]:
    return sorted(project.settings.changes) or ["none"]
