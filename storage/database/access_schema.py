"""The tables of access, deletion and test sets: roles, API tokens, the audit log, deletions, draws of test items.

`audit_entries.project_id` and `deletions.project_id` are plain numbers: their rows outlive the project.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from storage.database.declarative import Table


class Membership(Table):
    """The role of one annotator in one project. A project without members is open to everyone."""

    __tablename__ = "memberships"
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    annotator_id: Mapped[int] = mapped_column(ForeignKey("annotators.id"), primary_key=True)
    role: Mapped[str] = mapped_column(String(10))  # owner | editor | annotator | viewer
    given_at: Mapped[datetime]


class ApiToken(Table):
    """A token of the API. The token itself is not stored, only its SHA-256."""

    __tablename__ = "api_tokens"
    id: Mapped[int] = mapped_column(primary_key=True)
    annotator_id: Mapped[int] = mapped_column(ForeignKey("annotators.id"), index=True)
    name: Mapped[str] = mapped_column(String(200))
    role: Mapped[str] = mapped_column(String(10))  # the upper limit of what the token may do, in any project
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class AuditEntry(Table):
    """One change of access or one deletion. Entries are appended and never changed."""

    __tablename__ = "audit_entries"
    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    annotator_id: Mapped[int | None] = mapped_column(ForeignKey("annotators.id"))  # None: the command line
    project_id: Mapped[int | None] = mapped_column(index=True)
    kind: Mapped[str] = mapped_column(String(40))
    detail: Mapped[dict[str, Any]] = mapped_column(default=dict)


class Deletion(Table):
    """A requested deletion. One without `finished_at` is continued by the next process that looks for it."""

    __tablename__ = "deletions"
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(index=True)
    project_name: Mapped[str] = mapped_column(Text)
    item_ids: Mapped[list[Any] | None] = mapped_column(default=None)  # None: the whole project
    requested_by: Mapped[int | None] = mapped_column(ForeignKey("annotators.id"))
    requested_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    counts: Mapped[dict[str, Any]] = mapped_column(default=dict)  # rows and files deleted so far


class TestSet(Table):
    """One draw of test items from the pool. Items refer to it through `items.test_set_id`."""

    __test__ = False  # not a test case
    __tablename__ = "test_sets"
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), index=True)
    drawn_by: Mapped[int | None] = mapped_column(ForeignKey("annotators.id"))  # None: the command line
    drawn_at: Mapped[datetime]
    about: Mapped[dict[str, Any]] = mapped_column(default=dict)  # storage.labeling.test_sets.Draw


ACCESS_TABLES: tuple[type[Table], ...] = (Membership, ApiToken, AuditEntry, Deletion, TestSet)
