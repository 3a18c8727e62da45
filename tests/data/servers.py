"""Web servers on this machine that behave as well or as badly as a test wants."""

import hashlib
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Reply = Callable[["Exchange"], None]
"""Answers one request."""

MODIFIED = "Mon, 01 Jan 2024 00:00:00 GMT"


class Exchange(BaseHTTPRequestHandler):
    """One request and its answer."""

    timeout = 10
    server: "FileServer"

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.range, self.headers["If-Range"]))
        count = len(self.server.requests)
        replies = self.server.replies
        replies[min(count, len(replies)) - 1](self)

    @property
    def range(self) -> str | None:
        return self.headers["Range"]

    @property
    def content(self) -> bytes:
        files = self.server.files
        return files.get(self.path.lstrip("/"), b"") if isinstance(files, dict) else files

    def start(self, status: int, **headers: object) -> None:
        """Status line and headers; `content_length=5` is `Content-Length: 5`."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Silence."""


class FileServer(ThreadingHTTPServer):
    """Serves `files` (by name, or one for every name); the n-th request gets the n-th reply.

    The last reply is used for all further requests. Use as a context manager.
    """

    daemon_threads = False  # so that closing waits for every thread
    request_queue_size = 16

    def __init__(self, files: bytes | dict[str, bytes], *replies: Reply) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.files = files
        self.replies = replies or (ranged,)
        self.requests: list[tuple[str, str | None, str | None]] = []
        self.release = threading.Event()
        """Replies that wait wait for this."""
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def ranges(self) -> list[str | None]:
        """The ranges that were asked for."""
        return [asked for _, asked, _ in self.requests]

    def __enter__(self) -> "FileServer":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what many tests are about."""


def tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:16]}"'


def ranged(exchange: Exchange) -> None:
    """What a good server does."""
    _send(exchange, len(exchange.content))


def dated(exchange: Exchange) -> None:
    """A good server without ETags that are of use."""
    _send(exchange, len(exchange.content), etag='W/"weak"', last_modified=MODIFIED)


def _send(exchange: Exchange, end: int, wait: bool = False, **version: str) -> None:
    """The part that was asked for, which is announced whole but ends at byte `end` of the file."""
    content = exchange.content
    version = version or {"etag": tag(content)}
    start = 0
    usable = {version.get("etag"), version.get("last_modified")}
    if exchange.range and exchange.headers["If-Range"] in usable:
        start = int(exchange.range.removeprefix("bytes=").removesuffix("-"))
    if start >= len(content):
        exchange.start(416, content_range=f"bytes */{len(content)}", content_length=0)
        return
    length = len(content) - start
    if start:
        where = f"bytes {start}-{len(content) - 1}/{len(content)}"
        exchange.start(206, content_length=length, content_range=where, **version)
    else:
        exchange.start(200, content_length=length, **version)
    exchange.wfile.write(content[start:end])
    if wait:
        exchange.server.release.wait(20)
        exchange.wfile.write(content[max(start, end) :])


def cut_after(count: int) -> Reply:
    """Each answer ends `count` bytes after where it starts."""

    def reply(exchange: Exchange) -> None:
        start = int((exchange.range or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        _send(exchange, start + count)

    return reply


def halt_at(end: int) -> Reply:
    """Waits at byte `end` of the file until the server is told to go on."""
    return lambda exchange: _send(exchange, end, wait=True)


def rangeless(exchange: Exchange) -> None:
    """Sends everything, whatever was asked for."""
    exchange.start(200, content_length=len(exchange.content), etag=tag(exchange.content))
    exchange.wfile.write(exchange.content)


def endless(exchange: Exchange) -> None:
    """Announces nothing and sends more than the file has."""
    exchange.start(200)
    exchange.wfile.write(exchange.content * 2)


def unannounced(exchange: Exchange) -> None:
    """Announces nothing and sends the file."""
    exchange.start(200)
    exchange.wfile.write(exchange.content)


def chunked(exchange: Exchange) -> None:
    """The file in pieces, each with its length."""
    exchange.protocol_version = "HTTP/1.1"
    exchange.start(200, transfer_encoding="chunked", connection="close")
    exchange.close_connection = True
    for start in range(0, len(exchange.content), 50_000):
        piece = exchange.content[start : start + 50_000]
        exchange.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    exchange.wfile.write(b"0\r\n\r\n")


def careless(exchange: Exchange) -> None:
    """Honours Range but not If-Range: continues a file that has changed."""
    content = exchange.content
    start = int((exchange.range or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
    where = f"bytes {start}-{len(content) - 1}/{len(content)}"
    if exchange.range:
        exchange.start(206, content_length=len(content) - start, content_range=where, etag=tag(content))
    else:
        exchange.start(200, content_length=len(content), etag=tag(content))
    exchange.wfile.write(content[start:])


def misplaced(exchange: Exchange) -> None:
    """Answers a request for a range with another range."""
    content = exchange.content
    if not exchange.range:
        return rangeless(exchange)
    where = f"bytes 0-{len(content) - 1}/{len(content)}"
    exchange.start(206, content_length=len(content), content_range=where, etag=tag(content))
    exchange.wfile.write(content)
    return None


def mute(exchange: Exchange) -> None:
    """Takes the request and says nothing."""
    exchange.server.release.wait(20)


def status(code: int, **headers: object) -> Reply:
    return lambda exchange: exchange.start(code, content_length=0, **headers)
