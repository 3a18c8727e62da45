"""Real commands in real processes, as a person types them."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from manigraph.bench.data import PilImages, random_dataset, time_augmentation, time_data_share
from manigraph.catalogue import ALGORITHMS
from manigraph.cli.main import main
from manigraph.data.preprocessing import Standardise
from manigraph.runs import RunDirectory

QUICK = ["--training.steps", "12", "--backbone.width", "0.25", "--training.log_every", "4"]


def manigraph(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "manigraph", *arguments]
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    manigraph("train", "digits", *QUICK, "--method.warmup_fraction", "0.5", cwd=folder)
    return folder / "runs" / "digits-20-manifold_graph-seed0"


def test_training_leaves_a_complete_run_and_nothing_else(trained: Path) -> None:
    assert sorted(path.name for path in trained.iterdir()) == [
        ".lock",
        "check.json",
        "config.json",
        "data.json",
        "evaluations.jsonl",
        "execution.json",
        "metrics.jsonl",
        "model.safetensors",
        "predictions.safetensors",
        "preprocessing.json",
        "provenance.json",
        "selection.json",
        "split.json",
        "status.json",
    ]
    assert sorted(path.name for path in trained.parent.parent.rglob("*") if path.is_dir()) == [
        trained.name,
        "runs",
    ]
    assert json.loads((trained / "status.json").read_text())["state"] == "finished"
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [4, 8, 12]
    assert "anchor" not in lines[0]["terms"]  # warm-up: the graph is off
    assert lines[2]["terms"]["anchor"] > 0
    assert sum(lines[2]["terms"].values()) == pytest.approx(lines[2]["loss"], rel=1e-5)
    with safe_open(trained / "predictions.safetensors", "numpy") as file:
        assert file.get_slice("logits").get_shape() == [500, 10]


def test_evaluate_repeats_the_error_that_training_reported(trained: Path) -> None:
    result = manigraph("evaluate", str(trained), "--json", cwd=trained)
    reported = json.loads((trained / "evaluations.jsonl").read_text())
    assert json.loads(result.stdout)["error"] == reported["error"]
    table = manigraph("evaluate", str(trained), cwd=trained).stdout
    assert f"test error {reported['error']:.2f} %" in table


def test_the_saved_configuration_repeats_the_run(trained: Path, tmp_path: Path) -> None:
    manigraph("train", "digits", "--file", str(trained / "config.json"), cwd=tmp_path)
    again = tmp_path / "runs" / trained.name
    assert (again / "config.json").read_text() == (trained / "config.json").read_text()
    first, second = (RunDirectory(path).read_lines("metrics.jsonl") for path in (trained, again))
    for line in (*first, *second):
        assert line.pop("images_per_second") > 0
    assert first == second
    assert (again / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


def test_the_command_line_wins_over_the_file_and_the_file_over_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(
        json.dumps({"algorithm": "pi_vat", "seed": 7, "data": {"labels": 30}, "method": {"epsilon": 0.75}})
    )
    manigraph("train", "digits", "--file", "mine.json", *QUICK, "--data.labels", "50", cwd=tmp_path)
    config = json.loads((tmp_path / "runs" / "digits-50-pi_vat-seed7" / "config.json").read_text())
    assert config["data"]["labels"] == 50
    assert config["method"]["epsilon"] == 0.75
    assert config["batch"]["unlabelled"] == 128


def test_weights_that_are_not_finite_stop_the_run_and_are_explained(tmp_path: Path) -> None:
    result = manigraph(
        "train", "digits", *QUICK, "--schedule.max_learning_rate", "1e30", cwd=tmp_path, code=1
    )
    assert "not finite" in result.stderr
    assert "lower schedule.max_learning_rate" in result.stderr
    assert "Traceback" not in result.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    with safe_open(run / "model.safetensors", "numpy") as file:
        assert len(list(file.keys())) > 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tran"], "unknown command 'tran': did you mean 'train'?"),
        (["train", "digit"], "unknown recipe or folder 'digit': did you mean 'digits'?"),
        (["train", "--seed", "1"], "name a recipe or a folder of images first"),
        (["train", "digits", "--algorithm", "pi-vat"], "unknown algorithm 'pi-vat': did you mean 'pi_vat'?"),
        (["train", "digits", "--data.label", "20"], "'--data.label': did you mean '--data.labels'?"),
        (["train", "digits", "--data.labels", "many"], "Error parsing --data.labels"),
        (["train", "digits", "--data.labels", "9"], "9 labels are fewer than the 10 classes"),
        (["train", "digits", "--data.name", "digts"], "unknown data set 'digts': did you mean 'digits'?"),
        (["train", "digits", "--backbone.name", "cnn12"], "unknown backbone 'cnn12': did you mean 'cnn13'?"),
        (["train", "digits", "--method.prototypes_per_class", "0"], "(K) must be at least 1, got 0"),
        (["train", "digits", "--training.steps", "0"], "at least 1 step"),
        (["train", "digits", "--training.log_every", "0"], "logs every 1 or more"),
        (["train", "digits", "--data.validation", "-5"], "cannot be negative, got -5"),
        (["train", "digits", "--method.xi", "0"], "xi above 0"),
        (["train", "digits", "--method.margin_divergence", "1"], "margin_divergence must be below 1"),
        (
            ["train", "digits", "--augmentation.translation", "-1"],
            "translation and rotation must be at least 0",
        ),
        (["train", "digits", "--batch.labelled", "0"], "at least 2 labelled"),
        (["train", "digits", "--name", "../x"], "a run's name cannot hold a path"),
        (["train", "digits", "--file", "none.json"], "cannot read the configuration file 'none.json'"),
        (["evaluate", "nowhere"], "there is no run directory at 'nowhere'"),
        (["list", "algoritms"], "unknown kind 'algoritms': did you mean 'algorithms'?"),
        (["reproduce", "digit"], "invalid choice 'digit'"),
        (["bench", "--scale", "0"], "--scale must be positive"),
        (["bench", "--algorithms", "fixmach"], "did you mean"),
        (["bench", "--sections", "toolkits", "--toolkits", "nowhere"], "pip install --no-deps --target"),
        (["bench", "--history", "nowhere/history.jsonl"], "the folder of"),
    ],
)
def test_bad_input_gets_one_line_and_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert len(complaint.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_bad_input_ends_a_real_process_without_a_traceback(tmp_path: Path) -> None:
    result = manigraph("train", "digits", "--algorithm", "vatt", cwd=tmp_path, code=2)
    assert result.stderr == "manigraph: unknown algorithm 'vatt': did you mean 'vat'?\n"


def test_hyphens_in_names_are_underscores_and_in_values_stay(tmp_path: Path) -> None:
    arguments = ["--runs=my-runs", "--name=a-b", "--training.weight-decay=1e-4", *QUICK]
    manigraph("train", "digits", "--algorithm", "supervised", *arguments, cwd=tmp_path)
    config = json.loads((tmp_path / "my-runs" / "a-b" / "config.json").read_text())
    assert config["training"]["weight_decay"] == 1e-4


def test_an_interrupted_run_keeps_its_weights_and_says_so(tmp_path: Path) -> None:
    arguments = ["--algorithm", "supervised", *QUICK, "--training.steps", "5000"]
    command = [sys.executable, "-m", "manigraph", "train", "digits", *arguments]

    def heed_interrupts() -> None:
        """A shell starts background jobs, perhaps these tests too, with interrupts ignored."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,
    ) as process:
        run = tmp_path / "runs" / "digits-20-supervised-seed0"
        while process.poll() is None and not (run / "metrics.jsonl").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate()
    assert process.returncode == 130, complaint
    assert re.fullmatch(
        rb"manigraph: stopped at step (\d+) of 5000; to go on from step \1: "
        rb"manigraph train --resume runs/digits-20-supervised-seed0\n",
        complaint,
    )
    assert json.loads((run / "status.json").read_text())["state"] == "interrupted"
    result = manigraph("evaluate", str(run), cwd=tmp_path)
    assert "not finished but interrupted" in result.stderr


def test_a_traceback_can_be_asked_for(tmp_path: Path) -> None:
    assert "Traceback" in manigraph("evaluate", "nowhere", "--traceback", cwd=tmp_path, code=1).stderr


def test_damaged_weights_are_refused(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    for file in trained.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "model.safetensors").write_bytes((trained / "model.safetensors").read_bytes()[:1000])
    result = manigraph("evaluate", str(copy), cwd=tmp_path, code=2)
    assert "does not hold the weights of this run" in result.stderr


def test_list_names_everything(tmp_path: Path) -> None:
    output = manigraph("list", cwd=tmp_path).stdout
    for name in ("manifold_graph", "pi_vat", "digits", "cnn13", "wide_resnet28_2"):
        assert name in output


def test_every_option_of_training_has_help(tmp_path: Path) -> None:
    lines = manigraph("train", "digits", "--help", cwd=tmp_path).stdout
    assert "--method.anchor_weight" in lines
    assert "λ3, weight of the anchor loss" in lines


def test_demo_compares_and_explains(tmp_path: Path) -> None:
    output = manigraph("demo", "--steps", "4", cwd=tmp_path).stdout
    for text in (
        "supervised only",
        "LabelSpreading",
        "Π-VAT",
        "Manifold Graph",
        "unlabelled images",
        "runs/demo/",
    ):
        assert text in output


def test_reproduce_measures_once_and_continues(tmp_path: Path) -> None:
    arguments = ["reproduce", "digits", "--rows", "label_spreading", "--labels", "20", "--jobs", "1"]
    first = manigraph(*arguments, "--seeds", "1", cwd=tmp_path).stdout
    assert "1 cell, 0 done before, 1 to measure" in first
    second = manigraph(*arguments, "--seeds", "2", cwd=tmp_path).stdout
    assert "2 cells, 1 done before, 1 to measure" in second
    record = json.loads((tmp_path / "results" / "digits.json").read_text())
    assert [result["cell"]["seed"] for result in record["results"]] == [0, 1]
    assert record["machine"]["cores"]


def test_bench_prints_ratios(tmp_path: Path) -> None:
    arguments = ["--sections", "steps", "--scale", "0.01", "--output", "bench.json"]
    arguments += ["--history", "history.jsonl"]
    earlier = {"power": [1], "origins": {"power": {"commit": "of another day"}}}
    (tmp_path / "bench.json").write_text(json.dumps(earlier))
    output = manigraph("bench", *arguments, cwd=tmp_path).stdout
    assert "A training step: digits recipe" in output
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["power"] == [1]
    assert found["origins"]["power"] == {"commit": "of another day"}
    assert found["origins"]["steps"]["command"][:2] == ["manigraph", "bench"]
    assert "Manifold Graph / Π-VAT" in output
    ratios = json.loads((tmp_path / "bench.json").read_text())["steps"]
    assert {r["what"] for r in ratios if r["setting"] == "digits recipe"} == set(ALGORITHMS) - {"pi_vat"}
    assert {r["versus"] for r in ratios} == {"pi_vat"}
    (line,) = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [r["ratio"] for r in json.loads(line)["ratios"]] == [r["ratio"] for r in ratios]
    assert json.loads(line)["machine"]["cores"]


def test_bench_measures_the_memory_of_a_folder(tmp_path: Path) -> None:
    arguments = ["--sections", "memory", "--scale", "0.01", "--output", "bench.json"]
    output = manigraph("bench", *arguments, cwd=tmp_path).stdout
    assert "Training on 1000 files of 32x32" in output
    uses = json.loads((tmp_path / "bench.json").read_text())["memory"]
    assert [use["images"] for use in uses] == [1000] * 3
    assert all(use["peak_mib"] > use["before_mib"] > 0 for use in uses)
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json"}  # the folder of images is gone


def test_the_data_benchmark_measures_what_it_says() -> None:
    """Both contenders give the same kind of batch, and a data share is a share of the step."""
    dataset = random_dataset(320)
    fitted = Standardise.fit(dataset.images)
    arrays = dataset.images.permute(0, 2, 3, 1).contiguous().numpy()
    mean, std = ([figure / 255 for figure in figures] for figures in (fitted.mean, fitted.std))
    usual = PilImages(arrays, mean, std)
    image = usual[5]
    assert image.shape == (3, 32, 32)
    inner = fitted(dataset.images[5:6])[0, :, 10:20, 10:20]
    # Columns 10 to 19 shifted by up to 2; mirrored they are 12 to 21.
    windows = [(top, left) for top in range(8, 13) for left in range(8, 15)]
    candidates = [image[:, top : top + 10, left : left + 10] for top, left in windows]
    candidates += [candidate.flip(2) for candidate in candidates]
    assert any(torch.allclose(candidate, inner, atol=1e-5) for candidate in candidates)
    timings = time_augmentation(1, 2, lambda: None)
    for pil, ours in (timings[:2], timings[2:]):
        assert pil.ratio == 1.0
        # Of one round, and rounded to one place; the milliseconds are rounded to three.
        ratio = pil.milliseconds / ours.milliseconds
        rounding = 0.05 + ratio * (0.0005 / pil.milliseconds + 0.0005 / ours.milliseconds)
        assert ours.ratio == pytest.approx(ratio, rel=0, abs=1.01 * rounding)
    step, *shares = time_data_share(1, 0.05, lambda: None)
    assert len(shares) == 3
    for share in shares:
        expected = share.milliseconds / (share.milliseconds + step.milliseconds)
        assert share.ratio == pytest.approx(expected, rel=0.05, abs=1e-4)


@pytest.mark.parametrize("arguments", [["list"], ["train", "--help"], ["--help"], ["--version"]])
def test_nobody_reads_the_output(tmp_path: Path, arguments: list[str]) -> None:
    """As with `manigraph list | head -0`: no complaint, and it shows in the exit code."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "manigraph", *arguments]
    result = subprocess.run(
        command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert result.stderr == ""
    assert result.returncode in (1, 141)  # 1 is what rich ends with


def test_a_pipe_that_is_not_the_output_breaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose_a_process(arguments: list[str]) -> int:
        raise BrokenPipeError("the other end is gone")

    monkeypatch.setattr("manigraph.cli.list.run", lose_a_process)
    assert main(["list"]) == 1
    assert "the other end is gone" in capsys.readouterr().err


def test_there_is_no_output_at_all(tmp_path: Path) -> None:
    """As with `manigraph --version >&-`, and where a daemon starts it."""
    command = shlex.join([sys.executable, "-m", "manigraph", "list"])
    result = subprocess.run(
        f"{command} >&-", shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False
    )
    assert (result.stderr, result.returncode) == ("", 0)
