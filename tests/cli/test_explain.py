"""`manigraph explain`, as a person types it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from manigraph.cli.main import main
from manigraph.cli.outputs import free_paths

TRAIN = [
    *("--data.validation", "60", "--backbone.width", "0.25", "--training.steps", "6"),
    *("--training.log_every", "3"),
]
GRAPH = ["--method.warmup_fraction", "0"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `mine`, and a picture of the first digit."""
    folder = tmp_path_factory.mktemp("trained")
    assert main(["train", "digits", *TRAIN, *GRAPH, "--runs", str(folder), "--name", "mine"]) == 0
    pixels = (load_digits().images[0] * (255 / 16)).round().astype(np.uint8)
    Image.fromarray(pixels).save(folder / "null ünd.png")
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its path; what is written goes to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return str(trained / "mine")


def test_the_real_command_explains_a_file(trained: Path) -> None:
    command = [sys.executable, "-m", "manigraph", "explain", "mine", "null ünd.png"]
    before = set(trained.rglob("*"))
    for _ in range(2):
        result = subprocess.run(command, cwd=trained, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert "manigraph:" not in result.stderr
    assert result.stdout.startswith("null ünd.png is taken for ")
    assert "Without the graph it would be" in result.stdout
    folder = trained / "mine" / "explanations"
    names = {f"null ünd{number}.{suffix}" for number in ("", "-2") for suffix in ("json", "png")}
    assert set(trained.rglob("*")) - before == {folder, *(folder / name for name in names)}
    text = (folder / "null ünd.json").read_text()
    assert str(trained) not in text
    facts = json.loads(text)
    assert facts["image"]["training_part"] in ("labelled", "unlabelled", None)
    assert facts["image"]["name"] == "null ünd.png"
    with Image.open(folder / "null ünd.png") as picture:
        assert picture.format == "PNG"


def test_a_file_is_read_as_the_data_set_stores_it(
    run: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first digit of the data set, by its place and from a file, gets the same answer."""
    first = load_digits().images[0]
    from manigraph.build import load_dataset
    from manigraph.config import DataConfig

    images = load_dataset(DataConfig(name="digits")).images[:, 0].numpy()
    (index,) = np.flatnonzero((images == first).all(axis=(1, 2)))
    assert main(["explain", run, str(trained / "null ünd.png"), "--output", "out"]) == 0
    assert main(["explain", run, "--index", str(index), "--output", "out"]) == 0
    by_file = json.loads(Path("out/null ünd.json").read_text())
    by_index = json.loads(Path(f"out/image-{index}.json").read_text())
    for key in ("predicted", "classes", "graph", "nearest", "prototypes"):
        assert by_file[key] == by_index[key]
    assert by_index["image"]["class"] == "0"


def test_an_image_of_a_part(run: str, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--part",
        "test",
        "--index",
        "7",
        "--output",
        "out",
        "--neighbours",
        "2",
        "--prototypes",
        "1",
    ]
    assert main(["explain", run, *arguments]) == 0
    assert "test image 7 is taken for" in capsys.readouterr().out
    facts = json.loads(Path("out/test-image-7.json").read_text())
    assert facts["image"]["index"] == json.loads((trained / "mine" / "split.json").read_text())["test"][7]
    assert len(facts["prototypes"]) == 1
    assert len(facts["nearest"]["labelled"]) == 2


def test_a_method_without_a_graph(run: str, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--algorithm", "supervised", *TRAIN, "--name", "plain"]) == 0
    assert main(["explain", "runs/plain", str(trained / "null ünd.png")]) == 0
    assert "There is no graph to look into: supervised has no graph." in capsys.readouterr().out
    assert Path("runs/plain/explanations/null ünd.png").is_file()


def test_own_images_that_were_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MANIGRAPH_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    for name in ("$a_1$", "b", "unlabelled"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            pixels = random.integers(0, 255, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    options = ["--training.steps", "4", "--backbone.name", "small_cnn", "--backbone.width", "0.25"]
    assert main(["train", "photos", *options, *GRAPH, "--name", "own"]) == 0
    assert main(["explain", "runs/own", "photos/unlabelled/3.png"]) == 0
    facts = json.loads(Path("runs/own/explanations/3.json").read_text())
    assert facts["image"]["training_part"] == "unlabelled"
    assert all(i["path"].startswith("unlabelled/") for i in facts["nearest"]["unlabelled"])
    assert all(i["path"] != "unlabelled/3.png" for i in facts["nearest"]["unlabelled"])
    (tmp_path / "photos").rename("moved")
    capsys.readouterr()
    assert main(["explain", "runs/own", "moved/unlabelled/3.png"]) == 0
    said = capsys.readouterr()
    assert "Training images are not shown: there is no folder '" in said.out
    alone = json.loads(Path("runs/own/explanations/3-2.json").read_text())
    assert alone["classes"] == facts["classes"]
    assert alone["nearest"] is None
    assert main(["explain", "runs/own", "--index", "0"]) == 2
    assert "--index needs the images of the run: there is no folder '" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name either an image file or an image of the run's own data (--index)"),
        (["a.png", "--index", "1"], "name either an image file"),
        (["a.png", "--part", "test"], "--part goes with --index"),
        (["a.png"], "there is no image 'a.png'"),
        (["file"], "'file' cannot be explained: "),
        (["file", "--output", "file"], "'file' is a file: --output needs a folder"),
        (["--index", "9999"], "--index 9999 is not in the data set: they are numbered from 0 to 1796"),
        (["--index", "500", "--part", "test"], "is not in the test images: they are numbered from 0 to 499"),
        (["--index", "1", "--neighbours", "0"], "must be at least 1"),
    ],
)
def test_bad_input_gets_one_line(
    run: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("file").write_text("mine")
    assert main(["explain", run, *arguments]) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert len(complaint.splitlines()) == 1
    assert [path.name for path in Path().iterdir()] == ["file"]
    assert Path("file").read_text() == "mine"


@pytest.mark.parametrize("place", [1797, -1, 1.5, "3", True])
@pytest.mark.parametrize("part", ["labelled", "unlabelled"])
def test_a_split_that_points_elsewhere_is_damaged(
    run: str, place: object, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("explanations"))
    split = json.loads((copy / "split.json").read_text())
    split[part][3] = place
    (copy / "split.json").write_text(json.dumps(split))
    for arguments in (["explain", "run", "--index", "0"], ["suggest", "run"]):
        assert main(arguments) == 2
        complaint = capsys.readouterr().err
        assert complaint == (
            f"manigraph: 'run/split.json' is damaged: {part} is no list of places among the 1,797 images of "
            f"the run\n"
        )
    data = json.loads((copy / "data.json").read_text())
    (copy / "data.json").write_text(json.dumps({**data, "num_images": 5000}))
    assert main(["suggest", "run"]) == 2
    assert "holds other images now" in capsys.readouterr().err


def test_help_needs_no_torch() -> None:
    script = (
        "import sys; from manigraph.cli.main import main\n"
        "try: main(['explain', '--help'])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "--neighbours" in result.stdout


def test_names_that_are_taken_get_a_number(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("there before")
    (tmp_path / "a-2.json").symlink_to("nowhere")
    assert free_paths(tmp_path, "a", (".json", ".png")) == [tmp_path / "a-3.json", tmp_path / "a-3.png"]
    assert free_paths(tmp_path, "a", (".json", ".png"))[0] == tmp_path / "a-4.json"
    assert (tmp_path / "a.png").read_text() == "there before"
    (long, _) = free_paths(tmp_path / "new", "x" * 400, (".json", ".png"))
    assert long.is_file()
