"""What a person sees while a run trains."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from manigraph.cli import display as display_module
from manigraph.cli.display import RunProgress, TrainingDisplay, duration
from manigraph.training.estimate import MEASURED_STEPS, Estimate
from manigraph.training.evaluation import Evaluation
from manigraph.training.loop import StepRecord

QUICK = ["--training.steps", "4", "--backbone.width", "0.25", "--training.log_every", "2"]

TERMS = {"classification": 0.123, "consistency": 0.045, "entropy": 0.412}

HEALTH = {
    "largest_class": 0.12,
    "own_class_attention": 0.83,
    "attention_entropy": 0.21,
    "prototype_similarity": 0.41,
    "pseudo_label_agreement": 0.97,
}

NAN = float("nan")


def record(step: int, **changes: Any) -> StepRecord:
    values: dict[str, Any] = {
        "loss": 0.58,
        "terms": TERMS,
        "learning_rate": 0.0932,
        "momentum": 0.861,
        "images_per_second": 1234.4,
    }
    return StepRecord(step=step, **(values | changes))


def evaluation(error: float) -> Evaluation:
    return Evaluation(num_images=300, error=error, class_errors=(error,), calibration_error=1.0)


def estimate(**changes: Any) -> Estimate:
    values = {
        "parameters": 1_500_000,
        "seconds_per_step": 78.0,
        "seconds": 7800.0,
        "peak_bytes": 1_503_238_553,
    }
    return Estimate(**(values | changes))


def start(display: TrainingDisplay, steps: int = 100, name: str = "run-a", **arguments: Any) -> None:
    """Begin a run of which there is no more than the display asks for."""
    parameter = SimpleNamespace(numel=lambda: 4321)
    job: Any = SimpleNamespace(
        split=SimpleNamespace(labelled=[0] * 20, unlabelled=[0] * 7, validation=[0] * 5, test=[0] * 3),
        check=SimpleNamespace(
            findings=[SimpleNamespace(severity="warning", message="few images", suggestion="get [more]")]
        ),
        trainer=SimpleNamespace(
            config=SimpleNamespace(steps=steps), algorithm=SimpleNamespace(parameters=lambda: [parameter])
        ),
    )
    run: Any = SimpleNamespace(path=Path("runs") / name)
    display.start(run, job, **arguments)


def pipe() -> Console:
    return Console(file=io.StringIO())


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def on_screen(console: Console) -> list[str]:
    """What is left on a terminal after all erasing and moving about."""
    lines, y = [""], 0
    for piece in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written(console)):
        if piece == "\n":
            y += 1
            lines += [""] * (y + 1 - len(lines))
        elif piece == "\x1b[1A":
            y -= 1
        elif piece == "\x1b[2K":
            lines[y] = ""
        elif not piece.startswith(("\x1b", "\r")):
            lines[y] += piece
    while lines and not lines[-1]:
        lines.pop()
    return lines


def panel(run: RunProgress, width: int = 80, height: int = 24) -> list[str]:
    console = terminal(width, height)
    console.print(run)
    return written(console).splitlines()


def busy_run(name: str = "run-a", **changes: Any) -> RunProgress:
    run = RunProgress(name, 1000)
    run.add_record(record(100))
    run.add_evaluation("validation", 100, 3.1)
    run.add_evaluation("validation", 200, 3.2)
    run.add_record(record(250, **({"health": HEALTH} | changes)))
    return run


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(display_module, "time", clock)
    return clock


# The panel


@pytest.mark.parametrize(("width", "height"), [(60, 20), (80, 24), (140, 50)])
def test_panel_shows_everything(clock: Clock, width: int, height: int) -> None:
    run = RunProgress("run-a", 1000)
    run.add_evaluation("validation", 100, 3.1)
    run.add_evaluation("validation", 200, 3.2)
    clock.now += 10  # 250 steps in 10 s: 30 s for the other 750
    run.add_record(record(250, health=HEALTH))
    lines = panel(run, width, height)
    text = " ".join(" ".join(lines).replace("│", " ").split())
    for item in (
        "run-a",
        "━",
        "250/1000 30 s left",
        "learning rate 0.0932",
        "momentum 0.861",
        "1,234 images/s",
        "loss 0.580",
        "classification 0.123",
        "consistency 0.045",
        "entropy 0.412",
        "validation error 3.20 % at step 200, best 3.10 % at step 100",
        "prototype health: own-class attention 0.83, attention entropy 0.21, prototypes alike 0.41, "
        "pseudo-labels agree 0.97, largest class 0.12",
    ):
        assert item in text
    assert {len(line) for line in lines} == {min(width, display_module.WIDEST_PANEL)}


def test_bar_is_as_full_as_the_run() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system="standard")
    console.print(busy_run())
    (line,) = (line for line in written(console).splitlines() if "250/1000" in line)
    lit, unlit = re.findall(r"━+", line)[:2]
    assert len(lit) / (len(lit) + len(unlit)) == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("width", [5, 12, 30, 60, 200])
@pytest.mark.parametrize("height", [2, 4, 8, 12, 24])
def test_panel_fits_any_terminal(width: int, height: int) -> None:
    lines = panel(busy_run("a-very-long-name" * 10), width, height)
    assert 1 <= len(lines) < height
    assert max(map(len, lines)) <= width


def test_short_terminal_keeps_what_matters_most() -> None:
    bar, loss, error = panel(busy_run(), 70, 4)
    assert "250/1000" in bar
    assert "loss" in loss
    assert "best 3.10 %" in error


def test_terms_are_aligned_in_the_order_of_their_appearance() -> None:
    run = RunProgress("run-a", 1000)
    run.add_record(record(100, terms={"b": 1.0, "a": 2.0}))
    run.add_record(record(200, terms={"anchor": -12.5, "a": 4.0, "b": 3.0}))
    rows = [line.strip("│ ") for line in panel(run, 30) if re.search(r"│ (loss|a|b|anchor)\b", line)]
    assert rows == ["loss     0.580", "b        3.000", "a        4.000", "anchor -12.500"]


def test_a_term_that_is_gone_keeps_its_place() -> None:
    run = RunProgress("run-a", 1000)
    run.add_record(record(100, terms={"a": 1.0, "b": 2.0}))
    run.add_record(record(200, terms={"b": 3.0}))
    assert re.search(r"loss +0\.580 +a +- +b +3\.000", "\n".join(panel(run)))


@pytest.mark.parametrize(
    ("value", "shown"), [(NAN, "nan"), (float("inf"), "inf"), (2e-5, "2.0e-05"), (123456.0, "1.2e+05")]
)
def test_unusual_numbers_are_shown(value: float, shown: str) -> None:
    text = "\n".join(panel(busy_run(terms={"a": value}, health={"largest_class": NAN})))
    assert re.search(rf"a +{re.escape(shown)} ", text)
    assert "health: largest class nan" in text


def test_brackets_in_names_are_no_markup() -> None:
    run = busy_run("run[red]-[/]", terms={"term[bold]": 1.0})
    run.add_evaluation("part[x]", 200, 1.0)
    text = "\n".join(panel(run))
    assert all(name in text for name in ("run[red]-[/]", "term[bold]", "part[x] error"))


def test_only_prototypes_have_prototype_health() -> None:
    text = "\n".join(panel(busy_run(health={"largest_class": 0.3})))
    assert "health: largest class 0.30" in text
    assert "prototype health" not in text
    assert "health" not in "\n".join(panel(busy_run(health={})))


def test_best_error_is_the_lowest_and_earliest() -> None:
    run = RunProgress("run-a", 1000)
    for step, error in ((100, NAN), (200, 4.0), (300, 3.0), (400, 3.0), (500, NAN)):
        run.add_evaluation("validation", step, error)
    run.add_evaluation("test", 500, 9.0)
    text = "\n".join(panel(run))
    assert "validation error nan % at step 500, best 3.00 % at step 300" in text
    assert "test error 9.00 % at step 500, the best so far" in text


def test_time_left_runs_on_between_records(clock: Clock) -> None:
    run = RunProgress("run-a", 1000)
    clock.now += 10
    run.add_record(record(100))
    assert run.time_left() == "1 min 30 s left"
    clock.now += 30
    assert run.time_left() == "1 min left"
    clock.now += 300  # a long evaluation
    assert run.time_left() == "1 s left"


def test_time_left_follows_a_run_that_becomes_slower(clock: Clock) -> None:
    run = RunProgress("run-a", 2000)
    for step in range(1, 1001):
        clock.now += 1 if step <= 500 else 3
        run.add_record(record(step))
    assert run.time_left() == f"{duration(3 * 1000)} left"


def test_time_left_knows_of_smaller_images_at_the_beginning(clock: Clock) -> None:
    sizes = {"seconds_per_step": 4.0, "seconds_per_half_size_step": 1.0, "half_size_steps": 50}
    run = RunProgress("run-a", 100, estimate=estimate(**sizes))
    assert run.time_left() == f"{duration(50 + 200)} left"
    for step in (10, 20, 30):
        clock.now += 20  # twice as slow as was estimated
        run.add_record(record(step))
    assert run.time_left() == f"{duration(2 * (20 + 200))} left"


# In a terminal


def test_a_terminal_keeps_a_summary_and_no_panel(clock: Clock) -> None:
    console = terminal(120)
    with TrainingDisplay(console) as display:
        start(display)
        clock.now += 30
        display.step(record(50, images_per_second=100.0))
        display.evaluation("validation", 50, evaluation(3.1))
        clock.now += 60
        display.step(record(100, images_per_second=50.0))
        display.evaluation("validation", 100, evaluation(3.25))
        clock.now += 1000  # what is done afterwards is not training
        display.finish()
        assert not any("╭" in line for line in on_screen(console))
        start(display, name="run-b[x]")
        display.step(record(100, images_per_second=0.0))
    assert any("╭─ run-a" in line for line in written(console).splitlines())
    images = "20 labelled, 7 unlabelled, 5 validation, 3 test images; 4,321 parameters"
    assert on_screen(console) == [
        f"run-a: {images}",
        "warning: few images (get [more])",
        "run-a: 100 steps in 1 min 30 s, 67 images/s",  # 2 / (1/100 + 1/50)
        "last validation error 3.25 %, best 3.10 % at step 50",
        f"run-b[x]: {images}",
        "warning: few images (get [more])",
        "run-b[x]: 100 steps in 0 s",
    ]


def test_the_next_run_ends_the_one_before() -> None:
    console = terminal()
    with TrainingDisplay(console) as display:
        for name in ("run-a", "run-b"):
            start(display, name=name)
            display.step(record(100))
    ends = [line.split(" in ")[0] for line in on_screen(console) if " steps in " in line]
    assert ends == ["run-a: 100 steps", "run-b: 100 steps"]


@pytest.mark.parametrize("make_console", [pipe, terminal])
def test_an_interrupted_run_says_where_it_stopped(make_console: Any, clock: Clock) -> None:
    console = make_console()

    def interrupted() -> None:
        with TrainingDisplay(console) as display:
            start(display)
            clock.now += 20
            display.step(record(40))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (
        on_screen(console)[-1] == "run-a: stopped; last record at step 40 of 100, after 20 s, 1,234 images/s"
    )


def test_drawing_does_not_depend_on_the_number_of_steps() -> None:
    console = terminal()
    with TrainingDisplay(console) as display:
        start(display, steps=3000)
        began, before = time.monotonic(), written(console).count("╭─")
        for step in range(1, 3001):
            display.step(record(step))
        time.sleep(1.2)
        drawn = written(console).count("╭─") - before
        assert 1 <= drawn <= 4 * (time.monotonic() - began) + 1


def test_data_bars_take_names_literally_and_go_away() -> None:
    console = terminal(120)
    with TrainingDisplay(console) as display:
        display.data("reading [b]", 1, 5000)
        display._draw()
        display.data("reading [b]", 5000, 5000)
    assert "reading [b]" in written(console)
    assert on_screen(console) == []


# Elsewhere


def test_plain_lines_say_everything(clock: Clock) -> None:
    console = pipe()
    with TrainingDisplay(console) as display:
        start(display)
        clock.now += 30
        display.step(record(10, health=HEALTH))
        display.evaluation("validation", 10, evaluation(3.25))
        display.step(record(100, terms={"a[b]": NAN}))
    assert written(console).splitlines() == [
        "run-a: 20 labelled, 7 unlabelled, 5 validation, 3 test images; 4,321 parameters",
        "warning: few images (get [more])",
        "step 10/100  4 min 30 s left  lr 0.0932  momentum 0.861  1,234 images/s  loss 0.580  "
        "classification 0.123  consistency 0.045  entropy 0.412",
        "  prototype health: own-class attention 0.83, attention entropy 0.21, prototypes alike 0.41, "
        "pseudo-labels agree 0.97, largest class 0.12",
        "step 10/100  validation error 3.25 % of 300 images",
        "step 100/100  0 s left  lr 0.0932  momentum 0.861  1,234 images/s  loss 0.580  a[b] nan",
        "run-a: 100 steps in 30 s, 1,234 images/s",
        "last validation error 3.25 %",
    ]


def test_plain_lines_are_about_ten() -> None:
    console = pipe()
    with TrainingDisplay(console) as display:
        start(display, steps=1000)
        for step in range(7, 1001, 7):
            display.step(record(step))
    steps = [int(step) for step in re.findall(r"^step (\d+)/1000", written(console), re.MULTILINE)]
    assert steps[0] == 7
    assert 10 <= len(steps) <= 11


def test_data_is_announced_by_quarters() -> None:
    console = pipe()
    with TrainingDisplay(console) as display:
        for done in range(0, 2001, 100):
            display.data("reading [b]", done, 2000)
    assert written(console).splitlines() == [f"reading [b]: {done}/2000" for done in (500, 1000, 1500, 2000)]


def test_forced_colour_draws_nothing_over_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = pipe()
    assert console.is_terminal
    with TrainingDisplay(console) as display:
        start(display)
        display.data("reading", 1000, 1000)
        display.step(record(100))
    assert "step 100/100" in written(console)
    assert "\x1b" not in written(console)


# Both


@pytest.mark.parametrize("make_console", [pipe, terminal])
def test_estimate_is_told_before_the_first_step(make_console: Any) -> None:
    console = make_console(*((120,) if make_console is terminal else ()))
    with TrainingDisplay(console) as display:
        start(display, estimate=estimate())
    assert on_screen(console)[1] == (
        f"1,500,000 parameters; about 2 h 10 min and 1.4 GiB of memory, from {MEASURED_STEPS} measured steps"
    )
    assert "4,321 parameters" not in written(console)


def test_estimate_gives_the_time_left_until_steps_are_done(clock: Clock) -> None:
    assert RunProgress("run-a", 100).time_left() == ""
    run = RunProgress("run-a", 100, first_step=50, estimate=estimate(seconds_per_step=6.0))
    assert run.time_left() == "5 min left"
    assert "50/100  5 min left" in "\n".join(panel(run))
    clock.now += 10
    run.add_record(record(60))
    assert run.time_left() == "40 s left"


@pytest.mark.parametrize("make_console", [pipe, terminal])
def test_a_resumed_run_starts_where_it_stopped(make_console: Any, clock: Clock) -> None:
    console = make_console()
    with TrainingDisplay(console) as display:
        start(display, first_step=60, estimate=estimate(seconds=40.0, peak_bytes=340 * 2**20))
        drawn = written(console)
        clock.now += 10
        display.step(record(70, images_per_second=100.0))
        display.step(record(100, images_per_second=100.0))
    lines = on_screen(console)
    assert "1,500,000 parameters; about 40 s more and 340 MiB" in " ".join(lines)
    assert "resumed at step 60" in lines
    assert lines[-1] == "run-a: 40 steps in 10 s, 100 images/s"
    if make_console is terminal:
        assert "60/100" in drawn
    else:
        assert any(line.startswith("step 70/100  30 s left") for line in lines)


def test_a_run_from_the_start_is_not_resumed() -> None:
    console = pipe()
    with TrainingDisplay(console) as display:
        start(display)
    assert "resumed" not in written(console)


@pytest.mark.parametrize("make_console", [pipe, terminal])
def test_warnings_stay(make_console: Any) -> None:
    console = make_console()
    with TrainingDisplay(console) as display:
        start(display)
        display.warning("prototypes [all] collapse")
        display.step(record(100))
    assert "warning: prototypes [all] collapse" in on_screen(console)


def test_silent_display_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    console = terminal()
    with TrainingDisplay(console, silent=True) as display:
        display.data("reading", 5000, 5000)
        start(display, estimate=estimate(), first_step=10)
        display.step(record(50, health=HEALTH))
        display.evaluation("validation", 50, evaluation(3.0))
        display.warning("careful")
        display.finish()
    assert written(console) == ""
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.2, "under 1 s"),
        (40.4, "40 s"),
        (59.7, "1 min"),
        (90, "1 min 30 s"),
        (599.7, "10 min"),
        (12 * 60 + 20, "12 min"),
        (3599, "1 h"),
        (3 * 3600 + 20 * 60, "3 h 20 min"),
        (86399, "1 day"),
        (27 * 3600, "1 day 3 h"),
        (4 * 86400 + 3 * 3600, "4 days 3 h"),
        (NAN, "unknown time"),
        (float("inf"), "unknown time"),
    ],
)
def test_duration_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_display_needs_no_torch() -> None:
    program = "import sys, manigraph.cli.display; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


# Real commands


def run_in_terminal(arguments: list[str], cwd: Path) -> str:
    """The output of a command that believes it writes to a terminal of 60 columns and 20 lines."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
    hidden = {"COLUMNS", "LINES"}
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | {"TERM": "xterm-256color"}
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


def test_a_terminal_gets_a_live_panel(tmp_path: Path) -> None:
    output = run_in_terminal(["train", "digits", "--algorithm", "supervised", *QUICK], tmp_path)
    after = output.split("╭─")[-1]  # the last drawing and what follows
    assert "4/4" in after
    assert "learning rate" in after
    assert "momentum" in after
    assert "classification" in after
    assert "\x1b[1A\x1b[2K" in after  # and is taken away
    assert "4 steps in" in after


def test_a_pipe_gets_plain_lines(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "manigraph", "train", "digits", "--algorithm", "supervised", *QUICK],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(
        r"^step 4/4  0 s left  lr .*  momentum .*  loss .*  classification ", result.stdout, re.M
    )
    assert "4 steps in" in result.stdout
    assert "\x1b[" not in result.stdout


def test_time_left_counts_what_comes_after_the_run() -> None:
    alone, first = (
        RunProgress("run", 100, estimate=estimate(seconds_per_step=1.0), later=t) for t in (0, 200)
    )
    assert alone.time_left() == "1 min 40 s left"
    assert first.time_left() == "1 min 40 s left, 5 min with the control"
    for run in (alone, first):
        run.add_record(record(100))
    assert (alone.time_left(), first.time_left()) == ("0 s left", "0 s left, 3 min 20 s with the control")


def test_bars_of_reading_are_gone_when_a_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display_module, "can_be_drawn_over", lambda console: True)
    shown = TrainingDisplay(Console(file=io.StringIO(), force_terminal=True, width=80))
    shown.data("checking files", 1792, 1797)
    assert len(shown._bars.tasks) == 1
    shown.data.clear()
    assert len(shown._bars.tasks) == 0
    shown.data("checking files", 5, 10)
    assert len(shown._bars.tasks) == 1


def test_a_stage_is_said_and_stands_in_the_title() -> None:
    output = io.StringIO()
    shown = TrainingDisplay(Console(file=output, width=80))
    shown.stage("1 of 2, with unlabelled images", 60.0)
    assert "1 of 2, with unlabelled images\n" in output.getvalue()
