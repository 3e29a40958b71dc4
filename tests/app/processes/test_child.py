"""Child processes: messages arrive in order, errors keep their type, and no process remains."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.processes import child
from app.processes.child import PipedChild, Streams, explain_exit
from app.processes.messages import Message, ProgressReporter, decode, encode, error_message, progress_message
from core.errors import Cancelled, InvalidInput, WinnowError
from core.module_processes import module_command
from core.types import Progress

ECHO = """
import os, sys
from app.processes.channel import Channel
from app.processes.messages import Message, error_message
from core.errors import Conflict
from core.types import Progress
channel = Channel()
print("a library prints this")
os.system("echo and a program prints this")
for request in channel.requests():
    if request == "fail":
        channel.send(error_message(Conflict("It is taken.")))
    elif request == "die":
        os._exit(3)
    elif request == "hang":
        channel.send(Message("record", os.getpid()))
        while True: pass
    else:
        channel.report(Progress("count", 1, 1, "é", {"loss": 0.5}))
        channel.send(Message("result", request))
"""


def echo() -> PipedChild:
    return PipedChild([sys.executable, "-P", "-c", ECHO], stderr=subprocess.DEVNULL)


def next_message(process: PipedChild) -> Message:
    return next(process.messages())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def test_requests_are_answered_in_order_and_other_output_is_not_a_message():
    with echo() as process:
        for request in ({"a": [1, 2]}, "text", None):
            process.send(request)
            messages: list[Message] = []
            while not messages or not messages[-1].ends:
                messages += process.read()
            assert [one.kind for one in messages] == ["progress", "result"]
            assert messages[0].progress() == Progress("count", 1, 1, "é", {"loss": 0.5})
            assert messages[1].body == request


def test_an_error_arrives_as_the_original_exception():
    with echo() as process:
        process.send("fail")
        with pytest.raises(WinnowError, match=r"^It is taken\.$") as raised:
            raise next_message(process).error()
        assert type(raised.value).__name__ == "Conflict"


def test_the_messages_of_a_child_end_when_it_dies():
    with echo() as process:
        process.send("die")
        assert list(process.messages()) == []
        assert process.process.wait(60) == 3


def test_leaving_the_block_kills_a_child_that_does_not_respond():
    with echo() as process:
        process.send("hang")
        pid = next_message(process).body
    assert not is_running(pid)
    assert process.process.returncode in (0, -signal.SIGKILL)  # 0: it first detected that its pipe was closed


def test_a_busy_child_ends_when_its_parent_is_killed():
    code = (
        "import sys, time\n"
        "from tests.app.processes.test_child import echo, next_message\n"
        "process = echo(); process.send('hang'); print(next_message(process).body, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=child.ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not is_running(pid))


def test_a_module_is_found_from_any_folder_and_the_folder_does_not_shadow_it(tmp_path):
    (tmp_path / "core.py").write_text("raise SystemExit(9)")
    process = child.start(module_command("app", "--help"), Streams(), cwd=tmp_path)
    assert process.wait(120) == 0


def test_ending_a_group_ends_what_the_child_started(tmp_path):
    code = (
        "import subprocess, sys, time\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(f'{{inner.pid}}\\n'); time.sleep(600)"
    )
    process = child.start([sys.executable, "-c", code], Streams())
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    assert child.end_group(process) == -signal.SIGKILL
    wait_for(lambda: not is_running(int((tmp_path / "pid").read_text())))


def test_exit_codes_are_explained():
    assert explain_exit(3) == "exit code 3"
    assert explain_exit(-9) == "signal SIGKILL"
    assert explain_exit(-250) == "signal 250"


@pytest.mark.parametrize("line", ["", "hello", "3", "[]", '{"kind": "dance"}', '{"body": 1}', b"\xff\xfe"])
def test_a_line_that_is_not_a_message_is_none(line):
    assert decode(line) is None


def test_a_message_is_one_line_and_is_read_back_unchanged():
    message = error_message(InvalidInput("Two\nlines."), result={"rows": 1})
    assert "\n" not in encode(message) and decode(encode(message)) == message
    assert json.loads(encode(message))["body"] == {
        "type": "InvalidInput", "sentence": "Two\nlines.", "result": {"rows": 1},
    }  # fmt: skip
    assert type(error_message(ZeroDivisionError("x")).error()) is WinnowError


def test_progress_is_throttled_but_the_end_of_a_stage_is_not(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("app.processes.messages.time.monotonic", lambda: clock[0])
    sent: list[Message] = []
    report = ProgressReporter(sent.append)
    for done in (1, 2, 3):
        report(Progress("x", done, 9))
        clock[0] += 0.2
    report(Progress("x", 9, 9))
    clock[0] += 0.6
    report(Progress("x", 4, 9))
    assert [message.body["done"] for message in sent] == [1, 9, 4]
    assert sent[0] == progress_message(Progress("x", 1, 9))


def test_a_cancelled_child_raises_at_its_next_report_and_sends_nothing():
    sent: list[Message] = []
    report = ProgressReporter(sent.append, lambda: True)
    with pytest.raises(Cancelled):
        report(Progress("x", 1, 9))
    assert sent == []
