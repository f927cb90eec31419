"""Downloads that go on where they broke off, from the first mirror that answers."""

from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from dumlp_pin._errors import need
from dumlp_pin.data.checks import DataError, reason

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Download:
    """A published file and the addresses that hold the same bytes of it."""

    file: str
    mirrors: tuple[str, ...]
    sha256: str | None = None  # None where the publisher's is not known


def fetch(download: Download, folder: Path, progress: bool = False) -> Path:
    """The file in this folder, downloaded unless it is there with the right content."""
    pooch = need("pooch", "data")
    pooch.get_logger().setLevel("ERROR")
    part = folder / f"{download.file}.part"

    def resume(url: str, output_file: str, _: Any) -> None:
        _resume(url, part, progress)
        part.replace(output_file)

    refusals = []
    for url in download.mirrors:
        try:
            # pooch keeps what is right, checks the hash and moves the file into place whole.
            return Path(
                pooch.retrieve(
                    url,
                    known_hash=download.sha256 and f"sha256:{download.sha256}",
                    fname=download.file,
                    path=folder,
                    downloader=resume,
                )
            )
        except (OSError, HTTPException) as error:
            refusals.append(f"{url} ({reason(error)})")
        except ValueError:
            refusals.append(f"{url} (its sha256 is not the published one)")
    raise DataError(
        f"{download.file}: no mirror delivered it: {', '.join(refusals)}; "
        "get it by hand and say where it is with --from PATH"
    )


def _resume(url: str, part: Path, progress: bool) -> None:
    """Add to `part` what it still lacks of the file at this address."""
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urlopen(request, timeout=60)
    except HTTPError as error:
        if have and error.code == 416:  # nothing beyond what we have: not a part of this file
            part.unlink()
            _resume(url, part, progress)
            return
        raise
    with response:
        if response.status != 206:  # a server that knows no ranges starts from the beginning
            have = 0
        length = response.headers["Content-Length"]
        total = have + int(length) if length else None
        columns = (TextColumn(part.stem), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        bar = Progress(*columns, disable=not progress)
        with bar, part.open("ab" if have else "wb") as file:
            task = bar.add_task(part.stem, total=total, completed=have)
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                bar.advance(task, len(chunk))
    if total is not None and part.stat().st_size != total:
        raise OSError(f"connection closed after {part.stat().st_size} of {total} bytes")
