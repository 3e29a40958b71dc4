"""Annotators that are programs: their labels are stored, and nobody can sign in as one of them."""

from __future__ import annotations

import pytest

from core.errors import Conflict
from storage.projects.annotators import annotator_named, list_annotators, list_people, person_named, remove_annotator


def test_sign_in_offers_people_and_no_programs(store):
    for name in ("Ana", "import", "simulator", "Gone"):
        annotator_named(store, name)
    remove_annotator(store, next(row.id for row in list_annotators(store) if row.name == "Gone"))
    assert [row.name for row in list_people(store)] == ["Ana"]
    assert [row.name for row in list_annotators(store)] == ["Ana", "import", "simulator"]


@pytest.mark.parametrize("name", ["import", " Import ", "SIMULATOR"])
def test_a_person_cannot_sign_in_under_the_name_of_a_program(store, name):
    with pytest.raises(Conflict, match="no person gave"):
        person_named(store, name)
    assert list_annotators(store) == []
    assert person_named(store, "imports").name == "imports"


def test_an_account_with_the_name_of_a_program_gets_a_number(store):
    account = annotator_named(store, "import", subject="https://id.example|7")
    assert (account.name, account.is_person) == ("import (2)", True)
    program = annotator_named(store, "import")
    assert program.id != account.id and not program.is_person
    assert annotator_named(store, "import", subject="https://id.example|7").id == account.id
    assert annotator_named(store, "import", subject="https://id.example|8").name == "import (3)"
    assert [row.id for row in list_people(store)][:1] == [account.id]
