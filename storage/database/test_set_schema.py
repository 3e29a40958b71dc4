"""The table of test sets that people drew from their pool."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from storage.database.declarative import Table


class TestSet(Table):
    """One draw of test items. The items name it (`items.test_set_id`)."""

    __test__ = False  # not a test case
    __tablename__ = "test_sets"
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), index=True)
    drawn_by: Mapped[int | None] = mapped_column(ForeignKey("annotators.id"))  # None: the command line
    drawn_at: Mapped[datetime]
    about: Mapped[dict[str, Any]] = mapped_column(default=dict)  # storage.labeling.test_sets.Draw


TEST_SET_TABLES: tuple[type[Table], ...] = (TestSet,)
