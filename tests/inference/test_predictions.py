"""Answers about files, as rows, tables and folders."""

import csv
import io
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from manigraph.data.sources.base import Problem
from manigraph.engine import train
from manigraph.errors import UserError, shown
from manigraph.inference import tables
from manigraph.inference.predictions import FilePrediction, NearNode, predict_files
from manigraph.inference.predictor import Predictor
from manigraph.inference.sorting import Sorter, check_not_inside, folder_names
from manigraph.inference.tables import CsvTable, columns_of, table_file
from manigraph.runs import RunDirectory
from tests.inference.conftest import K, quick
from tests.inference.pictures import digits, save_digits
from tests.runs.test_passed_on import FORMAT_2


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load(FORMAT_2)


# Answers


def test_files_of_the_test_images_have_the_answers_of_the_test_images(
    predictor: Predictor, tmp_path: Path
) -> None:
    test = digits().test[:60]
    answers = list(predictor.predict_files(save_digits(tmp_path, test), batch_size=16))
    expected = predictor(digits().images[test])
    assert [answer.path.stem for answer in answers] == [f"{int(index):04d}" for index in test]
    assert [answer.class_name for answer in answers] == [str(int(c)) for c in expected.predicted]
    torch.testing.assert_close(
        torch.tensor([answer.probabilities for answer in answers]),
        expected.probabilities,
        atol=1e-6,
        rtol=0,
    )
    for answer in answers:
        assert answer.probability == max(answer.probabilities)


@pytest.mark.parametrize("variant", ["per_image", "labelled_images"])
def test_the_nearest_prototypes_are_those_an_image_hears_most_of(
    variant: str, run_of: Callable[[str], RunDirectory], tmp_path: Path
) -> None:
    predictor = Predictor.load(run_of(variant).path)
    answers = list(predictor.predict_files(save_digits(tmp_path, range(9)), nearest=4))
    attention = predictor(digits().images[:9]).attention
    assert attention is not None
    for answer, row in zip(answers, attention, strict=True):
        best = row.argsort(descending=True)[:4].tolist()
        assert [(node.class_name, node.number) for node in answer.nearest] == [
            (str(place // K), place % K + 1) for place in best
        ]
        assert [node.weight for node in answer.nearest] == pytest.approx(row[best].tolist(), abs=1e-6)


def test_without_a_graph_nothing_is_near(tmp_path: Path) -> None:
    run, _ = train(quick("supervised"), tmp_path / "runs")
    (answer,) = Predictor.load(run.path).predict_files(save_digits(tmp_path / "images", range(1)))
    assert answer.nearest == ()


def test_more_prototypes_than_there_are(predictor: Predictor, tmp_path: Path) -> None:
    (answer,) = predictor.predict_files(save_digits(tmp_path, range(1)), nearest=1000)
    assert len(answer.nearest) == 30
    assert sum(node.weight for node in answer.nearest) == pytest.approx(1)


def test_a_bad_file_stops_unless_somebody_takes_it(predictor: Predictor, tmp_path: Path) -> None:
    save_digits(tmp_path, range(3))
    (tmp_path / "0001.png").write_bytes(b"\x1b[2Jnothing")
    with pytest.raises(UserError, match=r"0001\.png' cannot be read: not an image .*\(`on_problem` lets you"):
        list(predictor.predict_files([tmp_path]))
    problems: list[Problem] = []
    answers = list(predict_files(predictor, [tmp_path], on_problem=problems.append))
    assert [answer.path.name for answer in answers] == ["0000.png", "0002.png"]
    assert [Path(problem.path).name for problem in problems] == ["0001.png"]


# Tables

EVIL: tuple[str, ...] = (
    "=cmd|'/C calc'!A0",
    "\x1b[31mred\x07",
    'with "quotes", and\nlines',
    "-1",
    "@SUM(1)",
    "ok",
    "ok",
    "\ud800",
)


def an_answer(path: str, name: str, classes: int = len(EVIL)) -> FilePrediction:
    share = 1 / classes
    return FilePrediction(Path(path), name, share, (share,) * classes, (NearNode(name, 2, 0.123456789),))


def rows_of(path: str, name: str) -> list[list[str]]:
    file = io.StringIO()
    table = CsvTable(file, EVIL, 1)
    table.add(an_answer(path, name))
    table.close()
    file.getvalue().encode()
    return list(csv.reader(io.StringIO(file.getvalue())))


def test_columns_have_names_of_their_own() -> None:
    assert columns_of(("path", "ok", "ok", "ok_2"), 1) == [
        *("path", "class", "probability"),
        *("p_path", "p_ok", "p_ok_2", "p_ok_2_2"),
        *("nearest_1", "nearest_1_weight"),
    ]


@pytest.mark.parametrize("name", EVIL)
def test_no_cell_is_a_formula_or_drives_a_terminal(name: str) -> None:
    for path in ("plain.png", "=1+1.png", "-rf.png", "@x.png", "a\x1b]0;title\x07.png", "a\r=b.png"):
        header, row = rows_of(path, name)
        assert len(header) == len(row) == 3 + len(EVIL) + 2
        for cell in header + row:
            assert not cell.startswith(("=", "+", "@", "\t", "\r"))
            assert not cell.startswith("-") or float(cell)
            assert cell.isprintable()


def test_what_needs_no_care_stays_as_it_is() -> None:
    _, row = rows_of("a/ü — 猫.png", "ok")
    assert row[:3] == ["a/ü — 猫.png", "ok", "0.125"]
    assert row[-2:] == ["ok #2", "0.123457"]
    assert rows_of("-x.png", "-1")[1][:2] == ["./-x.png", "-1"]
    assert rows_of("x.png", "=1")[1][1] == "'=1"


def test_shown_keeps_letters_of_all_scripts() -> None:
    text = "a b~ é ß 猫 👩‍🚀 עברית"
    assert shown(text) == text
    assert shown("\x1b\x00\n\x9b\u202e\ud800" + os.fsdecode(b"\xff")) == r"\x1b\x00\x0a\x9b\u202e\ud800\xff"


def test_parquet_keeps_names_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 3)
    path = tmp_path / "answers.parquet"
    with table_file(path, EVIL, 1, overwrite=False) as table:
        for name in EVIL:
            table.add(an_answer(f"{name}.png".replace("\ud800", "\udcff"), name))
    file = pq.ParquetFile(path)
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [3, 3, 2]
    columns = file.read().to_pydict()
    assert columns["class"] == [*EVIL[:-1], r"\ud800"]
    assert columns["path"][-2:] == ["ok.png", r"\xff.png"]
    assert columns["p_ok"] == [0.125] * len(EVIL)
    assert columns["nearest_1_weight"][0] == pytest.approx(0.123456789)
    assert file.schema_arrow.field("probability").type == "float"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_gets_its_name_when_it_is_whole(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"answers.{ending}"

    def interrupted() -> None:
        with table_file(path, EVIL, 1, overwrite=False) as table:
            table.add(an_answer("x.png", "ok"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    with table_file(path, EVIL, 1, overwrite=False) as table:
        table.add(an_answer("x.png", "ok"))
        assert not path.exists()
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_table_is_not_overwritten_unless_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    path.write_text("mine")

    def write(*, overwrite: bool) -> None:
        with table_file(path, EVIL, 1, overwrite=overwrite) as table:
            table.add(an_answer("x.png", "ok"))

    with pytest.raises(UserError, match="exists: name another file, or add --overwrite"):
        write(overwrite=False)
    assert path.read_text() == "mine"
    write(overwrite=True)
    assert path.read_text().startswith("path,class,probability")


def test_a_table_that_appeared_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"

    def write() -> None:
        with table_file(path, EVIL, 1, overwrite=False):
            path.write_text("mine")

    with pytest.raises(UserError, match="exists by now"):
        write()
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("answers.txt", r"must end with \.csv or \.parquet"),
        ("no/answers.csv", "there is no folder"),
        ("folder.csv", "is a folder: name a file in it"),
    ],
)
def test_places_where_no_table_can_be_are_refused(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match=message), table_file(tmp_path / name, EVIL, 0, overwrite=True):
        pass


# Folders

NASTY: tuple[str, ...] = (
    "../../up",
    "a/b",
    "..",
    ".",
    "",
    "nul\0",
    "CON",
    "con",
    "Cat",
    "cat",
    "dog",
    "DOG",
    "unsure",
    ".hidden",
    "x" * 300,
)
NASTY += ("end. ", "é", "e\u0301", "\ud800", "a\\b", "COM1.txt", "猫" * 100)


def test_folders_of_classes_lead_nowhere_else_and_are_told_apart(tmp_path: Path) -> None:
    names = folder_names(NASTY)
    assert len({name.casefold() for name in names}) == len(NASTY)
    for name in names:
        (tmp_path / name).mkdir()
        assert (tmp_path / name).resolve().parent == tmp_path.resolve()
        assert len(name.encode()) < 120
        assert not name.startswith(".")
        assert not name.endswith((".", " "))
        assert name.partition(".")[0].casefold() not in ("con", "nul", "com1", "unsure")
        assert not set(name) & set('/\\<>:"|?*\0')
    assert folder_names(("cat", "big dog", "ü")) == ["cat", "big dog", "ü"]


def sort(tmp_path: Path, *answers: FilePrediction, how: str = "copy", sure: float = 0.0) -> list[Path]:
    sorter = Sorter(tmp_path / "sorted", ("cat", "../dog"), how=how, sure=sure)  # type: ignore[arg-type]
    return [sorter.put(answer) for answer in answers]


def sorted_files(tmp_path: Path) -> list[str]:
    root = tmp_path / "sorted"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def a_prediction(path: Path, name: str, probability: float = 0.9) -> FilePrediction:
    return FilePrediction(path, name, probability, (probability, 1 - probability), ())


def test_copies_are_sorted_and_nothing_is_overwritten(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "x.tar.png", tmp_path / "b" / "x.tar.png", tmp_path / "b" / "y"]
    for number, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(number))
        os.utime(path, (10**9, 10**9))
    sort(tmp_path, *(a_prediction(path, "cat") for path in (*paths, paths[2])))
    sort(tmp_path, a_prediction(paths[0], "../dog"))
    assert sorted_files(tmp_path) == [
        "_._dog/x.tar.png",
        *(f"cat/{n}" for n in ("x.tar-2.png", "x.tar.png", "y", "y-2")),
    ]
    assert (tmp_path / "sorted" / "cat" / "x.tar-2.png").read_text() == "1"
    assert (tmp_path / "sorted" / "cat" / "y").stat().st_mtime == 10**9
    assert [path.read_text() for path in paths] == ["0", "1", "2"]


def test_links_lead_to_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.png").write_text("x")
    sort(tmp_path, *[a_prediction(Path("x.png"), "cat")] * 2, how="link")
    assert sorted_files(tmp_path) == ["cat/x-2.png", "cat/x.png"]
    link = tmp_path / "sorted" / "cat" / "x.png"
    assert link.readlink() == tmp_path / "x.png"


@pytest.mark.parametrize("how", ["copy", "link"])
def test_what_was_sorted_before_is_left_in_its_place(tmp_path: Path, how: str) -> None:
    paths = [tmp_path / folder / "x.png" for folder in ("a", "b", "c")]
    for path, text in zip(paths, ("same", "same", "more"), strict=True):
        path.parent.mkdir()
        path.write_text(text)
        os.utime(path, (10**9, 10**9))
    answers = [a_prediction(path, "cat") for path in paths]
    sort(tmp_path, *answers, how=how)
    first = sorted_files(tmp_path)
    assert first == ["cat/x-2.png", "cat/x-3.png", "cat/x.png"]
    assert len(set(sort(tmp_path, *answers, how=how))) == 3
    sort(tmp_path, answers[2], how=how)
    assert sorted_files(tmp_path) == first
    paths[2].write_text("less")
    os.utime(paths[2], (10**9, 10**9))
    sort(tmp_path, answers[2], how=how)
    copies = ["cat/x-2.png", "cat/x-3.png", "cat/x-4.png", "cat/x.png"]
    assert sorted_files(tmp_path) == (first if how == "link" else copies)
    # A copy is not taken for a link, nor the other way round.
    sort(tmp_path, answers[0], how="link" if how == "copy" else "copy")
    assert len(sorted_files(tmp_path)) == len(copies if how == "link" else [*copies, ""])


@pytest.mark.parametrize("how", ["copy", "link"])
def test_what_was_sorted_before_is_found_behind_a_gap(tmp_path: Path, how: str) -> None:
    paths = [tmp_path / folder / f"{'x' * length}.png" for length in (1, 210) for folder in ("a", "b", "c")]
    for number, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(number))
    answers = [a_prediction(path, "cat") for path in paths]
    sort(tmp_path, *answers, how=how)
    (tmp_path / "sorted" / "cat" / "x.png").unlink()
    (tmp_path / "sorted" / "cat" / f"{'x' * 210}.png").unlink()
    left = sorted_files(tmp_path)
    sort(tmp_path, *answers[1:3], *answers[4:], how=how)
    assert sorted_files(tmp_path) == left
    sort(tmp_path, *answers, how=how)
    assert len(sorted_files(tmp_path)) == 6


def test_a_link_is_the_same_whichever_way_the_file_is_named(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a" / "x.png").touch()
    for path in (tmp_path / "a" / "x.png", tmp_path / "b" / ".." / "a" / "x.png"):
        sort(tmp_path, a_prediction(path, "cat"), how="link")
    assert sorted_files(tmp_path) == ["cat/x.png"]


def test_unsure_ones_have_a_folder_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()
    answers = [a_prediction(tmp_path / n, "cat", p) for n, p in (("a", 0.95), ("b", 0.9), ("c", 0.89))]
    sort(tmp_path, *answers, sure=0.9)
    assert sorted_files(tmp_path) == ["cat/a", "cat/b", "unsure/c"]


def test_long_names_bear_a_number(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 125 + ".png")
    path.touch()
    sort(tmp_path, *[a_prediction(path, "cat")] * 2)
    assert len(sorted_files(tmp_path)) == 2


def test_what_cannot_be_copied_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be put into .*: No such file or directory"):
        sort(tmp_path, a_prediction(tmp_path / "gone.png", "cat"))
    assert sorted_files(tmp_path) == []
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file: give a folder"):
        Sorter(tmp_path / "file", ("cat",), how="copy", sure=0)


def test_images_are_not_sorted_into_their_own_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError, match="whose images are to be sorted"):
        check_not_inside(tmp_path / "in" / "sorted", ["nowhere", str(tmp_path / "in")])
    check_not_inside(tmp_path / "sorted", [str(tmp_path / "in"), "-"])


def test_what_is_sorted_is_not_sorted_beside_itself(tmp_path: Path) -> None:
    sorted_before = tmp_path / "sorted" / "cat" / "x.png"
    sorted_before.parent.mkdir(parents=True)
    sorted_before.touch()
    for place in (sorted_before, sorted_before.parent, tmp_path / "sorted" / ".." / "sorted" / "cat"):
        with pytest.raises(UserError, match="lies in a folder of --label_folder"):
            check_not_inside(tmp_path / "sorted", [str(place)])
    with pytest.raises(UserError, match="lies in a folder of --label_folder"):  # as in a list
        sort(tmp_path, a_prediction(sorted_before, "cat"))
    assert sorted_files(tmp_path) == ["cat/x.png"]
    # Beside the folders of the classes nothing is sorted yet, and a link elsewhere leads to it only.
    (tmp_path / "sorted" / "new.png").touch()
    (tmp_path / "link.png").symlink_to(sorted_before)
    check_not_inside(tmp_path / "sorted", [str(tmp_path / "sorted" / "new.png"), str(tmp_path / "link.png")])
    sort(tmp_path, a_prediction(tmp_path / "sorted" / "new.png", "cat"))
    assert sorted_files(tmp_path) == ["cat/new.png", "cat/x.png", "new.png"]


def test_the_example_of_the_documentation(tmp_path: Path, predictor: Predictor) -> None:
    """Predictor.predict_files, as its docstring shows it."""
    Image.new("L", (8, 8)).save(tmp_path / "black.png")
    lines = [
        f"{answer.path.name} {answer.class_name} {answer.probability:.2f}"
        for answer in predictor.predict_files([tmp_path])
    ]
    assert len(lines) == 1
    assert lines[0].startswith("black.png ")
