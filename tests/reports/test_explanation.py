"""The picture of an explanation shows what was found out, whatever the classes are called."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from manigraph.reports.explanation import explanation_figure, in_words, write_explanation
from manigraph.reports.words import percent, shown

Picture = npt.NDArray[np.uint8]
STRANGE = ("$\\frac{a}$ & 100 %", "a_very_long_class_name_of_a_rare_orchid_from_the_north", "猫 cat\n2")


def made_up(
    names: tuple[str, ...] = ("cat", "dog", "cow"), per_class: int = 4, neighbours: int = 5
) -> dict[str, Any]:
    random = np.random.default_rng(0)
    C = len(names)
    attention = random.dirichlet(np.full(C * per_class, 0.3))
    probs, before = random.dirichlet(np.full(C, 0.2)), random.dirichlet(np.full(C, 0.2))
    heard = attention.reshape(C, per_class).sum(axis=1)

    def near() -> dict[str, Any]:
        return {
            part: [
                {
                    "index": int(random.integers(8)),
                    "path": None,
                    "class": names[n % C] if part == "labelled" else None,
                    "predicted": names[n % C],
                    "cosine": 0.9 - n / 10,
                }
                for n in range(neighbours)
            ]
            for part in ("labelled", "unlabelled")
        }

    return {
        "run": "mine",
        "algorithm": "manifold_graph",
        "image": {"name": "IMG_1.jpg", "index": None, "class": None, "training_part": None},
        "predicted": {"class": names[int(probs.argmax())], "probability": float(probs.max())},
        "predicted_without_graph": {"class": names[int(before.argmax())], "probability": float(before.max())},
        "classes": [
            {
                "class": names[c],
                "probability": float(probs[c]),
                "probability_without_graph": float(before[c]),
                "attention": float(heard[c]),
            }
            for c in range(C)
        ],
        "graph": {"nodes": "prototypes", "per_class": per_class, "attention": attention.tolist()},
        "without_graph": None,
        "prototypes": [
            {
                "number": int(p),
                "class": names[int(p) // per_class],
                "number_in_class": int(p) % per_class + 1,
                "attention": float(attention[p]),
                "cosine": 0.8,
                "nearest": near(),
            }
            for p in np.argsort(-attention)[:3]
        ],
        "nearest": near(),
        "without_training_images": None,
    }


def pictures(colour: bool = True) -> dict[int, Picture]:
    random = np.random.default_rng(1)
    shape = (24, 24, 3) if colour else (24, 24)
    return {i: random.integers(0, 255, shape, dtype=np.uint8) for i in range(8)}


def without_graph(facts: dict[str, Any]) -> dict[str, Any]:
    classes = [entry | {"probability_without_graph": None, "attention": None} for entry in facts["classes"]]
    nothing: dict[str, Any] = {"graph": None, "predicted_without_graph": None, "prototypes": []}
    return facts | nothing | {"classes": classes, "without_graph": "pi_vat has no graph"}


def texts(figure: Any) -> list[str]:
    own = [text.get_text() for text in figure.texts]
    return own + [text.get_text() for axes in figure.axes for text in axes.texts]


def bars(axes: Any) -> list[float]:
    """Lengths of the bars in front."""
    return [bar.get_width() for bar in axes.containers[1]]


def test_bars_are_probabilities_with_and_without_the_graph_and_attention() -> None:
    facts = made_up()
    figure = explanation_figure(facts, pictures()[0], pictures())
    order = sorted(facts["classes"], key=lambda entry: -entry["probability"])
    for axes, key in zip(
        figure.axes[1:4], ("probability", "probability_without_graph", "attention"), strict=True
    ):
        np.testing.assert_allclose(bars(axes), [entry[key] for entry in order])
    strip = figure.axes[4]
    np.testing.assert_allclose([bar.get_height() for bar in strip.containers[0]], facts["graph"]["attention"])
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), pictures()[0])


def test_every_row_shows_its_images_and_their_classes() -> None:
    facts = made_up()
    figure = explanation_figure(facts, pictures()[0], pictures())
    drawn = [axes.images[0].get_array() for axes in figure.axes[5:]]
    rows = [facts["nearest"], *(prototype["nearest"] for prototype in facts["prototypes"])]
    expected = [image for row in rows for part in ("labelled", "unlabelled") for image in row[part]]
    assert len(drawn) == len(expected) == 40
    for picture, image in zip(drawn, expected, strict=True):
        np.testing.assert_array_equal(picture, pictures()[image["index"]])
    captions = [text for text in figure.texts if text.get_fontsize() == 6]
    assert [text.get_text() for text in captions] == [i["class"] or i["predicted"] for i in expected]
    agreeing = {text.get_color() for text in captions if text.get_text() == facts["predicted"]["class"]}
    others = {text.get_color() for text in captions if text.get_text() != facts["predicted"]["class"]}
    assert len(agreeing) == len(others) == 1
    assert agreeing != others


def test_of_a_hundred_classes_those_that_matter_are_named() -> None:
    names = tuple(f"class {number}" for number in range(100))
    facts = made_up(names, per_class=20)
    facts["classes"][77]["attention"] = 0.9
    facts["classes"][78]["probability_without_graph"] = 0.95
    figure = explanation_figure(facts, pictures()[0], pictures())
    said = texts(figure)
    assert {"class 77", "class 78", facts["predicted"]["class"], "95 others"} <= set(said)
    for axes in figure.axes[1:3]:
        assert len(bars(axes)) == 6
    assert sum(bars(figure.axes[1])) == pytest.approx(1)
    assert not figure.axes[4].containers  # 2,000 prototypes are an outline


@pytest.mark.parametrize("graph", [True, False])
def test_strange_names_are_text(graph: bool, tmp_path: Path) -> None:
    facts = made_up(STRANGE)
    facts["image"]["name"] = "$x$ " + "long " * 40
    if not graph:
        facts = without_graph(facts)
    write_explanation(facts, pictures()[0], pictures(), tmp_path / "one.png")  # warnings are errors here
    assert "$\\frac{a}$" in " ".join(texts(explanation_figure(facts, None, {})))
    with Image.open(tmp_path / "one.png") as picture:
        assert picture.width > 1000


def test_names_are_cut_in_the_middle_and_have_no_characters_that_cannot_be_drawn() -> None:
    assert shown("cat", 3) == "cat"
    assert shown("abcdefghij", 7) == "abcd…ij"
    assert len(shown(STRANGE[1], 20)) == 20
    assert shown("猫 cat\n\t2\x00", 20) == "□ cat 2□"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (0.001, "< 1 %"), (0.5, "50 %"), (0.9949, "99 %"), (0.9999, "> 99 %"), (1.0, "100 %")],
)
def test_nothing_is_called_certain_or_impossible_that_is_not(share: float, text: str) -> None:
    assert percent(share) == text


def test_without_a_graph_there_are_probabilities_and_near_images_only() -> None:
    figure = explanation_figure(without_graph(made_up()), pictures(False)[0], pictures(False))
    assert len(figure.axes) == 1 + 1 + 10
    assert any("pi_vat has no graph" in text for text in texts(figure))
    assert "There is no graph to look into: pi_vat has no graph." in in_words(without_graph(made_up()))


def test_without_training_images_it_says_so() -> None:
    facts = made_up() | {"nearest": None, "without_training_images": "they are gone"}
    facts["prototypes"] = [prototype | {"nearest": None} for prototype in facts["prototypes"]]
    figure = explanation_figure(facts, pictures()[0], {})
    assert len(figure.axes) == 5
    assert any("they are gone" in text for text in texts(figure))
    assert "they are gone" in in_words(facts)


def test_vectors_have_places_without_pictures() -> None:
    figure = explanation_figure(made_up(), None, {})
    assert not any(axes.images for axes in figure.axes)


def test_in_words() -> None:
    facts = made_up()
    heard = {"cat": 0.7, "dog": 0.2, "cow": 0.1}
    facts["classes"] = [{"class": name, "attention": share} for name, share in heard.items()]
    facts["predicted"] = {"class": "cat", "probability": 0.91}
    facts["predicted_without_graph"] = {"class": "dog", "probability": 0.6}
    assert in_words(facts) == (
        "IMG_1.jpg is taken for cat (91 %). Of its attention to all prototypes, 70 % goes to those of cat "
        "and 20 % to those of dog. Without the graph it would be dog (60 %). Of the nearest training images, "
        "2 of 5 labelled ones have this class and 2 of 5 unlabelled ones are taken for it too."
    )


def test_the_same_file_the_next_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_explanation(made_up(), pictures()[0], pictures(), tmp_path / f"{name}.png")
    one, two = (hashlib.sha256((tmp_path / f"{name}.png").read_bytes()) for name in ("one", "two"))
    assert one.hexdigest() == two.hexdigest()
