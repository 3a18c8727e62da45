"""What a person sees in a terminal."""

import os
import pty
import subprocess
import sys
from pathlib import Path

QUICK = ["--training.steps", "4", "--backbone.width", "0.25", "--training.log_every", "2"]


def run_in_terminal(arguments: list[str], cwd: Path) -> str:
    """The output of a command that believes it writes to a terminal."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-m", "manigraph", *arguments],
        cwd=cwd,
        stdout=follower,
        stderr=follower,
        stdin=follower,
        env=environment,
    )
    os.close(follower)
    output = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        output += chunk
    process.wait()
    os.close(leader)
    assert process.returncode == 0, output.decode()
    return output.decode()


def test_a_terminal_gets_a_live_bar(tmp_path: Path) -> None:
    output = run_in_terminal(["train", "digits", "--algorithm", "supervised", *QUICK], tmp_path)
    assert "4/4" in output
    assert "loss" in output
    assert "\x1b[" in output  # drawn over and over


def test_a_pipe_gets_plain_lines(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "manigraph", "train", "digits", "--algorithm", "supervised", *QUICK],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "step 4/4" in result.stdout
    assert "\x1b[" not in result.stdout
