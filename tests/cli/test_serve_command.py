"""`deodar serve` as a process: it greets, answers, refuses a taken port and ends with 0."""

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

SCRIPT = Path(__file__).with_name("fake_model.py")
ANSWER = "Hm.</think>Red, green and blue.<｜end▁of▁sentence｜>"


@pytest.fixture
def server():
    started = []

    def start(*flags):
        command = [sys.executable, str(SCRIPT), ANSWER, "serve", *flags]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def greeting(process):
    return "".join(process.stdout.readline() for _ in range(3))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_greets_answers_and_drains(server, number):
    process = server("--port", "0", "--served-model-name", "a", "b", "--default-thinking", "off")
    text = greeting(process)
    assert "model a, b · context 2000 tokens · thinking off · effort 75" in text
    url = re.search(r"listening on (\S+)", text).group(1)
    words = shlex.split(text.splitlines()[2].removeprefix("try: "))
    body = json.loads(words[words.index("-d") + 1])
    assert words[2] == url + "/v1/chat/completions"
    with httpx.stream("POST", words[2], json=body) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(number)  # the running answer is finished first
        rest = "".join(lines)
    assert rest.endswith("data: [DONE]")
    assert process.wait(10) == 0
    assert "engine closed" in process.stderr.read()


def test_the_second_signal_does_not_wait(server):
    process = server("--port", "0")
    url = re.search(r"listening on (\S+)", greeting(process)).group(1)
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    with httpx.stream("POST", url + "/v1/chat/completions", json=body) as response:
        next(response.iter_lines())
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    "flags",
    [
        ("--host", "host.invalid"),
        ("--port", "99999"),
        ("--port", "-1"),
        ("--default-effort", "0"),
        ("--default-effort", "much"),
    ],
)
def test_bad_flags_are_one_line_and_exit_code_2(server, flags):
    process = server(*flags)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert errors.startswith("deodar serve: ")
    assert errors.count("\n") == 1


def test_a_taken_port_is_one_line_and_exit_code_2(server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = server("--port", str(port))
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert errors == f"deodar serve: cannot listen on 127.0.0.1:{port}: Address already in use\n"
