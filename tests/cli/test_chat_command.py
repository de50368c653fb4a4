"""`deodar chat` in a pipe and with a terminal: lines in, answers out."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("fake_model.py")
ANSWER = "Hm.</think>Hello.<｜end▁of▁sentence｜>"


def chat(text, *flags):
    return subprocess.run(
        [sys.executable, str(SCRIPT), ANSWER, "chat", *flags],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_pipe_gets_answers_only():
    done = chat("hi\n\nagain\n/exit\nnever\n")
    assert (done.returncode, done.stdout) == (0, "Hello.\nHello.\n")


def test_without_thinking_and_with_a_system_message():
    done = chat("hi", "--no-thinking", "--system", "Be kind.", "--temperature", "0")
    assert done.returncode == 0
    assert done.stdout == "Hm.Hello.\n"  # the stray closing mark is not shown


def test_a_message_longer_than_the_context_is_one_line_and_exit_code_2():
    done = chat("x" * 3000)
    assert done.returncode == 2
    assert "deodar chat: the conversation has 3096 tokens, the context 2000" in done.stderr


def test_bad_flags_are_one_line_and_exit_code_2():
    flags = {
        "--effort is 0": ("--effort", "0"),
        "temperature is 3.0": ("--temperature", "3"),
        "max_tokens is 0": ("--max-tokens", "0"),
        "seed is -1": ("--seed", "-1"),
    }
    for words, given in flags.items():
        done = chat("hi", *given)
        assert done.returncode == 2
        assert f"deodar chat: {words}, it must be" in done.stderr


def start_in_terminal(answer):
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), answer, "chat"], stdin=terminal, stdout=terminal
    )
    os.close(terminal)
    return process, controller


def read_until(controller, wanted):
    shown = ""
    while wanted not in shown:
        shown += os.read(controller, 1000).decode().replace("\r\n", "\n")
    return shown


def test_a_terminal_shows_dim_reasoning_and_hints():
    process, controller = start_in_terminal(ANSWER)
    os.write(controller, b"hi\n/reset\n/exit\n")
    text = read_until(controller, "Hello.\n")
    assert process.wait(30) == 0
    os.close(controller)
    assert "/reset forgets" in text
    assert "\x1b[2mHm.\x1b[0m\nHello.\n" in text


def test_an_interrupt_stops_the_answer_and_the_next_one_the_command():
    process, controller = start_in_terminal("</think>" + "long " * 300)
    os.write(controller, b"hi\n")
    read_until(controller, "long")
    process.send_signal(signal.SIGINT)
    read_until(controller, "\n> ")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    os.close(controller)
