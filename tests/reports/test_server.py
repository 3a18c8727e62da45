"""The live page, asked by real requests on loopback."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from manigraph.errors import UserError
from manigraph.reports.server import PageServer


class Source:
    """A page that changes when it is told to."""

    text = "one"
    made = 0

    def page(self) -> str:
        self.made += 1
        return f"<p>{self.text}</p>"

    def state(self) -> Any:
        return self.text


@contextmanager
def served(source: Source, host: str = "127.0.0.1") -> Iterator[PageServer]:
    with PageServer(host, 0, source.page, source.state) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(
    server: PageServer, method: str = "GET", path: str = "/", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    port = int(server.server_address[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_the_page_is_made_once_until_something_changes() -> None:
    source = Source()
    with served(source) as server:
        first, body = ask(server)
        assert (first.status, body) == (200, b"<p>one</p>")
        tag = first.headers["ETag"]
        again, body = ask(server, If_None_Match=tag)
        assert (again.status, body) == (304, b"")
        assert source.made == 1
        source.text = "two"
        changed, body = ask(server, If_None_Match=tag)
        assert (changed.status, body) == (200, b"<p>two</p>")
        assert source.made == 2


@pytest.mark.parametrize(
    "path",
    [
        "/config.json",
        "/../config.json",
        "/..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/static/x",
        "/.git/config",
        "//[",
        "//x/",
    ],
)
def test_there_is_no_other_page(path: str) -> None:
    with served(Source()) as server:
        answer, body = ask(server, path=path)
        assert answer.status == 404
        assert b"<p>" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_is_read_only(method: str) -> None:
    with served(Source()) as server:
        assert ask(server, method)[0].status == 501


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "127.0.0.1:1", "", "["]
)
def test_requests_that_name_another_host_are_refused(host: str) -> None:
    source = Source()
    with served(source) as server:
        answer, _ = ask(server, Host=host)
        assert answer.status in (400, 403)
        assert source.made == 0


def test_names_of_this_machine_are_fine() -> None:
    with served(Source()) as server:
        for name in ("localhost", "127.0.0.1"):
            assert ask(server, Host=f"{name}:{server.server_address[1]}")[0].status == 200


def test_head_has_no_body() -> None:
    with served(Source()) as server:
        answer, body = ask(server, "HEAD")
        assert (answer.status, body) == (200, b"")
        assert int(answer.headers["Content-Length"]) == len(b"<p>one</p>")


def test_other_sites_cannot_frame_or_read_it() -> None:
    with served(Source()) as server:
        headers = ask(server)[0].headers
        assert headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in headers


def test_a_run_that_cannot_be_read_is_said() -> None:
    class Gone(Source):
        def page(self) -> str:
            raise UserError("there is no run directory")

    with served(Gone()) as server:
        answer, body = ask(server)
        assert answer.status == 503
        assert b"there is no run directory" in body


def test_a_port_that_does_not_exist_is_one_sentence() -> None:
    source = Source()
    with pytest.raises(UserError, match="cannot listen"):
        PageServer("127.0.0.1", 99_999, source.page, source.state)


def test_a_taken_port_is_one_sentence() -> None:
    source = Source()
    with (
        served(source) as server,
        pytest.raises(UserError, match="cannot listen"),
    ):
        PageServer("127.0.0.1", int(server.server_address[1]), source.page, source.state)
