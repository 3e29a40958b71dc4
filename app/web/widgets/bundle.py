"""Components v2 widgets out of asset files: shared scripts are joined in front of the widget's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st

ASSETS = Path(__file__).with_name("assets")


def source(*names: str) -> str:
    """The text of asset files, joined in order."""
    return "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in names)


@cache
def widget(name: str, *shared: str) -> Any:
    """The mounting function of the widget with the files `<name>.html`, `.css` and `.js`; registered once a process.
    A shared script may have a style sheet of the same name."""
    return st.components.v2.component(
        f"winnow_{name}",
        html=source(f"{name}.html"),
        css=source(
            *(sheet for script in shared if (ASSETS / (sheet := f"{Path(script).stem}.css")).exists()), f"{name}.css"
        ),
        js=source("client.js", *shared, f"{name}.js"),
    )
