"""Builds Components v2 widgets from asset files. Shared scripts are placed before the widget's own script."""

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
    """The mounting function of the widget with the files `<name>.html`, `.css` and `.js`, registered once per process.

    `shared` are scripts and style sheets that are placed before those of the widget. A style sheet with the name of a
    script is included with it.
    """
    scripts = [one for one in shared if one.endswith(".js")]
    named = [one if one.endswith(".css") else f"{Path(one).stem}.css" for one in shared]
    styles = [one for one in named if (ASSETS / one).exists()]
    return st.components.v2.component(
        f"winnow_{name}",
        html=source(f"{name}.html"),
        css=source(*styles, f"{name}.css"),
        js=source("client.js", *scripts, f"{name}.js"),
    )
