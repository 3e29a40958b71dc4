"""The checks of every request: host, origin, token, session."""

from __future__ import annotations

import base64
import contextlib

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute

from app.web import server_command, tickets
from app.web.access import ACCESS_COOKIE, SESSION_COOKIE, Gate, Rules, is_loopback, needs_token, rules_for
from tests.app.asgi_client import ask, connect

KEY = b"k" * 32


async def hello(request):
    return PlainTextResponse("inside")


async def socket(websocket):
    await websocket.accept()
    await websocket.close()


def guarded(rules: Rules) -> Starlette:
    paths = ("/", "/label", "/media/x.png", "/api/session", "/_stcore/health", "/_stcore/upload_file/a/b")
    routes = [Route(path, hello, methods=["GET", "POST", "PUT"]) for path in paths]
    routes.append(WebSocketRoute("/_stcore/stream", socket))
    return Starlette(routes=routes, middleware=[Middleware(Gate, rules=lambda: rules)])


LOCAL = guarded(rules_for("127.0.0.1", KEY, token=None, environ={}))
OPEN = guarded(rules_for("0.0.0.0", KEY, token="s3cret", environ={}))


def test_loopback_is_open_without_a_token_and_everything_else_requires_one():
    assert [is_loopback(h) for h in ("127.0.0.1", "localhost", "::1", "127.8.8.8")] == [True] * 4
    assert [needs_token(h, sign_in=False) for h in ("0.0.0.0", "::", "192.168.1.5", "lab.example")] == [True] * 4
    assert not needs_token("0.0.0.0", sign_in=True) and not needs_token("127.0.0.1", sign_in=False)
    assert ask(LOCAL, "GET", "/").body == b"inside"


@pytest.mark.parametrize("path", ["/", "/label", "/media/x.png", "/api/session", "/_stcore/upload_file/a/b"])
def test_beyond_loopback_nothing_is_served_without_the_token(path):
    """Pages, media, API and uploads; only the health check of the supervisor is served."""
    for headers in ({}, {"cookie": f"{ACCESS_COOKIE}=guess"}, {"authorization": "Bearer wrong"}):
        answer = ask(OPEN, "GET", f"http://lab.example:8501{path}", None, headers)
        assert answer.status == 401 and b"inside" not in answer.body
    assert ask(OPEN, "GET", f"http://lab.example:8501{path}?token=wrong").status == 401
    assert ask(OPEN, "GET", "http://lab.example:8501/_stcore/health").status == 200


def test_the_printed_address_gives_access_and_a_cookie_keeps_it():
    first = ask(OPEN, "GET", "http://lab.example:8501/label?project=3&token=s3cret", None, {"accept": "text/html"})
    assert (first.status, first.headers["location"]) == (303, "/label?project=3")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and "s3cret" not in cookie
    pair = cookie.split(";")[0]
    assert ask(OPEN, "GET", "http://lab.example:8501/label", None, {"cookie": pair}).body == b"inside"
    changed = guarded(rules_for("0.0.0.0", KEY, token="another", environ={}))
    assert ask(changed, "GET", "http://lab.example:8501/label", None, {"cookie": pair}).status == 401
    page = ask(OPEN, "GET", "http://lab.example:8501/", None, {"accept": "text/html"})
    assert page.status == 401 and b"<form" in page.body


def test_the_redirect_after_the_token_cannot_leave_this_server():
    for path in ("//evil.example/x", "/\\evil.example"):
        location = ask(OPEN, "GET", "http://lab.example" + path + "?token=s3cret").headers["location"]
        assert location.startswith("/") and not location.startswith(("//", "/\\"))


def test_websockets_need_the_token_and_our_own_origin():
    """A page of another origin cannot open a WebSocket, even in a browser that has the cookie."""
    host = {"host": "lab.example:8501"}
    pair = {"cookie": f"{ACCESS_COOKIE}={Rules(key=KEY, token='s3cret').cookie_for_token()}"}
    assert connect(OPEN, "/_stcore/stream", host) == ["websocket.close"]
    inside = ["websocket.accept", "websocket.close"]
    assert connect(OPEN, "/_stcore/stream", host | pair | {"origin": "http://lab.example:8501"}) == inside
    assert connect(OPEN, "/_stcore/stream", host | pair | {"origin": "http://evil.example"}) == ["websocket.close"]
    assert connect(OPEN, "/_stcore/stream", host | pair | {"origin": "null"}) == ["websocket.close"]
    assert connect(LOCAL, "/_stcore/stream", {"host": "evil.example"}) == ["websocket.close"]
    assert connect(LOCAL, "/_stcore/stream", {"host": "127.0.0.1:1", "origin": "http://127.0.0.1:1"}) == inside
    assert connect(LOCAL, "/_stcore/stream", {"host": "127.0.0.1:1", "origin": "http://127.0.0.1:2"}) == [
        "websocket.close"
    ]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "a@127.0.0.1", "127.0.0.1/x", "[::1"])
def test_a_foreign_host_name_is_refused_on_loopback(host):
    """DNS rebinding."""
    assert ask(LOCAL, "GET", "/", None, {"host": host}).status == 421


def test_more_host_names_can_be_allowed_for_a_proxy():
    rules = rules_for("127.0.0.1", KEY, token=None, environ={"WINNOW_ALLOWED_HOSTS": "winnow.lab.example, other"})
    behind = guarded(rules)
    headers = {"host": "127.0.0.1:8501", "origin": "https://winnow.lab.example"}
    assert ask(behind, "POST", "/api/session", {}, headers).status == 200
    assert ask(behind, "GET", "http://winnow.lab.example/").status == 200
    assert ask(behind, "POST", "/api/session", {}, headers | {"origin": "https://evil.example"}).status == 403


def test_streamlits_own_media_route_needs_a_session_even_on_loopback():
    """Streamlit itself serves /media without a check."""
    assert ask(LOCAL, "GET", "/media/x.png").status == 401
    ticket = tickets.issue(KEY, 7, 60)
    assert ask(LOCAL, "GET", "/media/x.png", None, {"cookie": f"{SESSION_COOKIE}={ticket}"}).body == b"inside"


def test_tickets_contain_the_annotator_and_the_expiry_and_all_others_are_refused():
    text = tickets.issue(KEY, 42, 60)
    found = tickets.redeem(KEY, text)
    assert found is not None and found.annotator_id == 42
    for wrong in (None, "", ".", text[:-1], text + "0", "a." + text.split(".")[1], tickets.issue(KEY, 42, -1)):
        assert tickets.redeem(KEY, wrong) is None
    assert tickets.redeem(KEY, tickets.sign(KEY, {"annotator": "x", "expires": 1e12})) is None


def test_key_and_token_are_made_once_and_only_their_owner_reads_them(tmp_path):
    assert tickets.signing_key(tmp_path) == tickets.signing_key(tmp_path)
    assert tickets.stored_token(tmp_path) == tickets.stored_token(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {tickets.KEY_FILE, tickets.TOKEN_FILE}
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_the_server_command_and_its_address(tmp_path, monkeypatch):
    monkeypatch.setattr(server_command, "secrets_files", lambda: (tmp_path / "secrets.toml",))
    arguments = server_command.command("0.0.0.0", 9000)
    assert arguments[1:4] == ["-m", "streamlit", "run"]
    assert arguments[arguments.index("--server.address") + 1] == "0.0.0.0"
    local = server_command.environment("127.0.0.1", 9000, tmp_path, {})
    assert "WINNOW_TOKEN" not in local and local["WINNOW_HOME"] == str(tmp_path)
    beyond = server_command.environment("0.0.0.0", 9000, tmp_path, {})
    assert server_command.address("0.0.0.0", 9000, beyond["WINNOW_TOKEN"]).endswith(
        f":9000/?token={beyond['WINNOW_TOKEN']}"
    )
    assert server_command.environment("0.0.0.0", 9000, tmp_path, {"WINNOW_TOKEN": "mine"})["WINNOW_TOKEN"] == "mine"
    (tmp_path / "secrets.toml").write_text("[auth]\nclient_id = 'x'\n")
    assert "WINNOW_TOKEN" not in server_command.environment("0.0.0.0", 9000, tmp_path, {})
    assert server_command.address("::1", 80) == "http://[::1]:80/"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8501/", "http://evil.example/", "http://127.0.0.1:8501/_stcore/health"]
)
def test_every_response_has_a_policy_and_refuses_foreign_frames(url):
    headers = ask(LOCAL, "GET", url).headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"] and headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    sources = {word for part in headers["content-security-policy"].split(";") for word in part.split()[1:]}
    hashes = {source for source in sources if source.startswith("'sha256-")}
    assert hashes and sources - hashes <= {"'self'", "'none'", "'unsafe-inline'", "'unsafe-eval'", "blob:", "data:"}
    [scripts] = [part for part in headers["content-security-policy"].split(";") if "script-src" in part]
    assert "unsafe-inline" not in scripts


def test_the_access_cookie_does_not_contain_the_token_in_any_encoding():
    value = Rules(key=KEY, token="s3cret").cookie_for_token()
    assert value != Rules(key=KEY, token="s3cres").cookie_for_token()
    for part in value.split("."):
        for decode in (base64.b64decode, base64.urlsafe_b64decode, bytes.fromhex):
            with contextlib.suppress(ValueError):
                text = decode(part) if decode is bytes.fromhex else decode(part + "=" * (-len(part) % 4))
                assert b"s3cret" not in text


def test_cookies_are_secure_behind_tls_and_a_proxy():
    url = "http://lab.example:8501/?token=s3cret"
    plain = ask(OPEN, "GET", url).headers["set-cookie"]
    assert "secure" not in plain.lower()
    behind = ask(OPEN, "GET", url, None, {"x-forwarded-proto": "https"}).headers["set-cookie"]
    assert "; secure" in behind.lower()
    theirs = guarded_cookie("https")
    assert theirs.lower().endswith("; secure"), "cookies of Streamlit's own routes too"


def guarded_cookie(proto: str) -> str:
    async def inside(scope, receive, send):
        response = Response("inside")
        response.set_cookie("_streamlit_xsrf", "x")
        await response(scope, receive, send)

    app = Gate(inside, rules=lambda: Rules(key=KEY))
    return ask(app, "GET", "http://127.0.0.1/", None, {"x-forwarded-proto": proto}).headers["set-cookie"]
