"""The labels that annotators gave to an item, counted by class, as columns of exports.

contested   the current labels of the item differ, and nobody has decided in Review
n_labels    the number of annotators with a current label
votes       the classes of these labels, each with its number of labels, the most frequent first
decided_by  how the exported label was chosen where that is not obvious: review (a decision), majority (more labels than
            any other class) or newest (a tie: the newest label)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Connection, func, select

from storage.database.schema import CurrentLabel, Item, ItemState

Contested = Literal["keep", "majority", "omit"]  # keep all, keep only those with a majority, leave all out
CONTESTED: tuple[Contested, ...] = ("keep", "majority", "omit")
VOTE_COLUMNS = ("contested", "n_labels", "votes", "decided_by")


@dataclass(frozen=True, slots=True)
class Votes:
    """The current labels of one item, by the name of the class that they count as."""

    counts: Mapping[str, int] = field(default_factory=dict)
    decided: bool = False  # by a decision in Review

    @property
    def contested(self) -> bool:
        return len(self.counts) > 1 and not self.decided

    @property
    def has_majority(self) -> bool:
        """Whether one class has more labels than any other."""
        first, *rest = sorted(self.counts.values(), reverse=True) or [0]
        return first > max(rest, default=0)

    @property
    def decided_by(self) -> str | None:
        if self.decided:
            return "review"
        if len(self.counts) < 2:
            return None
        return "majority" if self.has_majority else "newest"

    def kept(self, rule: Contested) -> bool:
        """Whether an export with this rule contains the item."""
        return not self.contested or rule == "keep" or (rule == "majority" and self.has_majority)

    def columns(self) -> dict[str, Any]:
        ordered = sorted(self.counts.items(), key=lambda pair: (-pair[1], pair[0]))
        return {
            "contested": self.contested,
            "n_labels": sum(self.counts.values()),
            "votes": [{"label": label, "n": n} for label, n in ordered],
            "decided_by": self.decided_by,
        }


def votes_of(source: str, label: str | None, others: Iterable[Mapping[str, Any]]) -> Votes:
    """The votes of a row: its label, if an annotator gave it, and the other labels of the item."""
    if source not in ("label", "decide"):
        return Votes()
    counts = Counter(other["label"] for other in others)
    counts.update([label] if source == "label" and label is not None else [])
    return Votes(counts, decided=source == "decide")


def contested_votes(connection: Connection, project_id: int, counts_as: Mapping[int, str]) -> list[Votes]:
    """The votes of the contested items of a project; `counts_as`: class id -> name of the class it counts as."""
    query = (
        select(CurrentLabel.item_id, CurrentLabel.class_id, func.count().label("n"))
        .join(ItemState, ItemState.item_id == CurrentLabel.item_id)
        .join(Item, Item.id == CurrentLabel.item_id)
        .where(ItemState.project_id == project_id, ItemState.n_labels > 1, ~ItemState.decided, ~Item.held_out)
        .group_by(CurrentLabel.item_id, CurrentLabel.class_id)
    )
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for row in connection.execute(query):
        counts[row.item_id][counts_as[row.class_id]] += row.n
    return [votes for votes in map(Votes, counts.values()) if votes.contested]
