"""The annotator of a session: a name that is selected or entered in local mode, or an identity provider's account."""

from __future__ import annotations

import os
import time

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from app.views.text import plain, visible
from app.web import resources, tickets
from app.web.access import SESSION_COOKIE
from core.errors import WinnowError
from storage.projects import annotators
from storage.projects.annotators import AnnotatorRow
from storage.projects.roles import Actor

CHOSEN = "annotator_id"
ACTING = "acting"


def current() -> AnnotatorRow | None:
    """The annotator of this session. If it is None, show the screen that `ask` draws."""
    if resources.sign_in():
        return _signed_in()
    known = {row.id: row for row in annotators.list_people(resources.store())}
    chosen = st.session_state.get(CHOSEN)
    if chosen is None and not st.session_state.get("leaving"):
        ticket = tickets.redeem(resources.key(), st.context.cookies.get(SESSION_COOKIE))
        chosen = ticket.annotator_id if ticket else None
    person = known.get(chosen) if chosen is not None else None
    return person if person is not None and person.removed_at is None else None


def act_as(person: AnnotatorRow) -> None:
    """Make `person` the actor of everything that this session does from now on, including callbacks before the next
    run."""
    st.session_state[ACTING] = person.id


def session_actor() -> Actor | None:
    """The actor of the page that runs in this thread. None outside of pages."""
    if get_script_run_ctx(suppress_warning=True) is None:
        return None
    return Actor(st.session_state.get(ACTING), owns_new=resources.sign_in())


def _signed_in() -> AnnotatorRow | None:
    if not st.user.get("is_logged_in"):
        return None
    email = str(st.user.get("email") or "")
    name = str(st.user.get("name") or email or st.user.get("sub"))
    subject = f"{st.user.get('iss', '')}|{st.user.get('sub', '')}"
    if not may_enter(email, os.environ.get("WINNOW_ALLOWED_EMAILS", "")):
        st.error(f"{plain(email or name)} is not allowed to sign in here. Ask the administrator to add the address.")
        st.button("Use another account", on_click=st.logout)
        st.stop()
    return annotators.annotator_named(resources.store(), name, subject=subject)


def may_enter(email: str, allowed: str) -> bool:
    """Whether an account may sign in. `allowed` lists addresses and domains ("ana@lab.org, @uni.edu"); if it is empty,
    every account of the provider may sign in."""
    entries = [entry.strip().lower() for entry in allowed.split(",") if entry.strip()]
    email = email.strip().lower()
    return not entries or any(email == e or (e.startswith("@") and email.endswith(e)) for e in entries if email)


def ask() -> None:
    """Draw the start screen: sign in, or enter a name."""
    if resources.sign_in():
        with st.container(key="welcome"):
            st.title("Winnow", anchor=False)
            st.write("Sign in to label. Labels that this browser has not sent yet are kept and sent after you sign in.")
            st.button("Sign in", type="primary", on_click=st.login, key="sign-in")
    else:
        _ask_name()


def _ask_name() -> None:
    known = annotators.list_people(resources.store())
    with st.container(key="welcome"):
        st.title("Who is labeling?", anchor=False)
        st.write("Every label is stored with the name of its annotator.")
        if known:
            with st.container(horizontal=True, key="known-people"):
                for row in known[:12]:
                    st.button(plain(row.name, 40), key=f"person-{row.id}", on_click=choose, args=(row.id,))
        with st.form("new-person", border=False):
            name = st.text_input("Your name" if not known else "Another name", max_chars=80, key="new-name")
            if st.form_submit_button("Start", type="primary"):
                enter_as(name)


def enter_as(name: str) -> None:
    """Continue under a name. The annotator is created if the name is new."""
    try:
        row = annotators.person_named(resources.store(), name)
    except WinnowError as error:
        st.error(plain(error))
        return
    choose(row.id)
    st.rerun()


def choose(annotator_id: int) -> None:
    st.session_state[CHOSEN] = annotator_id
    st.session_state.pop("leaving", None)


def leave() -> None:
    """Return to the start screen. The cookie is replaced when the next name is chosen."""
    st.session_state.pop(CHOSEN, None)
    st.session_state["leaving"] = True
    if resources.sign_in():
        st.logout()


def ticket_of(person: AnnotatorRow) -> str:
    """The session's ticket. It is reused for half of its lifetime, so that reruns do not change the widgets."""
    key = resources.key()
    known = tickets.redeem(key, st.session_state.get("ticket"))
    wanted = time.time() + resources.ticket_lifetime() / 2
    if known is None or known.annotator_id != person.id or known.expires < wanted:
        st.session_state["ticket"] = tickets.issue(key, person.id, resources.ticket_lifetime())
    return str(st.session_state["ticket"])


def initials(name: str) -> str:
    """The initials for the round badge, one or two letters: "Ana Koller" → "AK"."""
    words = [word for word in visible(name).split() if word[:1].isalnum()]
    letters = (words[0][0] + words[-1][0]) if len(words) > 1 else (words[0][:2] if words else "?")
    return letters.upper()
