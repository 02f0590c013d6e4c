"""Downloads, against a server on this machine that can do everything a bad day brings."""

import hashlib
import http.server
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pictures import tarred, write_folders

from benchmark.data.download import Address, SourceError, resolve
from benchmark.data.fetch import FetchOptions, fetch_file
from benchmark.display import Display, Stop
from benchmark.errors import DataError, UsageError
from benchmark.protocol.models import Archive

PAYLOAD = bytes(range(256)) * 4000


class Server(http.server.ThreadingHTTPServer):
    """Serves `content` under any path; the path's first word says what goes wrong."""

    daemon_threads = True
    content = PAYLOAD
    log: list[tuple[str, str | None]]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format, *args):  # noqa: A002
        pass

    def do_GET(self):
        content, wanted = self.server.content, self.headers.get("Range")
        what = self.path.split("/")[1]
        self.server.log.append((what, wanted))
        if what == "gone":
            return self.send_error(404)
        if what == "hang":
            return time.sleep(20)
        if what == "page":
            return self.whole(b"<!DOCTYPE html><p>Please log in</p>", "text/html")
        if what == "hidden-page":
            return self.whole(b"\n <HTML><p>quota exceeded", "application/octet-stream")
        if what == "wrong":
            return self.whole(b"x" + content[1:])
        first_time = sum(asked == what for asked, _ in self.server.log) == 1
        if what == "cut" or (what.startswith("flaky") and first_time):
            return self.whole(content, sent=len(content) // 2)
        if what == "slow":
            time.sleep(1)
        if what == "stall":
            self.whole(content, sent=len(content) // 2)
            return time.sleep(20)
        if wanted and what != "flaky-no-ranges":
            first = int(wanted.removeprefix("bytes=").rstrip("-"))
            if first >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                return self.end_headers()
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - first))
            self.end_headers()
            return self.wfile.write(content[first:])
        return self.whole(content)

    def whole(self, content: bytes, kind: str = "application/gzip", sent: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:sent])
        self.wfile.flush()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as served:
        served.log = []
        thread = threading.Thread(target=served.serve_forever, daemon=True)
        thread.start()
        yield served
        served.shutdown()


def url(server: Server, what: str) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/{what}/file.bin"


def get(server: Server, target: Path, *whats: str, timeout: float = 5.0, accept: bool = False, **digests: str) -> Path:
    archive = Archive(file="file.bin", megabytes=1, urls=tuple(url(server, what) for what in whats), **digests)
    options = FetchOptions(timeout=timeout, accept_digest=accept)
    return fetch_file(archive, target, options, Display(quiet=True), Stop())


MD5 = {"md5": hashlib.md5(PAYLOAD).hexdigest()}


def test_a_good_download_is_whole_and_checked_and_not_repeated(server, tmp_path):
    target = tmp_path / "data" / "file.bin"
    assert get(server, target, "good", **MD5) == target
    assert target.read_bytes() == PAYLOAD
    assert hashlib.sha256(PAYLOAD).hexdigest() in target.with_name("file.bin.sha256").read_text()
    get(server, target, "good", **MD5)
    assert len(server.log) == 1


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("gone", "the server says 404"),
        ("page", "web page instead of the file"),
        ("hidden-page", "web page instead of the file"),
        ("wrong", "its md5 is .* registered is"),
        ("cut", "the connection ended after 512,000 of 1,024,000 bytes"),
        ("hang", "nothing came for 0.5 seconds"),
        ("stall", "nothing came for 0.5 seconds"),
    ],
)
def test_a_bad_source_is_named_and_the_next_one_serves(server, tmp_path, what, said):
    target = tmp_path / "file.bin"
    with pytest.raises(DataError, match=rf"could not be fetched \(http.*{said}.*--source URL"):
        get(server, target, what, timeout=0.5, **MD5)
    assert not target.exists()
    get(server, target, what, "good", timeout=0.5, **MD5)
    assert target.read_bytes() == PAYLOAD
    assert not list(tmp_path.glob("*.part"))


def test_nobody_listens(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    archive = Archive(file="file.bin", megabytes=1, urls=(f"http://127.0.0.1:{port}/x",))
    with pytest.raises(DataError, match="no connection"):
        fetch_file(archive, tmp_path / "file.bin", FetchOptions(), Display(quiet=True), Stop())


def part_of(server: Server, target: Path, what: str) -> Path:
    return target.with_name(f"{target.name}.{hashlib.sha256(url(server, what).encode()).hexdigest()[:8]}.part")


@pytest.mark.parametrize("what", ["flaky", "flaky-no-ranges"])
def test_a_download_continues_where_it_was_cut(server, tmp_path, what):
    target = tmp_path / "file.bin"
    with pytest.raises(DataError):
        get(server, target, what, **MD5)
    assert part_of(server, target, what).stat().st_size == len(PAYLOAD) // 2
    get(server, target, what, **MD5)
    assert target.read_bytes() == PAYLOAD
    assert server.log[-1] == (what, f"bytes={len(PAYLOAD) // 2}-")
    assert not list(tmp_path.glob("*.part"))


def test_halves_of_two_sources_are_not_joined(server, tmp_path):
    """Nobody registered a digest here, so nothing would notice."""
    target = tmp_path / "file.bin"
    with pytest.raises(DataError):
        get(server, target, "cut")
    get(server, target, "good", accept=True)
    assert server.log[-1] == ("good", None)


@pytest.mark.parametrize(("left", "said"), [(b"something else", "thrown away"), (PAYLOAD + b"x", "says 416")])
def test_a_part_of_another_file_is_thrown_away(server, tmp_path, left, said):
    target = tmp_path / "file.bin"
    part_of(server, target, "good").write_bytes(left)
    with pytest.raises(DataError, match=said):
        get(server, target, "good", **MD5)
    get(server, target, "good", **MD5)
    assert target.read_bytes() == PAYLOAD


def test_an_unregistered_digest_must_be_accepted_and_is_not_downloaded_again(server, tmp_path):
    target = tmp_path / "file.bin"
    with pytest.raises(DataError, match=f"sha256 {hashlib.sha256(PAYLOAD).hexdigest()}.*--accept-digest"):
        get(server, target, "good")
    assert not target.exists()
    get(server, target, "good", accept=True)
    assert target.read_bytes() == PAYLOAD
    assert server.log[-1][1] == f"bytes={len(PAYLOAD)}-"


def test_hub_sources_are_pinned(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    commit = "0123456789abcdef0123456789abcdef01234567"
    assert resolve("https://127.0.0.1/file", 1) == Address("https://127.0.0.1/file")
    with pytest.raises(SourceError, match="no connection"):
        resolve(f"hub:timm/some.model@{commit}/model.safetensors", 1)  # it is a source, and nobody is there
    for unpinned in ("hub:timm/some.model/model.safetensors", "hub:timm/some.model@main/x", "file:///etc/passwd", "x"):
        with pytest.raises(UsageError, match="--source"):
            resolve(unpinned, 1)


# --- the command, from server to usable data ---


def test_fetch_with_a_wrong_checksum_is_one_sentence(server, tmp_path, bench):
    write_folders(tmp_path / "made" / "cifar-10-batches-py")
    server.content = tarred(tmp_path / "made" / "cifar-10-batches-py", tmp_path / "made.tar.gz").read_bytes()
    done = bench("fetch", "cifar10", "--data-dir", "here", "--source", url(server, "good"), "--timeout", "1")
    assert done.returncode == 3
    assert "its md5 is" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "here" / "cifar-10-python.tar.gz").exists()


def test_two_at_once_download_once(server, tmp_path):
    code = (
        "import sys; from pathlib import Path; from benchmark.data.fetch import *\n"
        "archive = Archive(file='file.bin', megabytes=1, urls=(sys.argv[1],), md5=sys.argv[2])\n"
        "fetch_file(archive, Path(sys.argv[3]), FetchOptions(), Display(quiet=True), Stop())\n"
    )
    words = [sys.executable, "-c", code, url(server, "slow"), MD5["md5"], str(tmp_path / "file.bin")]
    both = [subprocess.Popen(words) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert len(server.log) == 1
    assert (tmp_path / "file.bin").read_bytes() == PAYLOAD
