"""Pages to look at: one HTML file that needs no network and no other file."""

import json
from importlib import resources
from typing import Any

from manigraph import __version__

WATCH_SECONDS = 3.0
"""How often a page that is served while training asks for itself again."""

SECTIONS = {
    "run": (
        ("summary", "Summary"),
        ("map", "Map"),
        ("edges", "Connectivity"),
        ("gallery", "Prototypes"),
        ("curves", "Curves"),
        ("errors", "Errors"),
        ("mistakes", "Mistakes"),
        ("data", "Data"),
        ("settings", "Settings"),
    ),
    "comparison": (("summary", "Summary"), ("labels", "Labels"), ("curves", "Curves"), ("runs", "Runs")),
}


def render(page: dict[str, Any], *, watch: bool = False) -> str:
    """The page of one run or of several, as `run_page` or `comparison_page` made it.

    Args:
        page: What is shown.
        watch: Let the page ask for itself again, for a server to answer.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("manigraph.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates = resources.files("manigraph.reports") / "templates"
    # A "<" in data could end the script element that holds it.
    data = json.dumps(page["figures"], ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    body = environment.get_template("report.html").render(
        page=page,
        version=__version__,
        watch=WATCH_SECONDS if watch else None,
        css=Markup((templates / "report.css").read_text(encoding="utf-8")),
        script=Markup((templates / "report.js").read_text(encoding="utf-8")),
        figures=Markup(data),
        sections=[(name, title) for name, title in SECTIONS[page["kind"]] if name in present(page)],
    )
    return body + "\n"


def present(page: dict[str, Any]) -> set[str]:
    """Sections that a page has."""
    if page["kind"] == "comparison":
        has_labels = bool(page["figures"]["by_labels"])
        return {"summary", "curves", "runs"} | ({"labels"} if has_labels else set())
    optional = {
        "map": page["has_map"],
        "edges": page["edges"],
        "gallery": page["gallery"],
        "errors": page["tables"],
        "mistakes": page["mistakes"],
        "data": page["data"],
    }
    return {"summary", "curves", "settings"} | {name for name, found in optional.items() if found}
