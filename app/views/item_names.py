"""File names on the screens. A name such as "nine_07.wav" reveals the class that an annotator should choose.

The labeling card collapses every file name. Other screens show a name unless it contains a class name; in that case
they show the number of the item, and those with enough space have the file name collapsed, like the card. `shown_name`
is the only implementation of this rule.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from app.views.text import markup

SHORT = 2  # class names with at most this many characters must equal a whole word of the file name
_WORD = re.compile(r"[^\W\d_]+|\d+")


class ItemNames:
    """The displayed names of a project's items. `class_names` are all its classes, including retired ones."""

    def __init__(self, class_names: Iterable[str]) -> None:
        words = [_words(name) for name in class_names]
        joined = {"".join(one) for one in words} - {""}
        self._short = {one for one in joined if len(one) <= SHORT}
        self._long = tuple(sorted(joined - self._short))

    def tells_class(self, name: str) -> bool:
        """Whether the file name contains a class name, ignoring case, accents, separators and leading zeros."""
        words = _words(name)
        joined = "".join(words)
        return not self._short.isdisjoint(words) or any(one in joined for one in self._long)

    def shown_name(self, item_id: int, name: str) -> str:
        """The file name, or the number of the item if the file name reveals the class."""
        return f"Item {item_id}" if self.tells_class(name) else name

    def shown_html(self, item_id: int, name: str, limit: int = 160) -> str:
        """`shown_name` as HTML. A file name that reveals the class is collapsed, as on the labeling card."""
        shown = f'<p class="winnow-muted">{markup(self.shown_name(item_id, name)[:limit])}</p>'
        if not self.tells_class(name):
            return shown
        folded = f"<summary>File name</summary>{markup(name[:limit])}"
        return f'{shown}<details class="winnow-muted winnow-file-name">{folded}</details>'


def _words(text: str) -> list[str]:
    """The runs of letters and of digits in `text`, case-folded, without accents and leading zeros."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    plain = "".join(one for one in plain if not unicodedata.combining(one))
    return [word.lstrip("0") or "0" if word.isdigit() else word for word in _WORD.findall(plain)]
