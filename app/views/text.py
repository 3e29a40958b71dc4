"""Escapes user input and file names, so that they are shown literally.

Most Streamlit elements render Markdown. Every name in such text must be escaped with `plain`: it is then shown as
stored and cannot add styles, links, requests or scripts. Plain text, HTML and data frames need no Markdown escaping.
"""

from __future__ import annotations

import html
import re

from storage.database.strings import count as count

_SPECIAL = re.compile(r"[!-/:-@\[-`{-~]")  # every ASCII punctuation character may be escaped by a backslash
_INVISIBLE = re.compile("[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_JOINER = "\u2060"  # WORD JOINER: has no width and prevents the recognition


def plain(text: object, limit: int | None = None) -> str:
    """Escape `text` for Markdown. Line breaks and control characters are made visible, and text longer than `limit` is
    cut with an ellipsis."""
    shown = visible(str(text))
    if limit is not None and len(shown) > limit:
        shown = shown[: limit - 1] + "…"
    return _SPECIAL.sub(lambda match: (_JOINER if match[0] in ":.@" else "") + "\\" + match[0], shown)


def visible(text: str) -> str:
    """`text` on one line: line breaks as ⏎; control and direction characters and lone surrogates as their code."""
    text = re.sub(r"\r\n|\r|\n|\u2028|\u2029", "⏎", text).replace("\t", " ")
    text = _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def markup(text: object) -> str:
    """Escape `text` for HTML that is passed to `st.html`."""
    return html.escape(visible(str(text)), quote=True)


def figure_text(text: object) -> str:
    """Escape `text` for titles, ticks and hover texts of plotly, which renders some HTML but not `&quot;`."""
    return html.escape(visible(str(text)), quote=False)
