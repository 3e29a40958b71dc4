"""`python -m app settings`: what the model sees and how it learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.cli.output import show
from app.rounds import learning_settings, media_settings
from app.views.durations import duration
from storage.database.store import Store
from storage.media.measures import pool_measures
from storage.projects.projects import ProjectRow

ORIGINS = {
    "stored": "stored with the project",
    "pool": "derived from the pool; stored when the first round is requested",
    "preset": "those of the rounds so far",
}


def change_and_show(
    store: Store, project: ProjectRow, changes: Sequence[str], unset: Sequence[str], as_json: bool
) -> None:
    """Change and unset settings of a project, then print all of them."""
    if unset:
        project = learning_settings.unset(store, project, unset)
    if changes:
        project = learning_settings.change(store, project, changes)
    result = described(store, project)
    show(result, as_json, lambda: _text(result))


def described(store: Store, project: ProjectRow) -> dict[str, Any]:
    """The settings of a project as JSON values."""
    media = media_settings.of_project(store, project)
    names = media_settings.SHOWN[project.kind]
    learning = learning_settings.listed(store, project)
    return {
        "project": project.name,
        "preset": project.settings.preset,
        "seed": project.settings.seed,
        "strategy": project.settings.strategy,
        "batch_size": project.settings.batch_size,
        "media": {name: getattr(media.config, name) for name in names},
        "media_origin": media.origin,
        "input_shape": list(media.config.input_shape(project.kind)),
        "lost": media_settings.what_is_lost(project.kind, media.config, pool_measures(store, project.id)),
        "learning": {view.setting.name: view.value for view in learning},
        "changed": {
            view.setting.name: {"preset": view.preset_value, "seconds": round(view.seconds, 1)}
            for view in learning
            if view.changed
        },
        "other_changes": {
            name: value
            for name, value in project.settings.changes.items()
            if name not in {setting.name for setting in learning_settings.SETTINGS}
        },
    }


def _text(found: dict[str, Any]) -> str:
    shape = " x ".join(str(side) for side in found["input_shape"])
    lines = [f"What the model sees ({ORIGINS[found['media_origin']]}), {shape} values:"]
    lines += [f"  media.{name} = {value}" for name, value in found["media"].items()]
    lines += [f"  {found['lost']}", "How it learns:", f"  preset = {found['preset']}", f"  seed = {found['seed']}"]
    lines += [f"  selection.strategy = {found['strategy']}", f"  selection.batch_size = {found['batch_size']}"]
    for name, value in found["learning"].items():
        changed = found["changed"].get(name)
        lines.append(f"  {name} = {value}" + (f"  ({_change(changed)})" if changed else ""))
    lines += [f"  {name} = {value}  (changed)" for name, value in found["other_changes"].items()]
    return "\n".join(lines)


def _change(changed: dict[str, Any]) -> str:
    seconds = changed["seconds"]
    sign = "+" if seconds >= 0 else "-"
    return f"changed from {changed['preset']}; estimated {sign}{duration(abs(seconds))} a round"
