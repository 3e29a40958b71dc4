"""API tokens: shown once, hashed, revocable."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest
from sqlalchemy import select

from core.errors import InvalidInput, NotFound
from storage.database.schema import METADATA
from storage.database.store import now
from storage.projects import tokens
from storage.projects.annotators import annotator_named, remove_annotator


def test_a_token_is_found_by_its_text_until_it_is_revoked(store):
    row, text = tokens.create_token(store, "ci", "annotator")
    assert (row.name, row.role, row.annotator, row.last_used_at) == ("ci", "annotator", "ci", None)
    assert tokens.redeem(store, text).id == row.id
    assert now() - tokens.get_token(store, row.id).last_used_at < timedelta(minutes=1)
    assert tokens.redeem(store, text + "x") is None and tokens.redeem(store, "") is None
    assert tokens.revoke_token(store, row.id).revoked_at is not None
    assert tokens.redeem(store, text) is None
    assert tokens.list_tokens(store) == []
    assert [one.id for one in tokens.list_tokens(store, include_revoked=True)] == [row.id]


def test_the_store_holds_only_the_hash_of_a_token(store):
    _, text = tokens.create_token(store, "ci", "viewer", person="Ana")
    assert len(text) > 40
    with store.read() as connection:
        dump = "\n".join(str(row) for table in METADATA.sorted_tables for row in connection.execute(select(table)))
    assert hashlib.sha256(text.encode()).hexdigest() in dump
    assert text not in dump and text.removeprefix(tokens.PREFIX) not in dump


def test_the_token_of_a_removed_annotator_is_refused(store):
    _, text = tokens.create_token(store, "ci", "viewer", person="Ana")
    remove_annotator(store, annotator_named(store, "Ana").id)
    assert tokens.redeem(store, text) is None


def test_a_wrong_role_and_an_unknown_token_get_a_message(store):
    with pytest.raises(InvalidInput, match="no role 'admin'"):
        tokens.create_token(store, "ci", "admin")  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="no token 7"):
        tokens.revoke_token(store, 7)
