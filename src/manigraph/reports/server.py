"""A report that is served while its run is being trained: one page, read-only, for this machine."""

import hashlib
import ipaddress
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from manigraph.errors import UserError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class PageServer(ThreadingHTTPServer):
    """Serves what `page` returns at `/`, and nothing else.

    A request must name this server as its host: a page of another site, whose name leads here, would name
    that one.

    Args:
        host: Address to listen at.
        port: Its port; 0 takes a free one.
        page: Makes the page anew; called at most once at a time.
        state: Something that changes when the page does, cheap to get.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, page: Callable[[], str], state: Callable[[], Any]) -> None:
        self._page, self._state = page, state
        self._lock = threading.Lock()
        self._made_of: Any = None
        self._made: tuple[bytes, str] = (b"", "")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"cannot listen at {host}, port {port}: {reason}; try --port 0") from None
        self.hosts = self._own_names(host)

    def _own_names(self, host: str) -> frozenset[str] | None:
        """Hosts that a request may name; None means any, where the server is open to other machines."""
        if host in LOOPBACK_NAMES or ipaddress.ip_address(host).is_loopback:
            return LOOPBACK_NAMES | {host}
        return None

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        host, port = self.server_address[0], self.server_address[1]
        name = host if isinstance(host, str) else host.decode()
        return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"

    def current(self) -> tuple[bytes, str]:
        """The page as bytes, and its tag."""
        with self._lock:
            state = self._state()
            if state != self._made_of or not self._made[0]:
                body = self._page().encode()
                self._made = body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'
                self._made_of = state
            return self._made

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is nobody's error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version = "manigraph"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        if not self._names_this_server():
            self._say(403, b"this server answers to its own name only\n", with_body)
        elif self.path.partition("?")[0] != "/":
            self._say(404, b"there is one page, at /\n", with_body)
        else:
            try:
                body, tag = self.server.current()
            except Exception as error:  # the run may be removed while it is watched
                self._say(503, f"the report cannot be made now: {error}\n".encode(), with_body)
                return
            if self.headers.get("If-None-Match") == tag:
                self._say(304, b"", with_body=False, tag=tag)
            else:
                self._say(200, body, with_body, tag=tag)

    def _names_this_server(self) -> bool:
        allowed = self.server.hosts
        if allowed is None:
            return True
        try:
            named = urlsplit(f"//{self.headers.get('Host', '')}")
            return named.hostname in allowed and named.port in (None, self.server.server_address[1])
        except ValueError:
            return False

    def _say(self, code: int, body: bytes, with_body: bool, *, tag: str | None = None) -> None:
        self.send_response(code)
        for name, value in HEADERS.items():
            if name != "Content-Type" or code == 200:
                self.send_header(name, value)
        if code not in (200, 304):
            self.send_header("Content-Type", "text/plain; charset=utf-8")
        if tag is not None:
            self.send_header("ETag", tag)
        if code != 304:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nobody wants a line for each request."""
