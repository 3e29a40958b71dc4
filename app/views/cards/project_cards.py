"""The project cards of the overview: counts, progress, the state of the newest round, and the last activity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from storage.database.store import Store
from storage.labeling.pool import Pool, PoolCounts
from storage.projects.activity import last_activity
from storage.projects.projects import ProjectRow
from storage.rounds.log import RoundLog


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectCard:
    """The content of one project's card on the overview."""

    project: ProjectRow
    counts: PoolCounts
    rounds: str  # "", "round 3 finished", "round 4 running"
    last_activity: datetime

    @property
    def share_labeled(self) -> float:
        """The share of items with a label, without test items."""
        pool = self.counts.total - self.counts.held_out
        return self.counts.labeled / pool if pool else 0.0


def project_cards(store: Store, projects: Sequence[ProjectRow]) -> list[ProjectCard]:
    """One card per project, sorted by last activity, newest first."""
    cards = [
        ProjectCard(
            project=row,
            counts=Pool(store, row.id).counts(),
            rounds=_rounds(store, row.id),
            last_activity=last_activity(store, row.id),
        )
        for row in projects
    ]
    return sorted(cards, key=lambda card: card.last_activity, reverse=True)


def _rounds(store: Store, project_id: int) -> str:
    newest = RoundLog(store, project_id).latest()
    if newest is None:
        return "no round yet"
    state = {"requested": "waiting for a worker"}.get(newest.status, newest.status)
    return f"round {newest.number} {state}"
