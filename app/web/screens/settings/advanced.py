"""Advanced settings on Train: the values of the preset, the project's changes, and the cost of each change."""

from __future__ import annotations

import dataclasses
from typing import Any

import streamlit as st

from app.rounds import learning_settings
from app.rounds.learning_settings import Setting, SettingView
from app.views.durations import duration
from app.views.text import plain
from app.web import resources, theme
from core.errors import WinnowError
from core.kernel_names import KERNEL_NETWORKS
from storage.projects.projects import ProjectRow, get_project


def section(project: ProjectRow) -> None:
    """The section with the learning settings that users can change."""
    views = learning_settings.listed(resources.store(), project)
    changed = [view for view in views if view.changed]
    title = f"Advanced · {len(changed)} changed" if changed else "Advanced"
    with st.expander(title, key=f"advanced-{project.id}"):
        if error := st.session_state.pop(f"advanced-error-{project.id}", ""):
            st.error(plain(error))
        for start in range(0, len(views), 3):
            for column, view in zip(st.columns(3), views[start : start + 3], strict=False):
                with column:
                    _field(project, view)
        others = set(project.settings.changes) - {view.setting.name for view in views}
        if others:
            settings = ", ".join(f"{name} = {project.settings.changes[name]}" for name in sorted(others))
            theme.muted(f"Also changed on the command line: {settings}.")
        theme.muted("Clip length, picture size and mirroring are under Data, What the model sees.")
        if changed and st.button("Reset to the preset", key=f"advanced-reset-{project.id}"):
            _reset(project.id, [view.setting.name for view in changed])
            st.rerun()


def _field(project: ProjectRow, view: SettingView) -> None:
    setting = view.setting
    key = f"advanced-{setting.name}-{project.id}"
    st.session_state[key] = view.value
    options: dict[str, Any] = {"key": key, "on_change": _keep, "args": (project.id, setting, key)}
    if isinstance(view.value, bool):
        st.toggle(setting.title, help=setting.about, **options)
    elif setting.most:
        st.number_input(setting.title, 0, setting.most, help=setting.about, **options)
    else:
        known = learning_settings.choices_of(resources.store(), project, setting)
        choices = known if view.value in known else (*known, view.value)
        st.selectbox(setting.title, choices, help=setting.about, **options)
    theme.muted(_about(view))


def _about(view: SettingView) -> str:
    """The text below a field: the description of the setting or, after a change, the change and its cost."""
    about = KERNEL_NETWORKS.get(view.value, "") if view.setting.name == "kernel.network" else view.setting.about
    if not view.changed:
        return about
    cost = f"{duration(abs(view.seconds))} {'longer' if view.seconds > 0 else 'shorter'}"
    cost = cost if abs(view.seconds) >= 0.5 else "about the same time"
    return f"{about} Changed from {view.preset_value}: estimated {cost} per round."


def _keep(project_id: int, setting: Setting, key: str) -> None:
    store, value = resources.store(), st.session_state[key]
    project = get_project(store, project_id)
    plain_project = dataclasses.replace(project, settings=dataclasses.replace(project.settings, changes={}))
    before = {view.setting.name: view.preset_value for view in learning_settings.listed(store, plain_project)}
    try:
        if value == before[setting.name] and setting.name in project.settings.changes:
            learning_settings.unset(store, project, [setting.name])
        else:
            learning_settings.change(store, project, {setting.name: value})
    except WinnowError as error:
        st.session_state[f"advanced-error-{project_id}"] = str(error)


def _reset(project_id: int, names: list[str]) -> None:
    store = resources.store()
    learning_settings.unset(store, get_project(store, project_id), names)
