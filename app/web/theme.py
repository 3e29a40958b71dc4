"""The visual system: one stylesheet and the building blocks that all screens share.

Colors, sizes and spacing are set in `.streamlit/config.toml` (what Streamlit's theme supports) and `app/web/style.css`
(everything else, as custom properties that the widgets inherit). Screens do not define styles: they give containers a
`key`, which becomes the class `st-key-<key>`, and use the blocks below.

    with theme.card("confusions"): ...           a surface with a hairline border
    theme.heading("Confusions", "300 clips")     its title and a muted addition
    theme.figure("+2.1", "points on test items", "95.7 → 97.8 %")
    theme.table(["Class", "Items"], [["dog", "12"]])
    theme.note("Keep going: ...")                advice on an accent tint
    theme.empty_state("No round yet", "…")       text for an empty screen; put one button below it
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.views.text import markup

STYLESHEET = Path(__file__).with_name("style.css")
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24'%3E%3Cg fill='none' "
    "stroke='%23A8540A' stroke-width='2' stroke-linecap='round'%3E%3Cpath d='M12 21V4M12 13c-3 0-4.700-2-5-5 "
    "3.200.2 5 2 5 5zM12 13c3 0 4.700-2 5-5-3.200.2-5 2-5 5z'/%3E%3C/g%3E%3C/svg%3E"
)


def apply() -> None:
    """Add the stylesheet to the page. Every script run must call this first."""
    st.html(STYLESHEET)


def card(key: str, **options: object) -> DeltaGenerator:
    """A bordered container for one topic. `key` must be unique on the screen."""
    return st.container(key=f"card-{key}", **options)  # type: ignore[arg-type]


def heading(title: str, muted: str = "") -> None:
    """The title of a card with a muted addition, such as a count or a unit. Both are shown literally."""
    addition = f' <span class="winnow-muted">{markup(muted)}</span>' if muted else ""
    st.html(f'<h2 class="winnow-heading">{markup(title)}{addition}</h2>')


def muted(text: str) -> None:
    """A line of muted text, shown literally."""
    st.html(f'<p class="winnow-muted">{markup(text)}</p>')


def figure(value: str, words: str, detail: str = "") -> None:
    """A large number with a description and an optional detail. All parts are shown literally."""
    st.html(
        f'<div class="winnow-figure"><strong>{markup(value)}</strong><div>{markup(words)}'
        f'<div class="winnow-muted">{markup(detail)}</div></div></div>'
    )


def note(text: str) -> None:
    """Advice on a light accent background, shown literally."""
    st.html(f'<p class="winnow-note">{markup(text)}</p>')


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, wide: bool = False) -> None:
    """A table of short texts, all shown literally. With `wide`, it becomes a list of named values on narrow screens."""
    head = "".join(f'<th scope="col">{markup(name)}</th>' for name in columns)
    lines = [
        "".join(f'<td data-name="{markup(name)}">{markup(cell)}</td>' for name, cell in zip(columns, row, strict=True))
        for row in rows
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    kind = "winnow-table winnow-wide" if wide else "winnow-table"
    st.html(f'<div class="{kind}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')


def next_step(words: str, screen: str, key: str, *, primary: bool = False) -> None:
    """A button that opens the screen with the next step. `primary` marks the main action of the current screen."""
    if st.button(words, key=key, type="primary" if primary else "secondary"):
        st.switch_page(st.session_state["pages"][screen])


def empty_state(title: str, text: str) -> None:
    """An explanation of why the screen is empty. Place the next step (a button or a page link) directly below."""
    st.html(f'<div class="winnow-empty"><h2>{markup(title)}</h2><p>{markup(text)}</p></div>')
