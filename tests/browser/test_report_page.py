"""The report in a real browser: it opens from disk; hovering, zooming, switching and sorting work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manigraph.reports.comparison import comparison_page
from manigraph.reports.facts import RunFacts
from manigraph.reports.html import render
from manigraph.reports.run_report import run_page
from tests.browser.conftest import ARTEFACTS
from tests.reports.made_up import make_run

Open = Callable[..., Any]


def write(page: dict[str, Any], path: Path) -> str:
    path.write_text(render(page), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    return write(run_page(RunFacts.read(make_run(folder))), folder / "report.html")


def place_of_point(page: Any, point: int) -> tuple[float, float]:
    x, y = page.evaluate(
        "point => { const canvas = document.querySelector('#map canvas');"
        "const box = canvas.getBoundingClientRect(), [x, y] = canvas.figure.at(point);"
        "return [box.left + x, box.top + y]; }",
        point,
    )
    return x, y


def alone(page: Any) -> int:
    """A point that no other one lies upon."""
    found = page.evaluate(
        "() => { const map = document.querySelector('#map canvas').figure;"
        "const far = (a, b) => Math.hypot(map.at(a)[0] - map.at(b)[0], map.at(a)[1] - map.at(b)[1]) > 12;"
        "const all = [...Array(map.total).keys()];"
        "return all.slice(0, map.count).find(a => all.every(b => a === b || far(a, b))); }"
    )
    return int(found)


def test_hovering_a_point_shows_its_image_and_classes(open_page: Open, address: str) -> None:
    page = open_page(address)
    page.locator("#map .stage").scroll_into_view_if_needed()
    point = alone(page)
    page.mouse.move(*place_of_point(page, point))
    tip = page.locator("#map .tip")
    tip.wait_for(state="visible")
    classes = ["cat", "dog", "fox"]
    true = classes[page.evaluate("p => document.querySelector('#map canvas').figure.classes[p]", point)]
    assert f"is {true}" in tip.inner_text()
    assert "taken for" in tip.inner_text()
    assert f"image {100 + point}" in tip.inner_text()
    assert "data:image/webp" in tip.locator(".thumb").get_attribute("style")


def test_the_map_zooms_by_wheel_buttons_and_keys(open_page: Open, address: str) -> None:
    page = open_page(address)
    stage = page.locator("#map .stage")
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -1)  # scrolls the page, as long as nobody asked for more
    assert stage.get_attribute("data-scale") is None
    page.locator("#map canvas").click()
    page.mouse.wheel(0, -400)
    page.wait_for_function("() => Number(document.querySelector('#map .stage').dataset.scale) > 1.5")
    page.get_by_role("button", name="Whole map").click()
    assert float(stage.get_attribute("data-scale")) == 1
    page.get_by_role("button", name="Zoom in").click()
    assert float(stage.get_attribute("data-scale")) == pytest.approx(1.6)
    page.locator("#map canvas").focus()
    page.keyboard.press("0")
    assert float(stage.get_attribute("data-scale")) == 1


def test_before_and_after_the_graph(open_page: Open, address: str) -> None:
    page = open_page(address)
    after = place_of_point(page, 3)
    page.get_by_label("before the graph").check()
    page.wait_for_function("() => document.querySelector('#map .stage').dataset.side === 'before'")
    assert place_of_point(page, 3) != after


def test_classes_and_mistakes_can_be_singled_out(open_page: Open, address: str) -> None:
    page = open_page(address)
    stage = page.locator("#map .stage")
    everything = int(stage.get_attribute("data-drawn"))
    assert everything == 60
    button = page.locator("#map .legend button").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    without = int(stage.get_attribute("data-drawn"))
    assert 0 < without < everything
    button.click()
    page.get_by_label("mistakes only").check()
    assert int(stage.get_attribute("data-drawn")) == 15  # a quarter are wrong


def test_what_is_said_about_a_point_ends_when_it_is_hidden(open_page: Open, address: str) -> None:
    page = open_page(address)
    page.locator("#map canvas").focus()
    page.keyboard.press("ArrowRight")
    tip = page.locator("#map .tip")
    tip.wait_for(state="visible")
    for button in page.locator("#map .legend button").all():
        button.click()
    tip.wait_for(state="hidden")


def test_paper_is_white_though_the_screen_is_dark(open_page: Open, address: str) -> None:
    page = open_page(address, dark=True)
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_arrow_keys_go_from_image_to_image(open_page: Open, address: str) -> None:
    page = open_page(address)
    page.locator("#map canvas").focus()
    seen = set()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
        seen.add(page.locator("#map .readout").inner_text())
    assert len(seen) >= 2
    assert all("is " in text or "prototype of" in text for text in seen)


@pytest.mark.parametrize("name", ["among", "images", "by_class", "confusion"])
def test_hovering_a_matrix_says_its_value(open_page: Open, address: str, name: str) -> None:
    page = open_page(address)
    stage = page.locator(f"[data-matrix={name}]")
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.2 * box["height"])
    text = stage.locator("xpath=..").locator(".readout").inner_text()
    assert "%" in text
    assert "→" in text or name == "confusion"
    assert (
        page.locator(f"[data-matrix={name}] canvas")
        .get_attribute("aria-label")
        .startswith(stage.locator("xpath=..").locator("h3").inner_text())
    )
    cell = page.evaluate("n => document.querySelector(`[data-matrix=${n}] canvas`).figure.cell", name)
    weight = page.evaluate(
        "([n, row, column]) => { const m = document.querySelector(`[data-matrix=${n}] canvas`).figure;"
        "return m.weights[row * m.columns + column]; }",
        [name, *cell],
    )
    assert f"{100 * weight:.{1 if weight < 0.0995 else 0}f} %" in text


def test_curves_zoom_by_dragging_and_lines_can_be_hidden(open_page: Open, address: str) -> None:
    page = open_page(address)
    chart = page.locator("[data-chart=terms]")
    chart.scroll_into_view_if_needed()
    low, high = float(chart.get_attribute("data-from")), float(chart.get_attribute("data-to"))
    assert (low, high) == (2, 40)
    box = chart.locator("svg").bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.up()
    assert 2 < float(chart.get_attribute("data-from")) < float(chart.get_attribute("data-to")) < 40
    chart.get_by_role("button", name="Whole run").click()
    assert float(chart.get_attribute("data-to")) == high
    lines = int(chart.get_attribute("data-lines"))
    chart.locator(".legend button").first.click()
    assert int(chart.get_attribute("data-lines")) == lines - 1
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + box["height"] / 2)
    assert chart.locator(".readout").inner_text().startswith("step ")


def test_tables_sort(open_page: Open, address: str) -> None:
    page = open_page(address)
    table = page.locator("#errors table")
    button = table.get_by_role("button", name="error")

    def errors() -> list[float]:
        cells = table.locator("tbody tr td:nth-child(2)").all()
        return [float(cell.get_attribute("data-value")) for cell in cells]

    button.click()
    assert errors() == sorted(errors())
    assert table.locator("th[aria-sort=ascending]").count() == 1
    button.click()
    assert errors() == sorted(errors(), reverse=True)


def test_light_and_dark_can_be_switched(open_page: Open, address: str) -> None:
    page = open_page(address)
    colour = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate(colour) != light


def test_nothing_is_wider_than_a_phone(open_page: Open, address: str) -> None:
    page = open_page(address, width=390, height=800, touch=True)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_markup_in_class_names_is_shown_as_text(open_page: Open, tmp_path: Path) -> None:
    names = ("<b>bold</b>", "</script><script>document.title='taken over'</script>", "ünï “quoted”")
    page = open_page(
        write(run_page(RunFacts.read(make_run(tmp_path, class_names=names))), tmp_path / "r.html")
    )
    assert page.title() == "Manifold Graph on blobs, 20 labels"
    assert page.locator("#map .legend button").all_inner_texts() == list(names)
    assert page.locator("#errors tbody td:first-child").all_inner_texts() == list(names)


def test_ten_thousand_points_and_a_hundred_classes(open_page: Open, tmp_path: Path) -> None:
    names = tuple(f"class {number}" for number in range(100))
    run = make_run(tmp_path, class_names=names, images=10_000, per_class=20)
    page = open_page(write(run_page(RunFacts.read(run)), tmp_path / "r.html"))
    assert int(page.locator("#map .stage").get_attribute("data-drawn")) == 10_000
    page.get_by_label("Find a class").first.fill("class 42")
    drawn = int(page.locator("#map .stage").get_attribute("data-drawn"))
    assert 0 < drawn < 1000
    assert page.locator("#map .legend button:visible").all_inner_texts() == ["class 42"]
    assert page.locator("#gallery .class-row").count() == 100


def test_several_runs_side_by_side(open_page: Open, tmp_path: Path) -> None:
    runs = [
        RunFacts.read(
            make_run(
                tmp_path,
                f"{method}-{labels}-{seed}",
                algorithm=method,
                labels=labels,
                seed=seed,
                error=error + seed + 100 / labels + (0.1 * seed if method == "pi_vat" else 0),
            )
        )
        for method, error in (("pi_vat", 10.0), ("supervised", 30.5), ("manifold_graph", 8.0))
        for labels in (20, 50)
        for seed in (0, 1, 2)
    ]
    page = open_page(write(comparison_page(runs), tmp_path / "comparison.html"))
    chart = page.locator("[data-chart=labels]")
    assert chart.get_attribute("data-lines") == "3"
    assert page.locator("#summary tbody tr").count() == 3
    assert page.locator("#summary strong").count() == 2
    page.screenshot(path=_artefact("comparison.png"), full_page=True)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("device", "width"), [("desktop", 1280), ("tablet", 820), ("phone", 390)])
def test_screenshots_are_kept(open_page: Open, address: str, device: str, width: int, dark: bool) -> None:
    page = open_page(address, width=width, dark=dark)
    path = _artefact(f"report-{device}-{'dark' if dark else 'light'}.png")
    page.screenshot(path=path, full_page=True)
    assert Path(path).stat().st_size > 20_000


def _artefact(name: str) -> str:
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    return str(ARTEFACTS / name)
