"""Members, a card on Data: who may see the project, and with which role. It is drawn only if there is an identity
provider or the project has members."""

from __future__ import annotations

import streamlit as st

from app.views.text import count, markup, plain, visible
from app.web import resources, state, theme
from core.errors import WinnowError
from storage.projects import roles
from storage.projects.annotators import list_people
from storage.projects.projects import ProjectRow
from storage.projects.roles import ROLES, MemberRow, Role

REMOVE = "no access"
OPEN = "Everyone who can sign in is an owner of this project. Assign the first role to restrict it to its members."
CLOSED = "Others cannot see the project. If the last member is removed, it is open to everyone again."


def section(project: ProjectRow) -> None:
    """The card. Owners can change roles in it; it is read-only for everyone else."""
    members = roles.list_members(resources.store(), project.id)
    if not members and not resources.sign_in():
        return
    with theme.card("members"):
        theme.heading("Members", count(len(members), "person", "people") if members else "open to everyone")
        theme.muted(CLOSED if members else OPEN)
        if members:
            lines = "".join(f"<tr><td>{markup(row.name)}</td><td>{row.role}</td></tr>" for row in members)
            head = "<th scope='col'>Name</th><th scope='col'>Role</th>"
            st.html(
                f'<div class="winnow-table"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
            )
        if roles.role_of(resources.store(), project.id) == "owner":
            _change(project, members)


def _change(project: ProjectRow, members: list[MemberRow]) -> None:
    """Choose a person and a role. The first member must be an owner; the store refuses any other role."""
    people = {row.id: visible(row.name) for row in list_people(resources.store())}
    people |= {row.annotator_id: visible(row.name) for row in members}
    choices: list[Role | None] = [*ROLES, None] if members else ["owner"]
    with st.form(f"members-form-{project.id}", border=False):
        person = st.selectbox(
            "Person",
            list(people),
            format_func=lambda one: people.get(one, ""),
            index=None,
            placeholder="Choose a person",
            help="People appear here after they have signed in once.",
        )
        role = st.selectbox(
            "Role", choices, format_func=lambda one: one or REMOVE, help="What each role may do: docs/people.md."
        )
        changed = st.form_submit_button("Set role")
    if changed and person is None:
        st.error("Choose a person first.")
    elif changed and person is not None:
        try:
            roles.set_role(resources.store(), project.id, person, role)
        except WinnowError as error:
            st.error(plain(error))
            return
        if not roles.role_of(resources.store(), project.id):  # the owner left; another project is opened
            state.open_project(None)
        st.rerun()
