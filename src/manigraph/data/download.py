"""Original files of benchmark data sets: fetched with resumption, checked, and unpacked with care.

A file has its own name only when it is whole and its digest is right; until then its bytes are in
`NAME.part`, and `NAME.part.version` says which version of the remote file they belong to.
"""

import contextlib
import errno
import gzip
import hashlib
import os
import re
import shutil
import socket
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Self, cast
from urllib.error import URLError
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from manigraph import __version__
from manigraph.data.cache import Progress, silent
from manigraph.data.locations import Locations
from manigraph.errors import UnknownNameError, UserError

if sys.platform != "win32":
    import fcntl

MIRROR_VARIABLE = "MANIGRAPH_MIRROR"

CHUNK = 1 << 16
MAX_REDIRECTS = 5
REDIRECTS = frozenset({301, 302, 303, 307, 308})
PASSING_TROUBLE = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers of a server that are worth another attempt."""
MAX_BYTES_OF_UNKNOWN_SIZE = 1 << 32

MAX_UNPACKED_BYTES = 1 << 28
"""The CIFAR archives hold 184 MB each."""
MAX_UNPACKED_MEMBERS = 64
MAX_DEPTH = 16
HEADER_ALLOWANCE = 1 << 12
"""Bytes of headers and padding that a member may cost besides its content."""
STAGING_PREFIX = ".unpacking-"


@dataclass(frozen=True)
class RemoteFile:
    """A file as its authors publish it."""

    url: str
    md5: str
    """Hexadecimal, as published; it tells a damaged file, not a malicious one."""
    size: int | None = None
    """In bytes, if it is known."""
    unpacked: str | None = None
    """The one folder that is in it, if it is a tar.gz archive to be unpacked."""

    @property
    def name(self) -> str:
        """The file's name on disk: the last part of the address."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]


@dataclass(frozen=True)
class Patience:
    """How long a transfer is tried."""

    attempts: int = 4
    pause: float = 1.0
    """Seconds before the second attempt; doubled before each further one."""
    timeout: float = 30.0
    """Seconds without a byte after which a connection counts as lost."""


_CIFAR = "https://www.cs.toronto.edu/~kriz"
_SVHN = "http://ufldl.stanford.edu/housenumbers"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"

ORIGINALS: dict[str, tuple[RemoteFile, ...]] = {
    "cifar10": (
        RemoteFile(
            f"{_CIFAR}/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            170_052_171,
            unpacked="cifar-10-batches-bin",
        ),
    ),
    "cifar100": (
        RemoteFile(
            f"{_CIFAR}/cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            168_513_733,
            unpacked="cifar-100-binary",
        ),
    ),
    "svhn": (
        RemoteFile(f"{_SVHN}/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
        RemoteFile(f"{_SVHN}/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64_275_384),
    ),
    "fashion_mnist": (
        RemoteFile(f"{_FASHION}/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        RemoteFile(f"{_FASHION}/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
        RemoteFile(f"{_FASHION}/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
        RemoteFile(f"{_FASHION}/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
    ),
}
"""What `get` can download."""


def get(
    name: str,
    locations: Locations,
    progress: Progress = silent,
    base_url: str | None = None,
    patience: Patience | None = None,
) -> Path:
    """The folder `locations.data / name` with all original files of a data set, archives unpacked.

    What is there already is kept. `base_url`, or the environment variable MANIGRAPH_MIRROR, names a
    server that has the files under the same names: `BASE/cifar-10-binary.tar.gz`.
    """
    if name not in ORIGINALS:
        raise UnknownNameError("data set", name, ORIGINALS)
    base_url = base_url or os.environ.get(MIRROR_VARIABLE)
    folder = locations.data / name
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one(folder / ".download.lock", folder):
            _remove_abandoned_staging(folder)
            for file in ORIGINALS[name]:
                if file.unpacked and (folder / file.unpacked).is_dir():
                    continue  # It got its name when it was whole, so the archive is not needed any more.
                path = fetch(_mirrored(file, base_url), folder, progress, patience)
                if file.unpacked:
                    unpack(
                        path,
                        folder,
                        max_bytes=MAX_UNPACKED_BYTES,
                        max_members=MAX_UNPACKED_MEMBERS,
                        progress=progress,
                    )
    return folder


def _mirrored(file: RemoteFile, base_url: str | None) -> RemoteFile:
    return replace(file, url=f"{base_url.rstrip('/')}/{file.name}") if base_url else file


# --- One file ---------------------------------------------------------------------------------------


def fetch(
    file: RemoteFile, folder: Path, progress: Progress = silent, patience: Patience | None = None
) -> Path:
    """`folder / file.name`, downloaded unless it is there already, with its digest checked.

    A transfer that broke off, in this call or an earlier one, goes on where it ended. `progress`
    gets bytes; a call with 0 of 0 is a remark, such as that the connection was lost.
    """
    patience = patience or Patience()
    if not _is_http(file.url):
        raise UserError(f"'{file.url}' is not an http or https address: check {MIRROR_VARIABLE}")
    target = folder / file.name
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one(folder / f".{file.name}.lock", target):
            if os.path.lexists(target):
                _require_whole(target, file)
                return target
            part = _Part(target)
            _transfer_patiently(file, part, progress, patience)
            _check_part(part, file)
            part.finish()
    return target


def _require_whole(target: Path, file: RemoteFile) -> None:
    """An existing file is used if it is the right one, and otherwise left alone."""
    found = _md5(target) if target.is_file() else "something else than a file"
    if found != file.md5:
        raise UserError(
            f"'{target}' exists but is not the published file (md5 {file.md5} expected, {found} found): "
            "move it away or delete it, then run the command again"
        )


def _check_part(part: "_Part", file: RemoteFile) -> None:
    size, found = part.size(), _md5(part.path)
    if found != file.md5 or size != (file.size or size):
        part.discard()
        raise UserError(
            f"what came from {file.url} is not the published file (md5 {file.md5} expected, {found} found "
            f"in {size:,} bytes) and was deleted: run the command again, or set {MIRROR_VARIABLE} to "
            "another server"
        )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


class _Part:
    """The bytes of a file that have come so far, and the version of the remote file they belong to."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(f"{target.name}.part")
        self._version_path = target.with_name(f"{target.name}.part.version")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> str:
        """ETag or date of the remote file, or nothing if the part cannot be continued safely."""
        try:
            text = self._version_path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return ""
        return text if text.isprintable() else ""

    def append(self) -> BinaryIO:
        return self.path.open("ab")

    def restart(self, version: str) -> BinaryIO:
        """Empty; the version is written before the first byte, so that it never belongs to older ones."""
        self.path.open("wb").close()
        if version:
            self._version_path.write_text(version, encoding="ascii")
        else:
            self._version_path.unlink(missing_ok=True)
        return self.append()

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._version_path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Give the file its name once its bytes are on the disk."""
        with self.path.open("r+b") as file:
            os.fsync(file.fileno())
        self.path.replace(self.target)
        self._version_path.unlink(missing_ok=True)


# --- Transfer ---------------------------------------------------------------------------------------


class _LostError(Exception):
    """A transfer that broke off and is worth another attempt."""


def _transfer_patiently(file: RemoteFile, part: _Part, progress: Progress, patience: Patience) -> None:
    for attempt in range(1, patience.attempts + 1):
        try:
            _transfer(file, part, progress, patience.timeout)
            return
        except _LostError as error:
            reason = str(error)
        if attempt < patience.attempts:
            progress(f"{file.name}: {reason}; attempt {attempt + 1} of {patience.attempts}", 0, 0)
            time.sleep(patience.pause * 2 ** (attempt - 1))
    kept = f"go on from {part.size():,} bytes" if part.size() else "try again"
    raise UserError(
        f"cannot download {file.url}: {reason} ({patience.attempts} attempts); run the command again to "
        f"{kept}, or set {MIRROR_VARIABLE} to another server"
    )


def _transfer(file: RemoteFile, part: _Part, progress: Progress, timeout: float) -> None:
    """One attempt: the rest of the file, or all of it if the part does not belong to it."""
    have, version = part.size(), part.version()
    if have and have == file.size:
        return
    if have and (not version or have > (file.size or have)):
        part.discard()
        have = 0
    wanted = {"Range": f"bytes={have}-", "If-Range": version} if have else {}
    with _answer(file.url, wanted, timeout) as response:
        if response.status == 416 and have:
            if _total_of(response.headers) in (None, have):
                return  # Nothing is missing; the digest will tell.
            part.discard()
            raise _LostError("the file on the server has changed")
        _require_success(response, file)
        if response.status == 206:
            if not _continues(response.headers, have, version):
                part.discard()
                raise _LostError("the file on the server has changed")
        else:
            have = 0
        total = _announced(response, have)
        _require_expected_size(total, file)
        with part.append() if have else part.restart(_version_of(response.headers)) as output:
            _receive(response, output, have, total, file, part, progress)


def _receive(
    response: HTTPResponse,
    output: BinaryIO,
    have: int,
    total: int | None,
    file: RemoteFile,
    part: _Part,
    progress: Progress,
) -> None:
    expected = file.size if total is None else total
    limit = MAX_BYTES_OF_UNKNOWN_SIZE if expected is None else expected
    while total is None or have < total:
        try:
            # `read1` hands out what is there, so that nothing is lost when the connection breaks.
            chunk = response.read1(CHUNK if total is None else min(CHUNK, total - have))
        except (OSError, HTTPException) as error:
            raise _LostError(_reason(error)) from error
        if not chunk:
            break
        if have + len(chunk) > limit:
            part.discard()
            raise UserError(
                f"{file.url} sends more than the {limit:,} bytes of the published file: what came was "
                f"deleted; set {MIRROR_VARIABLE} to another server"
            )
        output.write(chunk)
        have += len(chunk)
        progress(file.name, have, expected or 0)
    if expected is not None and have < expected:
        raise _LostError(f"the connection ended after {have:,} of {expected:,} bytes")


@contextlib.contextmanager
def _answer(url: str, headers: dict[str, str], timeout: float) -> Iterator[HTTPResponse]:
    """The server's answer after redirects, whatever its status."""
    for _ in range(MAX_REDIRECTS + 1):
        own = {"User-Agent": f"manigraph/{__version__}", "Accept-Encoding": "identity"}
        try:
            response = _opener().open(Request(url, headers=own | headers), timeout=timeout)
        except (OSError, HTTPException) as error:
            raise _LostError(_reason(error)) from error
        with cast("HTTPResponse", response):
            location = response.headers.get("Location")
            if response.status not in REDIRECTS or not location:
                yield response
                return
        url = urljoin(url, location)
        if not _is_http(url):
            raise UserError(
                f"the server redirects to '{url}', which is not an http or https address: "
                f"set {MIRROR_VARIABLE} to another server"
            )
    raise UserError(
        f"{url} is yet another redirect after {MAX_REDIRECTS}: set {MIRROR_VARIABLE} to another server"
    )


def _opener() -> OpenerDirector:
    """Knows http and https alone, and leaves redirects and errors to the caller."""
    opener = OpenerDirector()
    for handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
        opener.add_handler(handler)
    return opener


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        legal = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False
    return legal and url.isascii() and url.isprintable() and " " not in url


def _require_success(response: HTTPResponse, file: RemoteFile) -> None:
    status = f"the server answered {response.status} ({response.reason})"
    if response.status in PASSING_TROUBLE:
        raise _LostError(status)
    if response.status not in (200, 206):
        raise UserError(
            f"cannot download {file.url}: {status}; set {MIRROR_VARIABLE} to another server, or put the "
            "file into the data folder yourself"
        )


def _require_expected_size(total: int | None, file: RemoteFile) -> None:
    legal = MAX_BYTES_OF_UNKNOWN_SIZE if file.size is None else file.size
    if total is not None and (total > legal or total != (file.size or total)):
        raise UserError(
            f"{file.url} offers {total:,} bytes where the published file has {legal:,}: "
            f"set {MIRROR_VARIABLE} to another server"
        )


def _version_of(headers: HTTPMessage) -> str:
    """What `If-Range` may name: a strong ETag, else the date; weak ETags do not promise equal bytes."""
    tag = headers.get("ETag", "").strip()
    version = tag if tag.startswith('"') else headers.get("Last-Modified", "").strip()
    return version if version.isascii() and version.isprintable() else ""


def _continues(headers: HTTPMessage, have: int, version: str) -> bool:
    """Whether a partial answer starts at byte `have` of the version that the part belongs to."""
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", "").strip())
    return match is not None and int(match[1]) == have and _version_of(headers) in ("", version)


def _total_of(headers: HTTPMessage) -> int | None:
    """The size of the whole file out of `Content-Range: bytes 5-9/10` or `bytes */10`."""
    match = re.fullmatch(r"bytes [^/]+/(\d+)", headers.get("Content-Range", "").strip())
    return int(match[1]) if match else None


def _announced(response: HTTPResponse, have: int) -> int | None:
    total = _total_of(response.headers) if response.status == 206 else None
    if total is None and response.length is not None:
        total = have + response.length
    return total


def _reason(error: Exception) -> str:
    if isinstance(error, URLError) and isinstance(error.reason, Exception):
        error = error.reason
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    if isinstance(error, socket.gaierror):
        return "the server's name was not found (is this machine online?)"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split()) or type(error).__name__


# --- Archives ---------------------------------------------------------------------------------------


def unpack(
    archive: Path, folder: Path, *, max_bytes: int, max_members: int, progress: Progress = silent
) -> list[Path]:
    """Put the content of a tar.gz archive into `folder`, all of it or nothing.

    Only plain files and folders with relative names are unpacked; anything else, and an archive that
    is larger than allowed, is refused as a whole. What exists is not overwritten. Permissions and
    owners are those of any new file.

    Returns:
        The files and folders at the top of the archive, where they are now.
    """
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=folder))
        try:
            with _archive_errors(archive):
                _unpack_into(archive, staging, max_bytes, max_members, progress)
            return _move_all(archive, staging, folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _remove_abandoned_staging(folder: Path) -> None:
    """What a killed process left; only for the holder of the folder's lock."""
    for staging in folder.glob(f"{STAGING_PREFIX}*"):
        shutil.rmtree(staging, ignore_errors=True)


class _RefusedError(Exception):
    """Why an archive is not unpacked."""


def _unpack_into(archive: Path, staging: Path, max_bytes: int, max_members: int, progress: Progress) -> None:
    room = max_bytes
    seen: set[tuple[str, ...]] = set()
    compressed_size = archive.stat().st_size
    with archive.open("rb") as compressed, gzip.open(compressed, "rb") as plain:
        # Headers can be bombs too, so the sum of everything that is decompressed is bounded.
        stream = _Bounded(cast("IO[bytes]", plain), max_bytes + (max_members + 16) * HEADER_ALLOWANCE)
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|", tarinfo=_StrictHeader) as tar:
            for member in tar:
                parts = _safe_parts(member, staging)
                if parts in seen:
                    raise _RefusedError(f"it holds '{member.name}' twice")
                seen.add(parts)
                if len(seen) > max_members:
                    raise _RefusedError(f"it holds more than {max_members} files")
                content = tar.extractfile(member)
                if content is None:
                    _make_folder(staging.joinpath(*parts))
                else:
                    room -= _write_new(staging.joinpath(*parts), content, room)
                progress(f"unpacking {archive.name}", compressed.tell(), compressed_size)
        stream.drain()  # To the checksum at the end.
    if not seen:
        raise _RefusedError("it is empty")


class _StrictHeader(tarfile.TarInfo):
    """A header that ends the archive only if it is the end mark; tarfile takes a damaged one for the end."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"no end mark: {error}") from error


class _Bounded:
    """A stream that may give `limit` bytes in all."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream = stream
        self._left = limit

    def read(self, size: int) -> bytes:
        data = self._stream.read(min(size, CHUNK))
        self._left -= len(data)
        if self._left < 0:
            raise _RefusedError("it is larger than it should be")
        return data

    def drain(self) -> None:
        while self.read(CHUNK):
            pass


def _safe_parts(member: tarfile.TarInfo, staging: Path) -> tuple[str, ...]:
    """The parts of a member's name, if it is a plain file or folder that stays inside."""
    parts = PurePosixPath(member.name).parts
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise _RefusedError(f"'{member.name}' is neither a plain file nor a folder")
    if not parts or parts[0].startswith("/") or ".." in parts or any(c in member.name for c in "\\:\0"):
        raise _RefusedError(f"the name '{member.name}' leads outside")
    if len(parts) > MAX_DEPTH:
        raise _RefusedError(f"it holds folders more than {MAX_DEPTH} deep")
    if member.size < 0:
        raise _RefusedError(f"'{member.name}' has a negative size")
    # Python's own rules, where this Python has them (3.11.4 and later).
    if hasattr(tarfile, "data_filter"):
        tarfile.data_filter(member, str(staging))
    return parts


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise _RefusedError(f"'{path.name}' is both a file and a folder") from None


def _write_new(path: Path, content: IO[bytes], room: int) -> int:
    """Write at most `room` bytes, counted as they come; returns how many they were."""
    _make_folder(path.parent)
    written = 0
    try:
        output = path.open("xb")
    except FileExistsError:
        # Another spelling of a name that the file system takes for the same.
        raise _RefusedError(f"it holds '{path.name}' twice") from None
    with output:
        while chunk := content.read(CHUNK):
            written += len(chunk)
            if written > room:
                raise _RefusedError("it is larger than it should be")
            output.write(chunk)
        output.flush()
        os.fsync(output.fileno())
    return written


def _move_all(archive: Path, staging: Path, folder: Path) -> list[Path]:
    """Everything at the top of `staging` into `folder`, unless something of that name is there."""
    moves = [(path, folder / path.name) for path in sorted(staging.iterdir())]
    for _, destination in moves:
        if os.path.lexists(destination):
            raise UserError(
                f"'{archive}' would overwrite '{destination}': move that away, then run the command again"
            )
    done: list[tuple[Path, Path]] = []
    try:
        for source, destination in moves:
            source.rename(destination)
            done.append((source, destination))
    except BaseException:
        for source, destination in done:
            destination.rename(source)
        raise
    return [destination for _, destination in moves]


@contextlib.contextmanager
def _archive_errors(archive: Path) -> Iterator[None]:
    way_out = "delete it and download it again"
    try:
        yield
    except _RefusedError as error:
        raise UserError(f"'{archive}' is not unpacked because {error}: {way_out}") from error
    except (
        tarfile.TarError,
        gzip.BadGzipFile,
        zlib.error,
        EOFError,
        ValueError,  # numbers in headers that are none
        RecursionError,  # headers about headers about headers
    ) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"'{archive}' is damaged or not a tar.gz archive ({reason}): {way_out}") from error


# --- Files and processes ----------------------------------------------------------------------------


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """A disk that is full or read-only gets one sentence; what is there already stays."""
    try:
        yield
    except BrokenPipeError:  # the reader of the progress has gone
        raise
    except OSError as error:
        raise UserError(
            f"cannot write to '{error.filename or folder}': {(error.strerror or str(error)).lower()}; "
            "make room or permit writing there, or choose another folder with --data_dir"
        ) from error


@contextlib.contextmanager
def _only_one(path: Path, what: Path) -> Iterator[None]:
    """Hold the lock file `path`, which the system releases even if this process is killed."""
    with contextlib.ExitStack() as stack:
        while True:
            file = stack.enter_context(path.open("ab"))
            if not _lock(file):
                raise UserError(f"another process is downloading '{what}': wait until it has ended")
            # The holder before may have deleted the file between our opening and our locking it.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                break
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _lock(file: BinaryIO) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Some network file systems have no locks; a download there is better than none.
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            raise
    return True
