"""The figures show the data: marks in their places and colours, edges in their order."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manigraph.reports.drawing import TEN_COLOURS, class_colours
from manigraph.reports.manifold import as_text, connectivity_figure, in_words, manifold_figure, write_figures


def figure_data(num_classes: int = 3, images: int = 24, per_class: int = 2) -> dict[str, Any]:
    random = np.random.default_rng(0)
    classes = np.sort(np.arange(images) % num_classes)
    nodes = np.repeat(np.arange(num_classes), per_class)
    predicted = classes.copy()
    predicted[0] = num_classes - 1
    to_nodes = random.random((images, len(nodes)))
    among = random.random((len(nodes), len(nodes)))
    np.fill_diagonal(among, 0)
    return {
        "run": "made up",
        "algorithm": "manifold_graph",
        "data": "digits",
        "labels": 20,
        "seed": 0,
        "part": "validation",
        "class_names": [f"class {number}" for number in range(num_classes)],
        "without_graph": None,
        "images": {
            "class": classes.tolist(),
            "predicted": predicted.tolist(),
            "predicted_before": classes.tolist(),
            "before": random.normal(size=(images, 2)).tolist(),
            "after": random.normal(size=(images, 2)).tolist(),
        },
        "nodes": {
            "kind": "prototypes",
            "class": nodes.tolist(),
            "before": random.normal(size=(len(nodes), 2)).tolist(),
            "after": random.normal(size=(len(nodes), 2)).tolist(),
        },
        "adjacency": {
            "images": (to_nodes / to_nodes.sum(1, keepdims=True)).tolist(),
            "prototypes": (among / among.sum(1, keepdims=True)).tolist(),
        },
        "summary": {
            "images": images,
            "error": 4.2,
            "error_before": 5.3,
            "image_own_class": 0.4,
            "image_own_class_by_chance": 0.33,
            "prototype_own_class": 0.5,
            "prototype_own_class_by_chance": 0.2,
        },
    }


def without_graph(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"nodes": None, "adjacency": None, "without_graph": "pi_vat has no graph"}


def test_circles_and_stars_are_where_the_data_says_in_the_colour_of_their_class() -> None:
    data = figure_data()
    figure = manifold_figure(data)
    for axes, side in zip(figure.axes, ("before", "after"), strict=True):
        drawn = {marks.get_label(): marks for marks in axes.collections}
        right, wrong, stars = (
            drawn[name] for name in ("validation image", "wrongly classified", "prototype")
        )
        places, classes = np.array(data["images"][side]), np.array(data["images"]["class"])
        first_wrong = [0] if side == "after" else []
        others = [number for number in range(len(places)) if number not in first_wrong]
        np.testing.assert_allclose(right.get_offsets(), places[others])
        np.testing.assert_allclose(wrong.get_offsets().reshape(-1, 2), places[first_wrong])
        np.testing.assert_allclose(stars.get_offsets(), data["nodes"][side])
        for marks, their_classes in ((right, classes[others]), (stars, data["nodes"]["class"])):
            colours = marks.get_facecolor()[:, :3]
            expected = [tuple(bytes.fromhex(TEN_COLOURS[number][1:])) for number in their_classes]
            np.testing.assert_allclose(colours * 255, expected, atol=1e-6)
        assert sorted(text.get_text() for text in axes.texts) == data["class_names"]
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["Before the graph: 5.3 % error", "After the graph: 4.2 % error"]


def test_names_stand_where_their_class_is_densest() -> None:
    data = figure_data()
    (axes,) = manifold_figure(without_graph(data)).axes
    places, classes = np.array(data["images"]["before"]), np.array(data["images"]["class"])
    for text in axes.texts:
        number = data["class_names"].index(text.get_text())
        own = places[classes == number]
        total_distances = [sum(float(np.hypot(*(place - other))) for other in own) for place in own]
        np.testing.assert_allclose(text.xy, own[np.argmin(total_distances)])
    assert axes.get_title() == "Features: 4.2 % error"


def test_edges_are_drawn_row_by_row_by_times_an_equal_edge() -> None:
    data = figure_data()
    figure = connectivity_figure(data)
    among, images = (axes.images[0] for axes in figure.axes[:2])
    np.testing.assert_allclose(among.get_array(), 6 * np.array(data["adjacency"]["prototypes"]))
    np.testing.assert_allclose(images.get_array(), 6 * np.array(data["adjacency"]["images"]))
    assert among.get_extent() == [0, 6, 6, 0]  # first row on top
    deeper = among.cmap(among.norm([0.1, 1.0, 2.0]))[:, :3].sum(axis=1)
    assert deeper[0] > deeper[1] > deeper[2]
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == data["class_names"]
    np.testing.assert_allclose(figure.axes[1].get_yticks(), [4, 12, 20])  # the middle of 8 images each
    np.testing.assert_allclose(figure.axes[1].get_xticks(), [1, 3, 5])
    assert "40 % of their weight to their own class (by chance 33 %)" in figure.axes[1].get_title()


def test_nodes_that_hear_nothing_have_no_panel() -> None:
    data = figure_data()
    data["adjacency"]["prototypes"] = None
    data["summary"]["prototype_own_class"] = None
    figure = connectivity_figure(data)
    assert len(figure.axes) == 2  # images, and what their colours mean
    assert "among" not in in_words(data)


def test_a_hundred_classes_are_not_named_but_drawn() -> None:
    data = figure_data(num_classes=100, images=300)
    assert not manifold_figure(data).axes[0].texts
    ticks = [label.get_text() for label in connectivity_figure(data).axes[0].get_xticklabels()]
    assert ticks == [str(number) for number in range(0, 100, 10)]
    assert len(set(class_colours(100))) == 100


@pytest.mark.parametrize("graph", [True, False])
def test_files_are_written_and_the_same_the_next_time(graph: bool, tmp_path: Path) -> None:
    data = figure_data() if graph else without_graph(figure_data())
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        written = write_figures(data, folder)
        names = ["manifold", "connectivity"] if graph else ["manifold"]
        assert written == [folder / f"{name}.{suffix}" for name in names for suffix in ("png", "svg")]
        assert sorted(folder.iterdir()) == sorted(written)
    for path in folders[0].iterdir():
        assert path.read_bytes() == (folders[1] / path.name).read_bytes()
    with Image.open(folders[0] / "manifold.png") as image:
        assert image.width > 700


def test_the_text_is_json_with_a_line_for_each_part() -> None:
    data = figure_data()
    text = as_text(data)
    assert json.loads(text) == data
    assert len(text.splitlines()) == len(data) + 2
