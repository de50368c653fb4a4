"""`deodar batch` as a process."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("fake_model.py")
ANSWER = "Hm.</think>Red.<｜end▁of▁sentence｜>"


def batch(*flags):
    command = [sys.executable, str(SCRIPT), ANSWER, "batch", *map(str, flags)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def line(name, **body):
    body = {"messages": [{"role": "user", "content": "a colour?"}], **body}
    entry = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(entry)


def test_a_file_is_answered_line_by_line(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(line(f"r{i}") for i in range(5)) + "\n", encoding="utf-8")
    done = batch(source, "-o", target)
    assert done.returncode == 0, done.stderr
    outputs = [json.loads(text) for text in target.read_text(encoding="utf-8").splitlines()]
    assert [out["custom_id"] for out in outputs] == [f"r{i}" for i in range(5)]
    contents = {out["response"]["body"]["choices"][0]["message"]["content"] for out in outputs}
    assert contents == {"Red."}
    assert "5 answers, 0 errors" in done.stderr
    assert done.stdout == ""


def test_errors_are_counted_and_are_the_exit_status(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text(line("a") + "\n" + line("b", temperature=9), encoding="utf-8")
    done = batch(source)
    assert done.returncode == 1
    statuses = [json.loads(t)["response"]["status_code"] for t in done.stdout.splitlines()]
    assert statuses == [200, 400]
    assert "2 answers, 1 errors" in done.stderr


def test_what_cannot_be_read_or_written_is_one_line(tmp_path):
    missing = batch(tmp_path / "none.jsonl")
    source = tmp_path / "in.jsonl"
    source.write_text(line("a"), encoding="utf-8")
    unwritable = batch(source, "-o", tmp_path / "no" / "out.jsonl")
    silly = batch(source, "--concurrency", 0)
    for done in (missing, unwritable, silly):
        assert done.returncode == 2
        assert done.stderr.startswith("deodar batch: ")
        assert done.stderr.count("\n") == 1
