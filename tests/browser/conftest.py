"""A real browser: Debian's Chromium, through playwright."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ARTEFACTS = Path(os.environ.get("MANIGRAPH_ARTEFACTS", "build/screenshots"))
"""Where screenshots are kept, for people to look at."""

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    if CHROMIUM is None:
        if os.environ.get("MANIGRAPH_BROWSER") == "required":
            pytest.fail("no Chromium is installed, and MANIGRAPH_BROWSER says that one is required")
        pytest.skip("no Chromium is installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; in the end there must have been no error and no request but for the page itself."""
    contexts: list[Any] = []
    troubles: list[str] = []

    def open_(
        address: str, *, width: int = 1280, height: int = 900, dark: bool = False, touch: bool = False
    ) -> Any:
        scheme = "dark" if dark else "light"
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            has_touch=touch,
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.extend([message.text] * (message.type == "error")))
        page.on("pageerror", lambda error: troubles.append(str(error)))

        def requested(request: Any) -> None:
            if request.url.split("#")[0] != address and not request.url.startswith("data:"):
                troubles.append(f"asked for {request.url}")

        page.on("request", requested)
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not troubles
