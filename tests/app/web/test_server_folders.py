"""Server folders: allowed by the operator, none by default once others can reach the server, and no hints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.web.server_folders import SETTING, allowed_roots, find_on_server
from core.errors import InvalidInput

ALL = (Path("/"),)


@pytest.mark.parametrize(
    "host, environ, token, sign_in, expected",
    [
        ("127.0.0.1", {}, None, False, ALL),
        ("localhost", {"WINNOW_ALLOWED_HOSTS": " "}, None, False, ALL),
        ("127.0.0.1", {"WINNOW_ALLOWED_HOSTS": "lab.example"}, None, False, ()),
        ("127.0.0.1", {}, "secret", False, ()),
        ("127.0.0.1", {}, None, True, ()),
        ("0.0.0.0", {}, "secret", False, ()),
        ("192.168.1.4", {}, None, True, ()),
        ("127.0.0.1", {SETTING: ""}, None, False, ()),
    ],
)
def test_every_folder_is_allowed_only_as_long_as_nobody_else_can_reach_the_server(
    host, environ, token, sign_in, expected
):
    assert allowed_roots(host, environ, token=token, sign_in=sign_in) == expected


def test_the_operator_names_the_folders(tmp_path):
    environ = {SETTING: os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b" / ".." / "c")])}
    roots = allowed_roots("0.0.0.0", environ, token="secret", sign_in=False)
    assert roots == (tmp_path / "a", tmp_path / "c")
    with pytest.raises(InvalidInput, match="absolute paths"):
        allowed_roots("127.0.0.1", {SETTING: "data"}, token=None, sign_in=False)


def test_a_missing_and_a_forbidden_path_get_the_same_answer(tmp_path):
    allowed, private = tmp_path / "allowed", tmp_path / "private"
    (allowed / "birds").mkdir(parents=True)
    private.mkdir()
    (private / "secret.wav").write_bytes(b"x")
    (allowed / "link").symlink_to(private)
    roots = (allowed,)
    assert find_on_server(f" {allowed}/birds ", roots) == allowed / "birds"
    asked = [
        f"{private}/secret.wav",
        f"{private}/missing.wav",
        f"{allowed}/../private/secret.wav",
        f"{allowed}/link/secret.wav",
        f"{allowed}/link/missing.wav",
        f"{allowed}/missing",
        f"{allowed}-other",
        "birds",
        "/nope\0",
    ]
    answers = set()
    for text in asked:
        with pytest.raises(InvalidInput) as refused:
            find_on_server(text, roots)
        answers.add(str(refused.value).replace(text, "PATH"))
    assert len(answers) == 1
