"""A run is watched in a real browser while a real process trains it."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.reports.made_up import make_run

Open = Callable[..., Any]
RENEWED = "() => Number(document.documentElement.dataset.renewed || 0) >= "
PATIENCE = 120_000
"""Milliseconds after which something that never happens is given up."""


def hear_ctrl_c() -> None:
    """Tests that a shell runs in the background are deaf to it, and so would be what they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def watched(run: Path) -> Iterator[str]:
    """Serves a run by the command itself; ends it by Ctrl-C, which must be a good end."""
    command = [sys.executable, "-m", "manigraph", "watch", str(run), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert " at http://127.0.0.1:" in line, line + process.stderr.read()
        yield line.split(" at ")[1].split()[0]
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert errors == ""


def put(file: Path, run: Path) -> None:
    """In one go, as runs write their files."""
    shutil.copy(file, run / "part")
    (run / "part").replace(run / file.name)


def test_figures_are_renewed_and_the_zoom_stays(open_page: Open, tmp_path: Path) -> None:
    whole = make_run(tmp_path, "whole")
    run = make_run(tmp_path, "half", state="running")
    with watched(run) as address:
        page = open_page(address)
        chart = page.locator("[data-chart=terms]")
        chart.scroll_into_view_if_needed()
        box = chart.locator("svg").bounding_box()
        for x in (0.3, 0.6):
            page.mouse.move(box["x"] + x * box["width"], box["y"] + 0.5 * box["height"])
            if x == 0.3:
                page.mouse.down()
        page.mouse.up()
        zoom = (chart.get_attribute("data-from"), chart.get_attribute("data-to"))
        assert zoom != ("2", "20")
        put(whole / "metrics.jsonl", run)
        page.wait_for_function(RENEWED + "1", timeout=PATIENCE)
        assert (chart.get_attribute("data-from"), chart.get_attribute("data-to")) == zoom
        steps = page.evaluate("() => document.querySelector('[data-chart=terms]').figure.series[0].x.at(-1)")
        assert steps == 40
        assert page.locator("#map").count() == 0

        for name in ("analysis.safetensors", "analysis.json", "evaluations.jsonl", "status.json"):
            put(whole / name, run)
        page.locator("#map").wait_for(timeout=PATIENCE)
        assert page.locator("#map .stage").get_attribute("data-drawn") == "60"
        assert "finished" in page.locator("#summary").inner_text()
        page.get_by_role("button", name="Zoom in").click()
        renewed = page.evaluate("() => Number(document.documentElement.dataset.renewed)")
        (tmp_path / "warnings.jsonl").write_text(json.dumps({"step": 40, "warning": "look here"}) + "\n")
        put(tmp_path / "warnings.jsonl", run)
        page.wait_for_function(RENEWED + str(renewed + 1), timeout=PATIENCE)
        assert page.locator("#map .stage").get_attribute("data-scale") == "1.600"
        assert "look here" in page.locator("#summary").inner_text()
        page.close()  # or it would go on asking


def test_a_real_training_is_followed_to_its_end(open_page: Open, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "manigraph", "train", "digits", "--runs", str(tmp_path), "--name", "run"]
    command += ["--training.steps", "60", "--training.log_every", "5", "--backbone.width", "0.25"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as training:
        while not (tmp_path / "run" / "metrics.jsonl").is_file():
            assert training.poll() is None
        with watched(tmp_path / "run") as address:
            page = open_page(address)
            page.wait_for_function(
                "() => document.querySelector('#summary').innerText.includes('finished')", timeout=PATIENCE
            )
            assert "test error" in page.locator("#summary").inner_text()
            page.close()
    assert training.returncode == 0
