"""One file from one source: a web address, or the model hub at a pinned revision."""

import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO

from benchmark.display import Display, Stop
from benchmark.errors import InterruptedRunError, UsageError

BLOCK = 1 << 18
HUB = re.compile(r"^hub:([\w.-]+/[\w.-]+)@([0-9a-f]{40})/([\w./-]+)$")
SHA256 = r"[0-9a-f]{64}"
AGENT = "cncd-bench"


class SourceError(Exception):
    """Why one source did not do; the next is tried."""


@dataclass(frozen=True)
class Address:
    """Where a file is served, and the digest that the hub states for it."""

    url: str
    sha256: str | None = None


def resolve(source: str, timeout: float) -> Address:
    """A web address; `hub:owner/repository@revision/file` is one at the model hub, pinned to a commit."""
    if source.startswith(("http://", "https://")):
        return Address(source)
    found = HUB.match(source)
    if found is None:
        raise UsageError(
            f"--source: '{source}': must begin with http:// or https://, or be hub:owner/name@REVISION/file "
            "with the 40 digits of a commit"
        )
    repository, revision, file = found.groups()
    return hub_address(repository, revision, file, timeout)


def hub_address(repository: str, revision: str, file: str, timeout: float) -> Address:
    """Ask the hub (or the mirror in `$HF_ENDPOINT`) for a file of a pinned revision."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url  # noqa: PLC0415 - slow to import, and seldom needed
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    mirror = os.environ.get("HF_ENDPOINT") or None
    url = hf_hub_url(repository, file, revision=revision, endpoint=mirror)
    try:
        metadata = get_hf_file_metadata(url, timeout=timeout, endpoint=mirror)
    except HfHubHTTPError as error:
        raise SourceError(f"the hub says {error.response.status_code}") from None
    except Exception as error:  # noqa: BLE001 - what its client raises without a connection is its own affair
        late = "timeout" in type(error).__name__.lower()
        why = f"nothing came for {timeout:g} seconds" if late else f"no connection ({error})"
        raise SourceError(why) from None
    if metadata.commit_hash not in (None, revision):
        raise SourceError(f"the hub serves revision {metadata.commit_hash[:12]}…, asked for was {revision[:12]}…")
    return Address(url, metadata.etag if metadata.etag and re.fullmatch(SHA256, metadata.etag) else None)


def copied_from_hub_cache(source: str, part: Path) -> str | None:
    """The digest under which the hub's own cache has the file, copied to `part`; none if it is not there.

    Whoever used timm with these weights before need not download them again.
    """
    found = HUB.match(source)
    if found is None:
        return None
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415

    repository, revision, file = found.groups()
    there = try_to_load_from_cache(repository, file, revision=revision)
    stated = Path(there).resolve().name if isinstance(there, str) else ""
    if not re.fullmatch(SHA256, stated):
        return None
    shutil.copyfile(str(there), part)
    return stated


def transfer(url: str, part: Path, timeout: float, display: Display, stop: Stop) -> None:
    """Bring `part` to its full size, continuing where an earlier attempt ended if the server can."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": AGENT} | ({"Range": f"bytes={have}-"} if have else {})
    with explained(timeout):
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - http and https only, see resolve
        try:
            answer = urllib.request.urlopen(request, timeout=timeout)  # noqa: S310
        except urllib.error.HTTPError as error:
            if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{have}":
                return  # all of it is here
            if have:
                part.unlink()  # not to be continued: the next attempt begins anew
            raise SourceError(f"the server says {error.code} {error.reason}") from None
    with answer:
        total = expected_size(answer, have)
        refuse_pages(answer)
        if answer.status != 206:
            have = 0
        with part.open("ab" if have else "wb") as file:
            receive(answer, file, have, total, timeout, display, stop)


@contextmanager
def explained(timeout: float) -> Iterator[None]:
    """Whatever a connection can fail with becomes a reason to try the next source."""
    try:
        yield
    except TimeoutError:
        raise SourceError(f"nothing came for {timeout:g} seconds") from None
    except (OSError, HTTPException, ValueError) as error:  # refused, reset, no such host, no valid address
        reason = getattr(error, "reason", None) or error
        late = isinstance(reason, TimeoutError)
        raise SourceError(f"nothing came for {timeout:g} seconds" if late else f"no connection ({reason})") from None


def expected_size(answer: HTTPResponse, have: int) -> int | None:
    """Size of the whole file as the server tells it; none if it does not."""
    if answer.status == 206:
        sent_range = re.match(r"bytes (\d+)-\d+/(\d+)$", answer.headers.get("Content-Range", ""))
        if sent_range is None or int(sent_range[1]) != have:
            raise SourceError("the server continues at another place than it was asked to")
        return int(sent_range[2])
    length = answer.headers.get("Content-Length")
    return int(length) if length and length.isdigit() else None


def refuse_pages(answer: HTTPResponse) -> None:
    """A log-in or error page is not data, whatever its status says."""
    if answer.headers.get_content_type() in ("text/html", "application/xhtml+xml"):
        raise SourceError("the server sent a web page instead of the file")


def receive(
    answer: HTTPResponse, file: IO[bytes], have: int, total: int | None, timeout: float, display: Display, stop: Stop
) -> None:
    """Write what comes; a disk that is full is not the source's fault."""
    display.start("download", total or 0, have, unit="bytes")
    while True:
        with explained(timeout):
            block = answer.read1(BLOCK)  # what has come, so that a signal is not kept waiting by a slow server
        if not block:
            break
        if have == 0 and re.match(rb"\s*<(!doctype html|html)", block[:100], re.IGNORECASE):
            raise SourceError("the server sent a web page instead of the file")
        file.write(block)
        have += len(block)
        display.step(have)
        if stop.signal is not None:
            raise InterruptedRunError(stop.signal, "what was downloaded is kept")
    if total is not None and have != total:
        raise SourceError(f"the connection ended after {have:,} of {total:,} bytes; what came is kept")
