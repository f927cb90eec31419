import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dumlp_pin.data import DataError
from dumlp_pin.data.download import Download, fetch

CONTENT = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT under any address; knows ranges unless told not to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges = True
        self.status = 200
        self.break_after: int | None = None  # bytes of an answer, then the connection ends
        self.asked: list[str | None] = []  # the Range of every request

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file.bin"


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        start = 0
        if asked and self.server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])  # pyright: ignore
        if self.server.status != 200 or start >= len(CONTENT):
            self.send_response(416 if self.server.status == 200 else self.server.status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        stop = self.server.break_after
        self.wfile.write(CONTENT[start : None if stop is None else start + stop])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def dead_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/file.bin"


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_downloads_once(sha256: str | None, server: Server, tmp_path: Path) -> None:
    download = Download("file.bin", (server.url,), sha256)
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        assert fetch(download, folder, progress=True).read_bytes() == CONTENT
    assert server.asked == [None]
    assert [path.name for path in folder.iterdir()] == ["file.bin"]


def test_goes_on_where_it_broke_off(server: Server, tmp_path: Path) -> None:
    download = Download("file.bin", (server.url,), SHA256)
    server.break_after = 300_000
    with pytest.raises(DataError, match="connection closed after 300000 of 1280000 bytes"):
        fetch(download, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin.part"]
    server.break_after = None
    assert fetch(download, tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-"]


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"what came before")
    server.ranges = False
    assert fetch(Download("file.bin", (server.url,), SHA256), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("surplus", [b"", b"more"])
def test_a_part_as_long_as_the_file_starts_again(
    surplus: bytes, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT + surplus)
    assert fetch(Download("file.bin", (server.url,), SHA256), tmp_path).read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT) + len(surplus)}-", None]


def test_the_second_mirror_when_the_first_is_dead(
    server: Server, dead_url: str, tmp_path: Path
) -> None:
    download = Download("file.bin", (dead_url, server.url), SHA256)
    assert fetch(download, tmp_path).read_bytes() == CONTENT


def test_the_second_mirror_goes_on_where_the_first_broke_off(
    server: Server, tmp_path: Path
) -> None:
    with Server() as first:
        first.break_after = 1000
        thread = threading.Thread(target=first.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        download = Download("file.bin", (first.url, server.url), SHA256)
        assert fetch(download, tmp_path).read_bytes() == CONTENT
        first.shutdown()
        thread.join()
    assert server.asked == ["bytes=1000-"]


def test_a_wrong_hash_leaves_nothing(server: Server, tmp_path: Path) -> None:
    download = Download("file.bin", (server.url,), "0" * 64)
    with pytest.raises(DataError) as caught:
        fetch(download, tmp_path)
    assert str(caught.value) == (
        f"file.bin: no mirror delivered it: {server.url} (its sha256 is not the published one); "
        "get it by hand and say where it is with --from PATH"
    )
    assert not list(tmp_path.iterdir())


def test_a_part_of_another_file_is_not_kept(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"what came before")
    download = Download("file.bin", (server.url, server.url), SHA256)
    assert fetch(download, tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=16-", None]


def test_a_damaged_file_is_downloaded_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(CONTENT[:-1])
    assert fetch(Download("file.bin", (server.url,), SHA256), tmp_path).read_bytes() == CONTENT


def test_all_mirrors_dead(server: Server, dead_url: str, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(DataError) as caught:
        fetch(Download("file.bin", (dead_url, server.url), SHA256), tmp_path)
    message = str(caught.value)
    assert f"{dead_url} (" in message
    assert f"{server.url} (HTTP Error 404: Not Found)" in message
    assert "\n" not in message
    assert not (tmp_path / "file.bin").exists()
