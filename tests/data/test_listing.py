"""Every image file is listed once, with the class its folder or the table gives it, and nothing is lost."""

import os
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manigraph.data.listing import Listing, Part, list_images, printable
from manigraph.data.sources.base import Doubt
from manigraph.errors import UserError

PNG = b"\x89PNG\r\n\x1a\n and so on"
NOBODY = 65534
COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"

Found = dict[str, tuple[str | None, Part]]


def put(root: Path, *names: str, data: bytes = PNG) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def table(root: Path, text: str, name: str = "labels.csv", encoding: str = "utf-8") -> Path:
    path = root / name
    path.write_bytes(text.encode(encoding))
    return path


def found(listing: Listing) -> Found:
    result = {item.name: (item.label, item.part) for item in listing.items}
    assert len(result) == len(listing.items), "an image is listed twice"
    assert list(result) == sorted(result)
    return result


def labels(listing: Listing) -> dict[str, str | None]:
    return {name: label for name, (label, _) in found(listing).items()}


def problems(listing: Listing) -> dict[str, str]:
    return {problem.path: problem.reason for problem in listing.problems}


def is_clean(listing: Listing) -> bool:
    return not (listing.problems or listing.remarks or listing.empty_folders)


@contextmanager
def without_rights(*paths: Path, mode: int = 0) -> Iterator[None]:
    """Nobody may open the paths, and the test is nobody."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    modes = [path.stat().st_mode for path in paths]
    for path in paths:
        path.chmod(mode)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        for path, old in zip(paths, modes, strict=True):
            path.chmod(old)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, in which somebody else may look whatever the folders around it allow."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    return Path()


# Folders as classes


def test_the_first_folder_is_the_class_however_deep_the_image_lies(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "cat/2019/may/2.JPG", "dog/cat/3.png", "dog/4.webp")
    listing = list_images(tmp_path)
    assert found(listing) == {
        "cat/1.jpg": ("cat", "train"),
        "cat/2019/may/2.JPG": ("cat", "train"),
        "dog/4.webp": ("dog", "train"),
        "dog/cat/3.png": ("dog", "train"),
    }
    assert is_clean(listing)


@pytest.mark.parametrize("word", ["unlabelled", "unlabeled", "Unlabelled", "UNLABELED"])
def test_a_folder_unlabelled_in_any_place_and_case_means_unlabelled(tmp_path: Path, word: str) -> None:
    put(tmp_path, f"{word}/1.jpg", f"{word}/cat/2.jpg", f"cat/{word}/3.jpg", f"cat/a/{word}/b/4.jpg")
    put(tmp_path, "cat/5.jpg", "dog/6.jpg", f"dog/{word}.jpg", f"dog/not {word}/7.jpg")
    listing = list_images(tmp_path)
    assert {name for name, label in labels(listing).items() if label is None} == {
        f"{word}/1.jpg",
        f"{word}/cat/2.jpg",
        f"cat/{word}/3.jpg",
        f"cat/a/{word}/b/4.jpg",
    }
    assert {part for _, part in found(listing).values()} == {"train"}
    assert is_clean(listing)


@pytest.mark.parametrize("test", ["test", "Test", "TEST"])
def test_a_test_folder_beside_the_classes_is_for_testing(tmp_path: Path, test: str) -> None:
    put(tmp_path, "cat/1.jpg", "dog/2.jpg", f"{test}/cat/1.jpg", f"{test}/dog/old/2.jpg")
    listing = list_images(tmp_path)
    assert found(listing) == {
        "cat/1.jpg": ("cat", "train"),
        "dog/2.jpg": ("dog", "train"),
        f"{test}/cat/1.jpg": ("cat", "test"),
        f"{test}/dog/old/2.jpg": ("dog", "test"),
    }
    assert is_clean(listing)


@pytest.mark.parametrize("validation", ["val", "valid", "validation", "Validation"])
def test_wrappers_around_the_classes_are_parts(tmp_path: Path, validation: str) -> None:
    put(tmp_path, "train/cat/1.jpg", "train/dog/2.jpg", "train/unlabelled/3.jpg", "unlabelled/4.jpg")
    put(tmp_path, f"{validation}/cat/5.jpg", "test/dog/6.jpg")
    listing = list_images(tmp_path)
    assert found(listing) == {
        "test/dog/6.jpg": ("dog", "test"),
        "train/cat/1.jpg": ("cat", "train"),
        "train/dog/2.jpg": ("dog", "train"),
        "train/unlabelled/3.jpg": (None, "train"),
        "unlabelled/4.jpg": (None, "train"),
        f"{validation}/cat/5.jpg": ("cat", "validation"),
    }
    assert is_clean(listing)


def test_a_class_called_train_beside_other_classes_is_a_class_and_remarked(tmp_path: Path) -> None:
    put(tmp_path, "train/1.jpg", "train/steam/2.jpg", "bus/3.jpg", "unlabelled/4.jpg", "test/train/5.jpg")
    listing = list_images(tmp_path)
    assert found(listing) == {
        "bus/3.jpg": ("bus", "train"),
        "test/train/5.jpg": ("train", "test"),
        "train/1.jpg": ("train", "train"),
        "train/steam/2.jpg": ("train", "train"),
        "unlabelled/4.jpg": (None, "train"),
    }
    assert listing.remarks == (
        "the folder 'train' was taken for a class, as other class folders lie beside it",
    )


def test_classes_called_valid_and_invalid_are_classes(tmp_path: Path) -> None:
    put(tmp_path, "valid/1.jpg", "invalid/2.jpg")
    listing = list_images(tmp_path)
    assert found(listing) == {
        "invalid/2.jpg": ("invalid", "train"),
        "valid/1.jpg": ("valid", "train"),
    }
    assert "'valid' was taken for a class" in listing.remarks[0]


def test_validation_beside_the_classes_it_repeats_is_never_trained_on(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "dog/2.jpg", "validation/cat/3.jpg", "validation/dog/4.jpg")
    listing = list_images(tmp_path)
    assert found(listing) == {
        "cat/1.jpg": ("cat", "train"),
        "dog/2.jpg": ("dog", "train"),
        "validation/cat/3.jpg": ("cat", "validation"),
        "validation/dog/4.jpg": ("dog", "validation"),
    }
    assert is_clean(listing)


def test_wrappers_stay_wrappers_when_another_folder_lies_beside_them(tmp_path: Path) -> None:
    put(tmp_path, "train/cat/1.jpg", "train/dog/2.jpg", "test/cat/3.jpg", "test/dog/4.jpg", "bird/5.jpg")
    assert found(list_images(tmp_path)) == {
        "bird/5.jpg": ("bird", "train"),
        "test/cat/3.jpg": ("cat", "test"),
        "test/dog/4.jpg": ("dog", "test"),
        "train/cat/1.jpg": ("cat", "train"),
        "train/dog/2.jpg": ("dog", "train"),
    }


def test_loose_images_are_unlabelled_and_counted(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg", "2.jpg", "cat/3.jpg", "dog/4.jpg")
    listing = list_images(tmp_path)
    assert labels(listing) == {"1.jpg": None, "2.jpg": None, "cat/3.jpg": "cat", "dog/4.jpg": "dog"}
    assert listing.remarks == ("2 images lie in no class folder and were taken as unlabelled",)


def test_images_loose_in_a_train_wrapper_are_unlabelled_and_counted(tmp_path: Path) -> None:
    put(tmp_path, "train/1.jpg", "train/cat/2.jpg", "train/dog/3.jpg")
    listing = list_images(tmp_path)
    assert labels(listing) == {"train/1.jpg": None, "train/cat/2.jpg": "cat", "train/dog/3.jpg": "dog"}
    assert listing.remarks == ("1 images lie in no class folder and were taken as unlabelled",)


def test_test_images_without_a_class_are_left_out_and_counted(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "dog/2.jpg", "test/3.jpg", "test/unlabelled/4.jpg", "test/cat/5.jpg")
    listing = list_images(tmp_path)
    assert list(labels(listing)) == ["cat/1.jpg", "dog/2.jpg", "test/cat/5.jpg"]
    assert listing.remarks == ("2 images for validation or test lie in no class folder and were left out",)


def test_hidden_files_and_what_a_mac_packs_into_archives_are_no_images(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "dog/2.jpg", "cat/.3.jpg", "cat/._1.jpg", ".thumbnails/4.jpg")
    put(tmp_path, "__MACOSX/cat/1.jpg", "cat/__MACOSX/1.jpg", ".DS_Store")
    table(tmp_path, "path,label\ncat/1.jpg,lion\n", name="._labels.csv")
    listing = list_images(tmp_path)
    assert labels(listing) == {"cat/1.jpg": "cat", "dog/2.jpg": "dog"}
    assert is_clean(listing)


FIRST_BYTES = {
    "JPEG": b"\xff\xd8\xff\xe0\0\x10JFIF",
    "PNG": b"\x89PNG\r\n\x1a\n",
    "GIF": b"GIF89a......",
    "BMP": b"BM....\0\0\0\0..",
    "TIFF, small end first": b"II*\0........",
    "TIFF, large end first": b"MM\0*........",
    "WebP": b"RIFF....WEBPVP8 ",
}


@pytest.mark.parametrize("kind", FIRST_BYTES)
@pytest.mark.parametrize("name", ["photo", "photo.txt", "photo.2019", "photo.csv.old"])
def test_images_with_another_name_are_known_by_their_first_bytes(
    tmp_path: Path, kind: str, name: str
) -> None:
    put(tmp_path, f"cat/{name}", data=FIRST_BYTES[kind])
    put(tmp_path, "dog/1.jpg")
    listing = list_images(tmp_path)
    assert labels(listing) == {f"cat/{name}": "cat", "dog/1.jpg": "dog"}
    assert is_clean(listing)


def test_other_files_are_remarked(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "dog/2.jpg")
    put(tmp_path, "cat/notes.txt", "Thumbs.db", "cat/empty", data=b"")
    put(tmp_path, "dog/song.wav", data=b"RIFF....WAVEfmt ")
    listing = list_images(tmp_path)
    assert list(labels(listing)) == ["cat/1.jpg", "dog/2.jpg"]
    assert listing.remarks == (
        "4 other files are no images and were passed over: Thumbs.db, cat/empty, cat/notes.txt, dog/song.wav",
    )


def test_of_many_other_files_five_are_named(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", *[f"cat/{i}.txt" for i in range(7)])
    put(tmp_path, *[f"cat/{i}.txt" for i in range(7)], data=b"text")
    (remark,) = list_images(tmp_path).remarks
    assert remark.startswith("7 other files")
    assert remark.endswith("cat/0.txt, cat/1.txt, cat/2.txt, cat/3.txt, cat/4.txt, …")


def test_a_file_called_an_image_is_listed_whatever_it_holds(tmp_path: Path) -> None:
    """Whether it can be read is seen when it is, and then it is named."""
    put(tmp_path, "cat/1.jpg", data=b"")
    put(tmp_path, "cat/2.jpg", data=b"text")
    assert list(labels(list_images(tmp_path))) == ["cat/1.jpg", "cat/2.jpg"]


def test_class_folders_without_an_image_are_named(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "dog/2.jpg", "test/cat/3.jpg")
    put(tmp_path, "bird/notes.txt", data=b"text")
    for name in ("fish/deep", "unlabelled", "test/cow", ".hidden", "__MACOSX", "validation"):
        (tmp_path / name).mkdir(parents=True)
    assert list_images(tmp_path).empty_folders == ("bird", "cow", "fish")


def test_empty_class_folders_in_a_wrapper_are_named(tmp_path: Path) -> None:
    put(tmp_path, "train/cat/1.jpg", "train/dog/2.jpg", "test/cat/3.jpg")
    (tmp_path / "train" / "bird").mkdir()
    assert list_images(tmp_path).empty_folders == ("bird",)


def test_an_empty_folder_gives_an_empty_listing(tmp_path: Path) -> None:
    listing = list_images(tmp_path)
    assert listing.items == ()
    assert is_clean(listing)


def test_names_in_other_alphabets_are_classes(tmp_path: Path) -> None:
    put(tmp_path, "кошка/один.jpg", "猫/いち.jpg", "חתול/1.jpg", "🐈/1 2\n3.jpg")
    listing = list_images(tmp_path)
    assert set(labels(listing).values()) == {"кошка", "猫", "חתול", "🐈"}
    assert is_clean(listing)


def test_two_spellings_of_one_folder_name_in_unicode_are_one_class(tmp_path: Path) -> None:
    put(tmp_path, f"{COMPOSED}/1.jpg", f"{DECOMPOSED}/2.jpg")
    listing = list_images(tmp_path)
    assert labels(listing) == {f"{COMPOSED}/1.jpg": COMPOSED, f"{DECOMPOSED}/2.jpg": COMPOSED}


# Where the images should be


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no folder '.*nowhere': give the folder of your images"):
        list_images(tmp_path / "nowhere")
    put(tmp_path, "file.csv")
    with pytest.raises(UserError, match="there is no folder"):
        list_images(tmp_path / "file.csv" / "below")


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "cat.jpg")
    os.mkfifo(tmp_path / "pipe.csv")
    for name in ("cat.jpg", "pipe.csv"):
        with pytest.raises(UserError, match=f"{name}' is a file: give the folder of your images, or a CSV"):
            list_images(tmp_path / name)


# Tables


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_table_gives_the_labels(tmp_path: Path, delimiter: str, line_end: str, encoding: str) -> None:
    put(tmp_path, "a/1.jpg", "a/2.jpg", "b/3.jpg")
    rows = [("path", "label"), ("a/1.jpg", "кошка"), ("b/3.jpg", "dog"), ("a/2.jpg", "")]
    text = line_end.join(delimiter.join(row) for row in rows) + line_end
    table(tmp_path, text, encoding=encoding)
    listing = list_images(tmp_path)
    assert found(listing) == {
        "a/1.jpg": ("кошка", "train"),
        "a/2.jpg": (None, "train"),
        "b/3.jpg": ("dog", "train"),
    }
    assert is_clean(listing)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("a/1.jpg", "a/1.jpg"),
        ("./a/1.jpg", "a/1.jpg"),
        ("a//1.jpg", "a/1.jpg"),
        ("a/./1.jpg", "a/1.jpg"),
        ("a\\1.jpg", "a/1.jpg"),
        (".\\a\\1.jpg", "a/1.jpg"),
        ("  a/1.jpg ", "a/1.jpg"),
        ('"a/1, and 2.jpg"', "a/1, and 2.jpg"),
        ('"a/the ""first"".jpg"', 'a/the "first".jpg'),
        ('a/5" disk.jpg', 'a/5" disk.jpg'),
        ('"a/two\nlines.jpg"', "a/two\nlines.jpg"),
        (f"a/{COMPOSED}.jpg", f"a/{DECOMPOSED}.jpg"),
        (f"a/{DECOMPOSED}.jpg", f"a/{COMPOSED}.jpg"),
        ("a/back\\slash.jpg", "a/back\\slash.jpg"),
    ],
)
def test_paths_in_a_table_find_their_image(tmp_path: Path, written: str, name: str) -> None:
    put(tmp_path, name, "other.jpg")
    table(tmp_path, f"path,label\n{written},cat\nother.jpg,dog\n")
    listing = list_images(tmp_path)
    assert labels(listing) == {name: "cat", "other.jpg": "dog"}
    assert is_clean(listing)


def test_two_files_whose_names_differ_in_unicode_alone_keep_their_labels(tmp_path: Path) -> None:
    put(tmp_path, f"{COMPOSED}.jpg", f"{DECOMPOSED}.jpg")
    if len(list(tmp_path.iterdir())) < 2:
        pytest.skip("this disk takes both names for one")
    table(tmp_path, f"path,label\n{COMPOSED}.jpg,cat\n{DECOMPOSED}.jpg,dog\n")
    assert labels(list_images(tmp_path)) == {f"{COMPOSED}.jpg": "cat", f"{DECOMPOSED}.jpg": "dog"}


def test_labels_are_stripped_and_spelled_one_way(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    table(tmp_path, f"path,label\n1.jpg, {COMPOSED} \n2.jpg,{DECOMPOSED}\n3.jpg,\u00a0\n")
    assert labels(list_images(tmp_path)) == {"1.jpg": COMPOSED, "2.jpg": COMPOSED, "3.jpg": None}


@pytest.mark.parametrize("word", ["", "  ", '""', "unlabelled", "Unlabeled"])
def test_no_label_in_a_table_means_unlabelled(tmp_path: Path, word: str) -> None:
    put(tmp_path, "1.jpg", "2.jpg")
    table(tmp_path, f"path,label\n1.jpg,{word}\n2.jpg,cat\n")
    listing = list_images(tmp_path)
    assert labels(listing) == {"1.jpg": None, "2.jpg": "cat"}
    assert is_clean(listing)


def test_columns_stand_in_any_order_among_others(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    table(tmp_path, 'id, "Label",width,PATH\n7, "cat",640,1.jpg\n8,,640,2.jpg\n9,dog,,3.jpg,,\n')
    listing = list_images(tmp_path)
    assert labels(listing) == {"1.jpg": "cat", "2.jpg": None, "3.jpg": "dog"}
    assert is_clean(listing)


def test_blank_lines_and_short_rows_are_understood(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg", "2.jpg")
    table(tmp_path, "path,label\n\n1.jpg,cat\n , \n,\n2.jpg\n\n")
    listing = list_images(tmp_path)
    assert labels(listing) == {"1.jpg": "cat", "2.jpg": None}
    assert is_clean(listing)


def test_folders_are_no_classes_beside_a_table(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "unlabelled/2.jpg", "dog/3.jpg")
    table(tmp_path, "path,label\ncat/1.jpg,dog\nunlabelled/2.jpg,cat\n")
    listing = list_images(tmp_path)
    assert labels(listing) == {"cat/1.jpg": "dog", "dog/3.jpg": None, "unlabelled/2.jpg": "cat"}
    assert listing.remarks == ("1 images are not listed in labels.csv and were taken as unlabelled",)
    put(tmp_path, "cat/4.jpg", "unlabelled/5.jpg")
    *_, doubt = list_images(tmp_path).remarks
    assert isinstance(doubt, Doubt)
    assert doubt == "labels are those of labels.csv: folders (cat, dog) were not taken for classes"


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (("images/2.jpg", "Unlabelled/3.jpg"), None),
        (("train/2.jpg", "extra/3.jpg"), None),
        (("Train/cat/2.jpg", "Train/dog/3.jpg"), "cat, dog"),
        (("cat/2.jpg", "dog/UNLABELED/3.jpg"), None),
    ],
)
def test_folders_that_would_be_no_classes_are_not_named_beside_a_table(
    tmp_path: Path, files: tuple[str, ...], named: str | None
) -> None:
    put(tmp_path, "1.jpg", *files)
    table(tmp_path, "path,label\n1.jpg,dog\n")
    doubts = [remark for remark in list_images(tmp_path).remarks if isinstance(remark, Doubt)]
    expected = f"labels are those of labels.csv: folders ({named}) were not taken for classes"
    assert doubts == ([expected] if named else [])


def test_parts_beside_a_table_are_parts(tmp_path: Path) -> None:
    names = ["a/1.jpg", "Test/2.jpg", "val/3.jpg", "train/4.jpg", "test.jpg", "a/test/5.jpg"]
    put(tmp_path, *names, "test/unlisted.jpg", "val/empty.jpg")
    rows = "".join(f"{name},cat\n" for name in names)
    table(tmp_path, f"path,label\n{rows}val/empty.jpg,\n")
    listing = list_images(tmp_path)
    assert found(listing) == {
        "Test/2.jpg": ("cat", "test"),
        "a/1.jpg": ("cat", "train"),
        "a/test/5.jpg": ("cat", "train"),
        "test.jpg": ("cat", "train"),
        "train/4.jpg": ("cat", "train"),
        "val/3.jpg": ("cat", "validation"),
    }
    assert listing.remarks == (
        "2 images for validation or test have no label in labels.csv and were left out",
    )


def test_rows_without_an_image_are_named_with_their_line(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg", "notes.txt")
    put(tmp_path, "notes.txt", data=b"text")
    table(tmp_path, "path,label\n1.jpg,cat\n\ngone.jpg,dog\nnotes.txt,dog\n/abs/1.jpg,\n")
    listing = list_images(tmp_path)
    assert labels(listing) == {"1.jpg": "cat"}
    assert problems(listing) == {
        "gone.jpg": "listed in labels.csv, line 4, but there is no such image",
        "notes.txt": "listed in labels.csv, line 5, but there is no such image",
        "/abs/1.jpg": "listed in labels.csv, line 6, but there is no such image",
    }


def test_a_row_that_is_there_twice_is_taken_once(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg")
    table(tmp_path, "path,label\n1.jpg,cat\n./1.jpg,cat\n")
    listing = list_images(tmp_path)
    assert labels(listing) == {"1.jpg": "cat"}
    assert is_clean(listing)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1.jpg,cat\n1.jpg,dog\n", r"gives '1.jpg' two labels, 'cat' and 'dog' \(line 3\): keep one"),
        ("1.jpg,\n./1.jpg,dog\n", r"gives '1.jpg' two labels, '' and 'dog' \(line 3\): keep one"),
        ("1.jpg,cat\n1.jpg,\n", r"gives '1.jpg' two labels, 'cat' and '' \(line 3\): keep one"),
        (",cat\n", "line 2, has no path"),
        ("1.jpg,cat, black\n", "line 2, has more cells than the first line: put quotes around text that"),
        ('1.jpg,"cat\n2.jpg,dog\n', r"is not a CSV file: .* \(line 3\)"),
        ('"1.jpg"x,cat\n', r"is not a CSV file: .* \(line 2\)"),
    ],
)
def test_a_table_that_contradicts_itself_or_is_damaged_is_refused(
    tmp_path: Path, rows: str, message: str
) -> None:
    put(tmp_path, "1.jpg", "2.jpg")
    table(tmp_path, "path,label\n" + rows)
    with pytest.raises(UserError, match=message):
        list_images(tmp_path)


def test_of_several_tables_one_must_be_named(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg")
    table(tmp_path, "path,label\n1.jpg,cat\n", "a.csv")
    table(tmp_path, "path;label\n1.jpg;dog\n", "b.CSV")
    with pytest.raises(
        UserError, match=r"holds several CSV files with path and label \(a.csv, b.CSV\): name the one"
    ):
        list_images(tmp_path)
    assert labels(list_images(tmp_path / "a.csv")) == {"1.jpg": "cat"}
    listing = list_images(tmp_path / "b.CSV")
    assert labels(listing) == {"1.jpg": "dog"}
    assert listing.remarks == ("1 other files are no images and were passed over: a.csv",)


def test_the_path_of_a_table_means_the_images_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "a/1.jpg", "2.jpg")
    path = table(tmp_path, "path,label\na/1.jpg,cat\n", "my labels.csv")
    listing = list_images(path)
    assert listing.root == tmp_path
    assert labels(listing) == {"2.jpg": None, "a/1.jpg": "cat"}
    assert listing.remarks == ("1 images are not listed in my labels.csv and were taken as unlabelled",)
    monkeypatch.chdir(tmp_path)
    assert list_images(Path("my labels.csv")).items == listing.items
    assert list_images(Path("my labels.csv")).remarks == listing.remarks


@pytest.mark.parametrize("text", ["file,class\ncat/1.jpg,lion\n", "cat/1.jpg,lion\n", "\npath,label\n", ""])
def test_a_table_without_the_columns_is_not_used_and_remarked(tmp_path: Path, text: str) -> None:
    put(tmp_path, "cat/1.jpg", "dog/2.jpg")
    path = table(tmp_path, text)
    listing = list_images(tmp_path)
    assert labels(listing) == {"cat/1.jpg": "cat", "dog/2.jpg": "dog"}
    assert listing.remarks == (
        "labels.csv does not begin with a line that names the columns path and label, so no label was read "
        "from it",
    )
    with pytest.raises(UserError, match="does not begin with a line that names the columns path and label"):
        list_images(path)


def test_a_table_deeper_down_is_not_used_and_remarked(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "dog/2.jpg")
    table(tmp_path / "cat", "path,label\n1.jpg,lion\n")
    listing = list_images(tmp_path)
    assert labels(listing) == {"cat/1.jpg": "cat", "dog/2.jpg": "dog"}
    assert listing.remarks == ("1 other files are no images and were passed over: cat/labels.csv",)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
@pytest.mark.parametrize("filler", [0, 3000])
def test_a_table_that_is_not_utf8_is_refused_and_not_passed_over(
    tmp_path: Path, encoding: str, filler: int
) -> None:
    put(tmp_path, "a/1.jpg", "b/2.jpg")
    path = table(tmp_path, f"path,label\n{'a/1.jpg,cat' * filler}\n{COMPOSED},x\n", encoding=encoding)
    for given_path in (tmp_path, path):
        with pytest.raises(UserError, match="is not text in UTF-8: save it as CSV UTF-8"):
            list_images(given_path)


def test_a_giant_line_is_no_table(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "dog/2.jpg")
    table(tmp_path, "x" * 300_000)
    assert "labels.csv does not begin" in list_images(tmp_path).remarks[0]


def test_a_folder_or_a_pipe_called_csv_is_no_table(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "dog.csv/2.jpg")
    os.mkfifo(tmp_path / "pipe.csv")
    assert labels(list_images(tmp_path)) == {"cat/1.jpg": "cat", "dog.csv/2.jpg": "dog.csv"}


# Links


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", "1.jpg", "more/2.jpg")
    root = tmp_path / "root"
    put(root, "cat/3.jpg", "dog/4.jpg")
    (root / "cat" / "link.jpg").symlink_to(tmp_path / "elsewhere" / "1.jpg")
    (root / "dog" / "linked").symlink_to(tmp_path / "elsewhere" / "more")
    (root / "bird").symlink_to(tmp_path / "elsewhere")
    listing = list_images(root)
    assert labels(listing) == {
        "bird/1.jpg": "bird",
        "bird/more/2.jpg": "bird",
        "cat/3.jpg": "cat",
        "cat/link.jpg": "cat",
        "dog/4.jpg": "dog",
        "dog/linked/2.jpg": "dog",
    }
    assert is_clean(listing)


def test_loops_of_links_end_and_are_named(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "dog/2.jpg")
    (tmp_path / "cat" / "up").symlink_to(tmp_path)
    (tmp_path / "cat" / "self").symlink_to(".")
    (tmp_path / "dog" / "other").symlink_to("../fish")
    (tmp_path / "fish").mkdir()
    (tmp_path / "fish" / "other").symlink_to("../dog")
    listing = list_images(tmp_path)
    assert labels(listing) == {"cat/1.jpg": "cat", "dog/2.jpg": "dog", "fish/other/2.jpg": "fish"}
    reason = "a link that leads back to a folder around it"
    assert problems(listing) == {
        "cat/self": reason,
        "cat/up": reason,
        "dog/other/other": reason,
        "fish/other/other": reason,
    }


def test_problems_come_in_the_order_of_names(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg")
    names = [f"cat/{number:02}" for number in range(30)]
    for name in sorted(names, key=lambda name: name[::-1]):
        (tmp_path / name).symlink_to(".")
    assert list(problems(list_images(tmp_path))) == names


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    """Those called images are listed, and named when they are read."""
    put(tmp_path, "cat/1.jpg")
    (tmp_path / "cat" / "broken.jpg").symlink_to("nowhere")
    (tmp_path / "cat" / "circle.jpg").symlink_to("circle.jpg")
    (tmp_path / "cat" / "broken").symlink_to("nowhere")
    (tmp_path / "cat" / "circle").symlink_to("circle")
    listing = list_images(tmp_path)
    assert list(labels(listing)) == ["cat/1.jpg", "cat/broken.jpg", "cat/circle.jpg"]
    assert problems(listing) == {
        "cat/broken": "broken link",
        "cat/circle": "cannot be opened: Too many levels of symbolic links",
    }


def test_a_link_to_a_table_is_a_table_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    put(root, "a/1.jpg", "b/2.jpg")
    table(tmp_path, "path,label\na/1.jpg,cat\nb/2.jpg,dog\n", "real.csv")
    (root / "labels.csv").symlink_to("../real.csv")
    assert labels(list_images(root)) == {"a/1.jpg": "cat", "b/2.jpg": "dog"}
    (tmp_path / "real.csv").unlink()
    with pytest.raises(UserError, match=r"labels.csv' may hold the labels but cannot be read"):
        list_images(root)


def test_a_folder_called_an_image_is_named_and_what_is_in_it_is_listed(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "cat/x.jpg/2.jpg")
    listing = list_images(tmp_path)
    assert labels(listing) == {"cat/1.jpg": "cat", "cat/x.jpg/2.jpg": "cat"}
    assert problems(listing) == {"cat/x.jpg": "a folder, not an image"}


def test_a_pipe_does_not_stop_the_listing(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg")
    os.mkfifo(tmp_path / "cat" / "pipe")
    listing = list_images(tmp_path)
    assert labels(listing) == {"cat/1.jpg": "cat"}
    assert listing.remarks == ("1 other files are no images and were passed over: cat/pipe",)


# Rights


def test_folders_and_files_that_may_not_be_opened_are_named(here: Path) -> None:
    put(here, "cat/1.jpg", "cat/photo", "cat/locked/2.jpg", "dog/3.jpg", "bird/4.jpg")
    locked = [here / name for name in ("cat/1.jpg", "cat/photo", "cat/locked", "bird")]
    with without_rights(*locked):
        listing = list_images(here)
    assert labels(listing) == {"cat/1.jpg": "cat", "dog/3.jpg": "dog"}
    assert problems(listing) == {
        "bird": "cannot be opened: Permission denied",
        "cat/locked": "cannot be opened: Permission denied",
        "cat/photo": "cannot be opened: Permission denied",
    }
    assert listing.empty_folders == ("bird",)


def test_a_folder_that_may_be_listed_but_not_entered_loses_nothing(here: Path) -> None:
    put(here, "cat/1.jpg", "cat/photo", "cat/deep/2.jpg", "dog/3.jpg")
    (here / "cat" / "link").symlink_to("deep")
    with without_rights(here / "cat", mode=0o444):
        listing = list_images(here)
    assert labels(listing) == {"cat/1.jpg": "cat", "dog/3.jpg": "dog"}
    assert problems(listing) == dict.fromkeys(
        ("cat/deep", "cat/link", "cat/photo"), "cannot be opened: Permission denied"
    )


@pytest.mark.parametrize("mode", [0o000, 0o111])
def test_images_in_a_folder_that_may_not_be_opened_are_refused(here: Path, mode: int) -> None:
    put(here, "root/cat/1.jpg")
    with (
        without_rights(here / "root", mode=mode),
        pytest.raises(UserError, match="root' cannot be opened: Permission denied"),
    ):
        list_images(here / "root")
    with (
        without_rights(here / "root"),
        pytest.raises(UserError, match="cat' cannot be opened: Permission denied"),
    ):
        list_images(here / "root" / "cat")


def test_a_table_that_may_not_be_read_is_refused_and_not_passed_over(here: Path) -> None:
    put(here, "a/1.jpg", "b/2.jpg")
    path = table(here, "path,label\na/1.jpg,cat\nb/2.jpg,dog\n")
    for given_path in (here, path):
        with (
            without_rights(path),
            pytest.raises(UserError, match=r"may hold the labels but cannot be read \(Permission denied\)"),
        ):
            list_images(given_path)


# Names that are no text


def odd(name: bytes) -> str:
    return os.fsdecode(name)


def test_bytes_that_are_not_utf8_are_names_like_others(tmp_path: Path) -> None:
    put(tmp_path, odd(b"caf\xe9/\xff1.jpg"), "dog/2.jpg")
    put(tmp_path, odd(b"dog/n\xf6te"), data=b"text")
    (tmp_path / odd(b"dog/l\xf6\xf6p")).symlink_to(".")
    listing = list_images(tmp_path)
    assert labels(listing) == {odd(b"caf\xe9/\xff1.jpg"): odd(b"caf\xe9"), "dog/2.jpg": "dog"}
    assert printable(odd(b"caf\xe9/\xff1.jpg")) == "caf\\xe9/\\xff1.jpg"
    assert listing.remarks == ("1 other files are no images and were passed over: dog/n\\xf6te",)
    assert list(problems(listing)) == [odd(b"dog/l\xf6\xf6p")]


def test_a_table_with_a_name_that_is_no_text_is_named_in_text(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg", "2.jpg", odd(b"\xff.jpg"))
    table(tmp_path, "path,label\n1.jpg,cat\ngone.jpg,dog\n", odd(b"l\xe4bels.csv"))
    listing = list_images(tmp_path)
    assert labels(listing) == {"1.jpg": "cat", "2.jpg": None, odd(b"\xff.jpg"): None}
    texts = [*listing.remarks, *problems(listing).values()]
    assert len(texts) == 2
    for text in texts:
        assert "l\\xe4bels.csv" in text
        text.encode()


# Whatever the data

names_of_classes = st.sampled_from(["cat", "dog", "3", "кошка", "cat dog", "Test 1", "trains", "x.y"])
names_of_files = st.sampled_from(
    ["1.jpg", "2.PNG", "a b.jpeg", "猫.webp", "10.gif", "x.tar.bmp", "no suffix"]
)
names_of_folders = st.lists(st.sampled_from(["a", "b", "2019", "cat", "test", "val"]), max_size=2)
unlabelled_words = st.sampled_from(["unlabelled", "UNLABELED"])


@st.composite
def placed_files(draw: st.DrawFn) -> tuple[str, tuple[str | None, Part]]:
    """A file with its name, and the class and part that the name stands for."""
    inner, file = draw(names_of_folders), draw(names_of_files)
    where = draw(st.sampled_from(["class", "unlabelled", "unlabelled deep", "test", "loose"]))
    label = draw(names_of_classes)
    word = draw(unlabelled_words)
    folders: dict[str, tuple[list[str], str | None, Part]] = {
        "class": ([label, *inner], label, "train"),
        "unlabelled": ([word, *inner], None, "train"),
        "unlabelled deep": ([label, *inner, word], None, "train"),
        "test": (["test", label, *inner], label, "test"),
        "loose": ([], None, "train"),
    }
    path, meaning, part = folders[where]
    return "/".join([*path, file]), (meaning, part)


def create_all(root: Path, names: Iterable[str]) -> None:
    put(root, *names)


def in_fresh_folder(make: Callable[[Path], None]) -> Listing:
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        return list_images(Path(folder))


@given(files=st.lists(placed_files(), max_size=12, unique_by=lambda file: file[0]), data=st.data())
def test_any_files_are_listed_with_their_class_in_whatever_order_they_were_made(
    files: list[tuple[str, tuple[str | None, Part]]], data: st.DataObject
) -> None:
    expected = dict(files)
    first = in_fresh_folder(lambda root: create_all(root, expected))
    order = data.draw(st.permutations(list(expected)))
    second = in_fresh_folder(lambda root: create_all(root, order))
    assert found(first) == expected
    assert first.items == second.items
    assert first.remarks == second.remarks
    assert first.problems == second.problems == ()
    assert first.empty_folders == second.empty_folders == ()


@given(files=st.lists(placed_files(), max_size=12, unique_by=lambda file: file[0]), data=st.data())
def test_any_table_gives_exactly_its_labels_in_whatever_order_its_rows_stand(
    files: list[tuple[str, tuple[str | None, Part]]], data: st.DataObject
) -> None:
    words = st.one_of(st.just(""), names_of_classes)
    expected = {name: data.draw(words) for name, _ in files}
    rows = data.draw(st.permutations(list(expected.items())))
    decomposed = data.draw(st.booleans())
    delimiter = data.draw(st.sampled_from(",;\t"))

    def make(root: Path) -> None:
        create_all(root, expected)
        text = "".join(f"{name}{delimiter}{label}\n" for name, label in rows)
        text = unicodedata.normalize("NFD" if decomposed else "NFC", text)
        table(root, f"path{delimiter}label\n{text}")

    listing = in_fresh_folder(make)
    usable = {
        name: label or None for name, label in expected.items() if label or not name.startswith("test/")
    }
    assert labels(listing) == {
        name: None if label is None else unicodedata.normalize("NFC", label) for name, label in usable.items()
    }
    assert not listing.problems


def test_photographs_in_formats_that_are_not_read_are_named(tmp_path: Path) -> None:
    """A telephone's HEIC files are no "other files": somebody counts on them."""
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "IMG_1.HEIC").write_bytes(b"\0\0\0\x18ftypheic" + bytes(50))
    (tmp_path / "cat" / "1.png").write_bytes(b"\x89PNG")
    listing = list_images(tmp_path)
    assert [item.name for item in listing.items] == ["cat/1.png"]
    assert [(p.path, p.reason) for p in listing.problems] == [
        ("cat/IMG_1.HEIC", "HEIC is not read: save it as JPEG or PNG")
    ]
    assert not listing.remarks


@pytest.mark.parametrize("name", ["testing", "tests", "unlabeld", "Unlabelled images", "trains", "cattle"])
def test_a_folder_that_is_nearly_a_special_one_is_doubted(tmp_path: Path, name: str) -> None:
    for folder in ("cat", "dog", name):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.png").write_bytes(b"\x89PNG")
    doubts = [remark for remark in list_images(tmp_path).remarks if isinstance(remark, Doubt)]
    assert (f"'{name}' was taken for a class" in " ".join(doubts)) == (name != "cattle")


def test_capitals_in_a_table_may_differ_where_one_image_is_meant(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg", "B.jpg"):
        (tmp_path / name).write_bytes(b"\xff\xd8\xff")
    (tmp_path / "labels.csv").write_text("path,label\nA.JPG,cat\nb.jpg,dog\n")
    labels = {item.name: item.label for item in list_images(tmp_path).items}
    assert labels == {"a.jpg": "cat", "b.jpg": "dog", "B.jpg": None}


def test_a_text_that_begins_like_a_bitmap_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(b"\x89PNG")
    (tmp_path / "README").write_text("BMW and other cars")
    assert [item.name for item in list_images(tmp_path).items] == ["cat/1.png"]
