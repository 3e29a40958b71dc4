"""The examples of docs/library.md run unchanged, each independently of the others."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "library.md").read_text()
EXAMPLES = dict(re.findall(r"^## (.+?)\n.*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_page_has_its_five_examples():
    assert len(EXAMPLES) == 5 and all("assert" in code for code in EXAMPLES.values())


@pytest.mark.slow
@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_runs(title: str, tmp_path: Path):
    path = tmp_path / "example.py"
    path.write_text(EXAMPLES[title])
    runpy.run_path(str(path), run_name="__main__")
