"""Downloads from real servers on this machine, and archives that mean harm."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manigraph.cli.data import run
from manigraph.data import download
from manigraph.data.download import ORIGINALS, Patience, RemoteFile, fetch, get, unpack
from manigraph.data.locations import Locations
from manigraph.errors import UnknownNameError, UserError
from tests.data import servers
from tests.data.servers import FileServer, Reply

CONTENT = random.Random(0).randbytes(300_000)
OTHER = random.Random(1).randbytes(300_000)
QUICK = Patience(attempts=3, pause=0, timeout=5)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("MANIGRAPH_CACHE", str(tmp_path / "cache"))
    for name in ("MANIGRAPH_DATA", "MANIGRAPH_MIRROR"):
        monkeypatch.delenv(name, raising=False)


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def remote(server: FileServer, content: bytes = CONTENT, *, size: int | None = len(CONTENT)) -> RemoteFile:
    return RemoteFile(f"{server.url}/file.bin", md5(content), size)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def refusal(call: Callable[[], object]) -> str:
    """The one line that a person gets."""
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


# --- Servers that give what they should --------------------------------------------------------------


@pytest.mark.parametrize(
    "reply", [servers.ranged, servers.rangeless, servers.unannounced, servers.chunked, servers.dated]
)
@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_a_file_arrives_whole_and_alone(tmp_path: Path, reply: Reply, size: int | None) -> None:
    with FileServer(CONTENT, reply) as server:
        path = fetch(remote(server, size=size), tmp_path, patience=QUICK)
    assert path == tmp_path / "file.bin"
    assert path.read_bytes() == CONTENT
    assert names(tmp_path) == ["file.bin"]
    assert server.ranges == [None]


def test_progress_counts_the_bytes_up_to_the_size(tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    with FileServer(CONTENT) as server:
        fetch(remote(server), tmp_path, lambda *call: calls.append(call), QUICK)
    assert {(what, total) for what, _, total in calls} == {("file.bin", len(CONTENT))}
    counts = [done for _, done, _ in calls]
    assert counts == sorted(counts)
    assert counts[-1] == len(CONTENT)


def test_redirects_to_another_address_are_followed(tmp_path: Path) -> None:
    with FileServer(CONTENT) as last, FileServer(b"", servers.status(302, location=f"{last.url}/x")) as first:
        assert fetch(remote(first), tmp_path, patience=QUICK).read_bytes() == CONTENT


def test_what_is_there_is_not_downloaded_again(tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(CONTENT)
    with FileServer(CONTENT) as server:
        fetch(remote(server), tmp_path, patience=QUICK)
    assert server.requests == []
    assert names(tmp_path) == ["file.bin"]


def test_another_file_of_that_name_is_named_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(b"mine")
    with FileServer(CONTENT) as server:
        message = refusal(lambda: fetch(remote(server), tmp_path, patience=QUICK))
    assert f"'{tmp_path / 'file.bin'}' exists but is not the published file" in message
    assert md5(CONTENT) in message
    assert md5(b"mine") in message
    assert (tmp_path / "file.bin").read_bytes() == b"mine"
    assert server.requests == []


# --- Transfers that break off ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_a_cut_transfer_goes_on_where_it_ended(tmp_path: Path, size: int | None) -> None:
    remarks: list[str] = []

    def progress(what: str, done: int, total: int) -> None:
        if done == total == 0:
            remarks.append(what)

    with FileServer(CONTENT, servers.cut_after(100_000), servers.ranged) as server:
        path = fetch(remote(server, size=size), tmp_path, progress, QUICK)
    assert path.read_bytes() == CONTENT
    assert server.requests[1:] == [("/file.bin", "bytes=100000-", servers.tag(CONTENT))]
    assert remarks == ["file.bin: the connection ended after 100,000 of 300,000 bytes; attempt 2 of 3"]
    assert names(tmp_path) == ["file.bin"]


def interrupted(file: RemoteFile, folder: Path) -> int:
    """Press Ctrl-C after the first bytes; returns how many are kept."""

    def press(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(file, folder, press, QUICK)
    return (folder / "file.bin.part").stat().st_size


@pytest.mark.parametrize(
    ("reply", "version"), [(servers.ranged, servers.tag(CONTENT)), (servers.dated, servers.MODIFIED)]
)
def test_the_next_call_goes_on_after_an_interruption(tmp_path: Path, reply: Reply, version: str) -> None:
    with FileServer(CONTENT, reply) as server:
        kept = interrupted(remote(server), tmp_path)
        assert 0 < kept < len(CONTENT)
        path = fetch(remote(server), tmp_path, patience=QUICK)
    assert path.read_bytes() == CONTENT
    assert server.requests[1:] == [("/file.bin", f"bytes={kept}-", version)]
    assert names(tmp_path) == ["file.bin"]


@pytest.mark.parametrize("reply", [servers.rangeless, servers.careless, servers.misplaced, servers.ranged])
def test_a_part_of_an_older_version_is_not_continued(tmp_path: Path, reply: Reply) -> None:
    """The digest of the whole is checked at the end, so a mixture would be an error and not a file."""
    with FileServer(OTHER, servers.ranged) as server:
        interrupted(remote(server), tmp_path)
        server.files, server.replies = CONTENT, (reply,)
        path = fetch(remote(server), tmp_path, patience=QUICK)
    assert path.read_bytes() == CONTENT
    assert server.ranges[1] is not None


@pytest.mark.parametrize("reply", [servers.rangeless, servers.misplaced])
def test_a_server_without_ranges_starts_from_zero(tmp_path: Path, reply: Reply) -> None:
    with FileServer(CONTENT, reply) as server:
        interrupted(remote(server), tmp_path)
        assert fetch(remote(server), tmp_path, patience=QUICK).read_bytes() == CONTENT


def test_a_part_whose_version_is_not_known_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(OTHER[:1000])
    with FileServer(CONTENT) as server:
        assert fetch(remote(server), tmp_path, patience=QUICK).read_bytes() == CONTENT
    assert server.ranges == [None]


@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_a_part_that_is_whole_only_gets_its_name(tmp_path: Path, size: int | None) -> None:
    """Without a size, it is the server that says so, with 416."""
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    (tmp_path / "file.bin.part.version").write_text(servers.tag(CONTENT))
    with FileServer(CONTENT) as server:
        assert fetch(remote(server, size=size), tmp_path, patience=QUICK).read_bytes() == CONTENT
    assert server.ranges == ([] if size else ["bytes=300000-"])
    assert names(tmp_path) == ["file.bin"]


def test_a_part_beyond_the_end_of_the_file_starts_again(tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    (tmp_path / "file.bin.part.version").write_text(servers.tag(CONTENT))
    with FileServer(CONTENT) as server:
        assert fetch(remote(server, size=None), tmp_path, patience=QUICK).read_bytes() == CONTENT
    assert server.ranges == ["bytes=300004-", None]


def test_attempts_are_bounded_and_the_next_call_goes_on(tmp_path: Path) -> None:
    with FileServer(CONTENT, servers.cut_after(50_000)) as server:
        message = refusal(lambda: fetch(remote(server), tmp_path, patience=QUICK))
        assert server.ranges == [None, "bytes=50000-", "bytes=100000-"]
        assert "the connection ended after 150,000 of 300,000 bytes (3 attempts)" in message
        assert "run the command again to go on from 150,000 bytes" in message
        assert fetch(remote(server), tmp_path, patience=QUICK).read_bytes() == CONTENT


def test_pauses_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with FileServer(CONTENT, servers.status(503)) as server:
        patience = Patience(attempts=4, pause=0.5)
        message = refusal(lambda: fetch(remote(server), tmp_path, patience=patience))
    assert pauses == [0.5, 1, 2]
    assert "503 (Service Unavailable) (4 attempts); run the command again to try again" in message


def test_a_server_that_hangs_is_given_up(tmp_path: Path) -> None:
    with FileServer(CONTENT, servers.mute, servers.halt_at(1000)) as server:
        patience = Patience(attempts=2, pause=0, timeout=0.2)
        start = time.monotonic()
        message = refusal(lambda: fetch(remote(server), tmp_path, patience=patience))
        assert time.monotonic() - start < 4
    assert "the server did not answer in time (2 attempts)" in message
    assert (tmp_path / "file.bin.part").stat().st_size == 1000


def test_a_server_that_is_not_there_is_given_up(tmp_path: Path) -> None:
    with FileServer(CONTENT) as server:
        file = remote(server)
    message = refusal(lambda: fetch(file, tmp_path, patience=QUICK))
    assert "connection refused (3 attempts); run the command again to try again" in message


# --- Servers that give what they should not ----------------------------------------------------------


def test_wrong_bytes_are_deleted_and_both_digests_named(tmp_path: Path) -> None:
    with FileServer(OTHER) as server:
        message = refusal(lambda: fetch(remote(server, CONTENT), tmp_path, patience=QUICK))
    assert f"md5 {md5(CONTENT)} expected, {md5(OTHER)} found in 300,000 bytes" in message
    assert "MANIGRAPH_MIRROR" in message
    assert names(tmp_path) == []


def test_more_bytes_than_the_file_has_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    with FileServer(CONTENT, servers.endless) as server:
        message = refusal(
            lambda: fetch(remote(server), tmp_path, lambda what, done, total: written.append(done), QUICK)
        )
        assert "sends more than the 300,000 bytes" in message
        assert max(written) <= len(CONTENT)
        monkeypatch.setattr(download, "MAX_BYTES_OF_UNKNOWN_SIZE", 400_000)
        message = refusal(lambda: fetch(remote(server, size=None), tmp_path, patience=QUICK))
        assert "sends more than the 400,000 bytes" in message
    assert names(tmp_path) == []


def test_another_size_is_refused_before_the_part_is_touched(tmp_path: Path) -> None:
    with FileServer(CONTENT) as server:
        kept = interrupted(remote(server), tmp_path)
        server.files = b"<html>Log in first</html>"
        message = refusal(lambda: fetch(remote(server), tmp_path, patience=QUICK))
        assert "offers 25 bytes where the published file has 300,000" in message
        server.files = CONTENT
        fetch(remote(server), tmp_path, patience=QUICK)
    assert server.ranges[-1] == f"bytes={kept}-"


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x", "gopher://x"])
def test_redirects_lead_to_web_servers_only(tmp_path: Path, target: str) -> None:
    with FileServer(CONTENT, servers.status(302, location=target)) as server:
        message = refusal(lambda: fetch(remote(server), tmp_path, patience=QUICK))
    assert "redirects to" in message
    assert "not an http or https address" in message
    assert names(tmp_path) == []


def test_redirects_in_a_circle_end(tmp_path: Path) -> None:
    with FileServer(CONTENT, servers.status(301, location="/file.bin")) as server:
        assert "after 5" in refusal(lambda: fetch(remote(server), tmp_path, patience=QUICK))
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    "url", ["file:///etc/hostname", "ftp://x/y", "/etc/hostname", "http://[", "http://a b/c"]
)
def test_addresses_are_of_web_servers_only(tmp_path: Path, url: str) -> None:
    assert "not an http or https address" in refusal(lambda: fetch(RemoteFile(url, "0"), tmp_path))


@pytest.mark.parametrize("code", [404, 403, 416, 204])
def test_a_refusal_of_the_server_is_final(tmp_path: Path, code: int) -> None:
    with FileServer(CONTENT, servers.status(code)) as server:
        message = refusal(lambda: fetch(remote(server), tmp_path, patience=QUICK))
    assert f"cannot download {server.url}/file.bin: the server answered {code}" in message
    assert len(server.requests) == 1
    assert names(tmp_path) == []


# --- Disks and processes -----------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").symlink_to("/dev/full")
    with FileServer(CONTENT) as server:
        message = refusal(lambda: fetch(remote(server), tmp_path, patience=QUICK))
    assert f"cannot write to '{tmp_path}': no space left on device; make room" in message
    assert len(server.requests) == 1


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with FileServer(CONTENT) as server:
        message = refusal(lambda: get("cifar10", Locations(tmp_path / "data", tmp_path), base_url=server.url))
    assert "not a directory; make room or permit writing there" in message
    assert "--data_dir" in message


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "permission denied" in refusal(lambda: fetch(RemoteFile("http://127.0.0.1/x", "0"), tmp_path))


PROCESS = """
import json, sys
from manigraph.cli.data import run
from manigraph.data.download import ORIGINALS, RemoteFile
from manigraph.errors import UserError

ORIGINALS["cifar10"] = tuple(RemoteFile(**file) for file in json.loads(sys.argv[1]))
try:
    code = run(sys.argv[2:])
except UserError as error:
    print(error, file=sys.stderr)
    code = 2
assert "torch" not in sys.modules
sys.exit(code)
"""


def command(*files: RemoteFile) -> list[str]:
    described = json.dumps([vars(file) for file in files])
    return [sys.executable, "-c", PROCESS, described, "get", "cifar10"]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def test_a_killed_process_is_continued_by_the_next(tmp_path: Path) -> None:
    environment = {**os.environ, "MANIGRAPH_DATA": str(tmp_path)}
    folder = tmp_path / "cifar10"
    part = folder / "file.bin.part"
    with FileServer(CONTENT, servers.halt_at(200_000), servers.ranged) as server:
        file = remote(server)
        with subprocess.Popen(command(file), env=environment, stdout=subprocess.DEVNULL) as process:
            try:
                wait_until(lambda: part.exists() and part.stat().st_size == 200_000)
                # Meanwhile nobody else may write there.
                message = refusal(lambda: fetch(file, folder, patience=QUICK))
                assert f"another process is downloading '{folder / 'file.bin'}'" in message
                second = subprocess.run(
                    command(file), env=environment, capture_output=True, text=True, check=False
                )
                assert second.returncode == 2
                assert second.stderr == (
                    f"another process is downloading '{folder}': wait until it has ended\n"
                )
            finally:
                process.send_signal(signal.SIGKILL)
        assert not (folder / "file.bin").exists()
        assert len(server.requests) == 1
        third = subprocess.run(command(file), env=environment, capture_output=True, text=True, check=False)
    assert third.returncode == 0, third.stderr
    assert server.ranges == [None, "bytes=200000-"]
    assert md5((folder / "file.bin").read_bytes()) == md5(CONTENT)
    assert names(folder) == ["file.bin"]


# --- Archives ----------------------------------------------------------------------------------------

Member = tuple[tarfile.TarInfo, bytes]


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, len(content), link
    info.mode, info.uid, info.gid = 0o6777, 4321, 4321
    return info, content


def tar(*members: Member) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def lying(name: str, announced: int, content: bytes) -> bytes:
    """A member whose header does not say the truth about its size."""
    info, _ = member(name)
    info.size = announced
    return info.tobuf(tarfile.GNU_FORMAT) + content.ljust(-len(content) // 512 * -512, b"\0")


GOOD = tar(
    member("set", kind=tarfile.DIRTYPE), member("set/a.bin", b"a" * 1000), member("set/deep/b.bin", b"b")
)
END = bytes(1024)
ZEROS = bytes(8_000_000)


def unpack_small(archive: Path, folder: Path) -> list[Path]:
    return unpack(archive, folder, max_bytes=1_000_000, max_members=10)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder to unpack into, in a folder that must not change."""
    folder = tmp_path / "outer" / "folder"
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("mine")
    yield folder
    assert (folder / "mine.txt").read_text() == "mine"
    assert names(tmp_path / "outer") == ["folder", *(f"folder/{name}" for name in names(folder))]


def test_an_archive_is_unpacked_with_ordinary_permissions(place: Path, tmp_path: Path) -> None:
    (tmp_path / "good.tar.gz").write_bytes(gzip.compress(GOOD))
    assert unpack_small(tmp_path / "good.tar.gz", place) == [place / "set"]
    assert names(place) == ["mine.txt", "set", "set/a.bin", "set/deep", "set/deep/b.bin"]
    assert (place / "set/a.bin").read_bytes() == b"a" * 1000
    for path in (place / "set").rglob("*"):
        own = place if path.is_dir() else place / "mine.txt"
        assert path.stat().st_mode == own.stat().st_mode
        assert path.stat().st_uid == own.stat().st_uid


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(tar(member("../x", b"x")), "'../x' leads outside", id="parent"),
        pytest.param(tar(member("a/../../x", b"x")), "leads outside", id="parent-inside"),
        pytest.param(tar(member("/abs", b"x")), "'/abs' leads outside", id="absolute"),
        pytest.param(tar(member("..\\x", b"x")), "leads outside", id="backslash"),
        pytest.param(tar(member("C:/x", b"x")), "leads outside", id="drive"),
        pytest.param(tar(member(".", kind=tarfile.DIRTYPE)), "leads outside", id="dot"),
        pytest.param(tar(member("link", kind=tarfile.SYMTYPE, link="mine.txt")), "neither", id="symlink"),
        pytest.param(
            tar(member("link", kind=tarfile.SYMTYPE, link=".."), member("link/x", b"x")),
            "neither",
            id="through-a-symlink",
        ),
        pytest.param(
            tar(member("a", b"x"), member("link", kind=tarfile.LNKTYPE, link="a")), "neither", id="hard-link"
        ),
        pytest.param(tar(member("null", kind=tarfile.CHRTYPE)), "neither", id="device"),
        pytest.param(tar(member("disk", kind=tarfile.BLKTYPE)), "neither", id="block-device"),
        pytest.param(tar(member("pipe", kind=tarfile.FIFOTYPE)), "neither", id="fifo"),
        pytest.param(tar(member("sparse", kind=tarfile.GNUTYPE_SPARSE)), "neither", id="sparse"),
        pytest.param(tar(member("a", b"1"), member("a", b"2")), "holds 'a' twice", id="twice"),
        pytest.param(tar(member("a/b", b"1"), member("a//./b", b"2")), "twice", id="twice-in-disguise"),
        pytest.param(
            tar(member("a", b"1"), member("a/b", b"2")), "both a file and a folder", id="file-as-folder"
        ),
        pytest.param(tar(member("a/b", b"1"), member("a", b"2")), "twice", id="folder-as-file"),
        pytest.param(tar(*(member(f"{i}", b"") for i in range(11))), "more than 10 files", id="many"),
        pytest.param(tar(member("d/" * 40 + "x", b"x")), "16 deep", id="deep"),
        pytest.param(tar(member("zeros", ZEROS)), "larger than it should be", id="bomb"),
        pytest.param(
            tar(*(member(f"{i}", ZEROS[:200_000]) for i in range(6))), "larger than", id="bomb-in-pieces"
        ),
        pytest.param(
            tar(member("x", ZEROS, kind=tarfile.XHDTYPE), member("a", b"a")), "larger than", id="header-bomb"
        ),
        pytest.param(GOOD + ZEROS, "larger than it should be", id="bomb-after-the-end"),
        pytest.param(lying("a", 1 << 40, b"small") + END, "damaged", id="header-says-more"),
        pytest.param(lying("a", 10, b"x" * 5000) + END, "damaged", id="header-says-less"),
        pytest.param(lying("a", -1024, b"x" * 5000) + END, "negative size", id="header-says-negative"),
        pytest.param(GOOD[:1700], "damaged", id="tar-cut"),
        pytest.param(GOOD[:2048], "damaged", id="tar-cut-between-files"),
        pytest.param(GOOD[:2048] + b"x" * 512 + GOOD[2560:], "damaged", id="damaged-header"),
        pytest.param(b"no archive at all, only text " * 100, "damaged", id="no-tar"),
        pytest.param(END, "it is empty", id="empty"),
    ],
)
def test_a_harmful_archive_leaves_nothing(place: Path, tmp_path: Path, content: bytes, reason: str) -> None:
    archive = tmp_path / "bad.tar.gz"
    archive.write_bytes(gzip.compress(content, 1))
    message = refusal(lambda: unpack_small(archive, place))
    assert f"'{archive}' is " in message
    assert reason in message
    assert "delete it and download it again" in message
    assert names(place) == ["mine.txt"]


@pytest.mark.parametrize(("size", "fits"), [(1_000_000, True), (1_000_001, False)])
def test_the_content_is_counted_to_the_byte(place: Path, tmp_path: Path, size: int, fits: bool) -> None:
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(gzip.compress(tar(member("a", b"a"), member("b", ZEROS[: size - 1])), 1))
    with contextlib.nullcontext() if fits else pytest.raises(UserError, match="larger than it should be"):
        unpack_small(archive, place)
    assert names(place) == (["a", "b", "mine.txt"] if fits else ["mine.txt"])


def test_headers_about_headers_are_refused(place: Path, tmp_path: Path) -> None:
    archive = tmp_path / "bad.tar.gz"
    nested = tar(*(member("x", b"11 path=ab\n", kind=tarfile.XHDTYPE) for _ in range(5000)))
    archive.write_bytes(gzip.compress(nested))
    refusal(lambda: unpack(archive, place, max_bytes=10_000_000, max_members=10))
    assert names(place) == ["mine.txt"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(gzip.compress(GOOD)[:-20], id="cut"),
        pytest.param(gzip.compress(GOOD)[:-6] + b"\0\0\0\0\0\0", id="wrong-checksum"),
        pytest.param(gzip.compress(GOOD)[:60], id="cut-early"),
        pytest.param(GOOD, id="not-compressed"),
        pytest.param(b"<html>", id="a-web-page"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_damaged_archive_leaves_nothing(place: Path, tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "bad.tar.gz"
    archive.write_bytes(content)
    assert "delete it and download it again" in refusal(lambda: unpack_small(archive, place))
    assert names(place) == ["mine.txt"]


def test_nothing_that_exists_is_overwritten(place: Path, tmp_path: Path) -> None:
    archive = tmp_path / "good.tar.gz"
    archive.write_bytes(gzip.compress(tar(member("a", b"a"), member("mine.txt", b"theirs"))))
    message = refusal(lambda: unpack_small(archive, place))
    assert f"would overwrite '{place / 'mine.txt'}'" in message
    assert names(place) == ["mine.txt"]


# --- Data sets and commands --------------------------------------------------------------------------

ARCHIVE = gzip.compress(GOOD)
FILES = {"images.bin": CONTENT, "set.tar.gz": ARCHIVE}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """cifar10 with other, smaller files."""
    files = (
        RemoteFile("http://192.0.2.1/far/away/images.bin", md5(CONTENT), len(CONTENT)),
        RemoteFile("http://192.0.2.1/far/away/set.tar.gz", md5(ARCHIVE), len(ARCHIVE), unpacked="set"),
    )
    monkeypatch.setitem(ORIGINALS, "cifar10", files)


WHOLE = ["images.bin", "set", "set.tar.gz", "set/a.bin", "set/deep", "set/deep/b.bin"]


@pytest.mark.usefixtures("small")
def test_get_brings_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locations = Locations(tmp_path / "data", tmp_path / "cache")
    (tmp_path / "data/cifar10/.unpacking-abandoned").mkdir(parents=True)
    with FileServer(FILES) as server:
        monkeypatch.setenv("MANIGRAPH_MIRROR", f"{server.url}/")
        assert get("cifar10", locations) == tmp_path / "data/cifar10"
        assert names(tmp_path / "data/cifar10") == WHOLE
        (tmp_path / "data/cifar10/set.tar.gz").unlink()  # to make room
        get("cifar10", locations)
    assert [path for path, _, _ in server.requests] == ["/images.bin", "/set.tar.gz"]


def test_the_published_files_are_described_completely() -> None:
    for files in ORIGINALS.values():
        for file in files:
            assert len(bytes.fromhex(file.md5)) == 16
            assert file.size is not None
            assert file.size > 1000
            assert (file.unpacked is not None) == file.name.endswith(".tar.gz")
    assert [file.name for file in ORIGINALS["svhn"]] == ["train_32x32.mat", "test_32x32.mat"]
    digests = [file.md5 for files in ORIGINALS.values() for file in files]
    assert len(set(digests)) == len(digests) == 8


@pytest.mark.usefixtures("small")
def test_the_commands_tell_what_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("manigraph.cli.data.DATASETS", ("digits", "cifar10", "svhn"))
    data = tmp_path / "my [red]data"
    with FileServer(FILES, servers.cut_after(250_000), servers.ranged) as server:
        monkeypatch.setenv("MANIGRAPH_MIRROR", server.url)
        monkeypatch.setattr(download, "Patience", lambda: QUICK)
        assert run(["get", "cifar10", "--data-dir", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "images.bin: the connection ended after 250,000 of 300,000 bytes; attempt 2 of 3" in lines
    assert "images.bin: 300.0 kB of 300.0 kB (100 %)" in lines
    assert lines[-1].startswith(f"cifar10 is in {data / 'cifar10'} (301.")
    assert 6 <= len(lines) <= 16

    (data / "svhn").mkdir()
    (data / "svhn/train_32x32.mat.part").write_bytes(CONTENT)
    assert run(["list", "--data_dir", str(data)]) == 0
    table = capsys.readouterr().out
    assert "digits    nothing to download" in table
    assert "cifar10   301." in table
    assert "svhn      300.0 kB, not finished: manigraph data get svhn" in table
    assert f"data folder   {data}\n" in table
    assert f"cache folder  {tmp_path / 'cache'} (0 bytes of decoded pixels)\n" in table

    assert run(["list", "--data_dir", str(tmp_path / "nowhere")]) == 0
    assert "cifar10   no: manigraph data get cifar10" in capsys.readouterr().out
    assert not (tmp_path / "nowhere").exists()


def test_clear_deletes_decoded_pixels_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    for name in ("decoded/abc/images.npy", "fingerprints/x.json", "data/cifar10/file", "other/file"):
        (cache / name).parent.mkdir(parents=True)
        (cache / name).write_bytes(bytes(500_000))
    (cache / "decoded/abc/link").symlink_to(cache / "other")
    assert run(["list"]) == 0
    assert "(1.0 MB of decoded pixels)" in capsys.readouterr().out
    assert run(["clear"]) == 0
    assert capsys.readouterr().out == f"freed 1.0 MB in {cache}\n"
    assert names(cache) == ["data", "data/cifar10", "data/cifar10/file", "other", "other/file"]
    assert run(["clear"]) == 0
    assert capsys.readouterr().out == f"freed 0 bytes in {cache}\n"


def test_clear_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("precious")
    (tmp_path / "cache/decoded").symlink_to(tmp_path / "precious")
    assert "delete it yourself" in refusal(lambda: run(["clear"]))
    assert (tmp_path / "precious/file").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gt"], "unknown action 'gt': did you mean 'get'?"),
        (["get", "cifar"], "unknown data set 'cifar': did you mean 'cifar10'?"),
        (["get", "digits"], "data set 'digits' has nothing to download"),
        (["get"], "NAME"),
        (["get", "cifar10", "--dat_dir", "x"], "unknown option '--dat_dir': did you mean '--data_dir'?"),
        (["clear", "everything"], "everything"),
    ],
)
def test_bad_input_gets_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    assert message in refusal(lambda: run(arguments))
    assert names(tmp_path) == []


def test_an_unknown_data_set_is_not_downloaded(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'svhn'"):
        get("svhm", Locations(tmp_path, tmp_path))


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_every_action(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    text = capsys.readouterr().out
    assert all(f"  {action} " in text for action in ("get", "list", "clear"))
    with contextlib.suppress(SystemExit):
        run(["get", "--help"])
    assert "NAME" in capsys.readouterr().out
