"""Downloads: a dataset's archive or a backbone's weights, nothing of which is believed before it was checked.

`bench fetch` asks for one by name; `bench run` and `bench bank` fetch what they miss. A download goes to a `.part` that
the next attempt continues. It gets its name only when size and digest are right and it is not a web page. What the
model hub serves under a pinned revision has the digest that the hub states for it, where nobody registered another.
Archives are unpacked by name and bytes alone (no links, no paths that leave the folder, no more than a stated size)
into a temporary folder that is then renamed.
"""

import hashlib
import os
import re
import shutil
import stat
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import IO

from benchmark.data import data_folder
from benchmark.errors import DataError, InterruptedRunError, UsageError
from benchmark.files import atomic_write, file_digest, make_folder, waiting_lock
from benchmark.intact import move_aside
from benchmark.layouts import find_layout
from benchmark.progress import Display, Stop
from benchmark.protocol import Archive, Backbone, DatasetSpec, fetched_weights, load_backbones, load_datasets, suggest

BLOCK = 1 << 18
MOST_MEMBERS, MOST_BYTES, MOST_RATIO = 1_000_000, 50_000_000_000, 200
"""What an archive may unpack to: members, bytes, and bytes for each byte of the archive."""
BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError)
"""What a broken archive may raise while it is read; RuntimeError is what zipfile says of an encrypted one."""
HUB = re.compile(r"^hub:([\w.-]+/[\w.-]+)@([0-9a-f]{40})/([\w./-]+)$")
SHA256 = r"[0-9a-f]{64}"
AGENT = "cncd-bench"
DO_WITHOUT = "(--offline fetches nothing)"


@dataclass(frozen=True)
class Wish:
    """How to fetch: where to look instead of the registered places, how long to wait, what digest will do."""

    sources: tuple[str, ...] = ()
    timeout: float = 30.0
    accept_digest: bool = False


class SourceError(Exception):
    """Why one source did not do; the next is tried."""


def is_offline(asked: bool) -> bool:
    """Whether nothing may be fetched: `--offline`, or `$CNCD_OFFLINE` with anything but nothing and 0."""
    return asked or os.environ.get("CNCD_OFFLINE", "") not in ("", "0")


def silence() -> float:
    """Seconds a server may be silent: `$CNCD_TIMEOUT`, else 30."""
    text = os.environ.get("CNCD_TIMEOUT") or "30"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 100_000:
        raise UsageError(f"$CNCD_TIMEOUT: '{text}': must be a number of seconds")
    return seconds


@dataclass(frozen=True)
class Fetching:
    """Fetches what a run misses, and says what it does."""

    stop: Stop
    quiet: bool = False

    def weights(self, spec: Backbone) -> Path:
        with Display(quiet=self.quiet) as display:
            display.say(f"the weights of backbone '{spec.name}' are not here, they are fetched now {DO_WITHOUT}")
            return fetch_weights(spec, Wish(timeout=silence()), display, self.stop)

    def dataset(self, spec: DatasetSpec, root: Path) -> Path:
        with Display(quiet=self.quiet) as display:
            display.say(f"{spec.title} is not in {root}, it is fetched now {DO_WITHOUT}")
            return fetch_dataset(spec, root, Wish(timeout=silence()), display, self.stop)


def fetch(name: str, data_dir: Path | None, wish: Wish, display: Display, stop: Stop) -> Path:
    """Make a dataset or a backbone's weights be there; where they are."""
    datasets, backbones = load_datasets(), load_backbones()
    if name in datasets:
        return fetch_dataset(datasets[name], data_folder(data_dir), wish, display, stop)
    if name in backbones:
        return fetch_weights(backbones[name], wish, display, stop)
    raise UsageError(f"unknown dataset or backbone '{name}'{suggest(name, [*datasets, *backbones])}")


def fetch_weights(spec: Backbone, wish: Wish, display: Display, stop: Stop) -> Path:
    if spec.download is None:
        raise UsageError(f"backbone '{spec.name}' is not for download: give its file with --weights")
    archive = spec.download.model_copy(update={"sha256": spec.sha256})
    return fetch_file(archive, fetched_weights(archive), wish, display, stop)


def fetch_dataset(spec: DatasetSpec, root: Path, wish: Wish, display: Display, stop: Stop) -> Path:
    """Download and unpack below `root`, unless the dataset is there already; one process at a time."""
    if spec.held_out_of is not None:
        spec = load_datasets()[spec.held_out_of]
    if spec.archive is None:
        raise UsageError(f"{spec.name} comes with the package, there is nothing to fetch")
    with waiting_lock(make_folder(root) / f".{spec.name}.lock", "fetching the same dataset", display, stop):
        found = find_layout(spec, root)
        if found is not None:
            display.say(f"{spec.title} is already in {found.place}")
            return found.place
        archive = fetch_file(spec.archive, root / spec.archive.file, wish, display, stop)
        display.say(f"unpacking {archive.name}")
        unpack(archive, root)
        archive.unlink()
        found = find_layout(spec, root)
    if found is None:
        raise DataError(f"{spec.archive.file} did not hold {spec.title}: nothing usable came out of it in {root}")
    return found.place


def fetch_file(archive: Archive, target: Path, wish: Wish, display: Display, stop: Stop) -> Path:
    """One file, from the first source that serves it whole and unchanged."""
    make_folder(target.parent)
    with waiting_lock(target.with_name(f".{target.name}.lock"), "fetching the same file", display, stop):
        if target.is_file() and is_sound(target, archive.sha256):
            display.say(f"{target} is already there")
            return target
        if target.is_file():
            move_aside(target, "it is fetched again")
        reasons = []
        for source in wish.sources or archive.urls:
            # a part belongs to its source: halves of two files make no whole
            part = target.with_name(f"{target.name}.{hashlib.sha256(source.encode()).hexdigest()[:8]}.part")
            size = f"{archive.bytes:,} bytes" if archive.bytes else f"about {archive.megabytes} MB"
            display.say(f"fetching {archive.file}, {size}, from {source}")
            try:
                stated = copied_from_hub_cache(source, part)
                if stated is None:
                    address = resolve(source, wish.timeout)
                    transfer(address.url, part, wish.timeout, display, stop)
                    stated = address.sha256
                digest = checked(part, archive, target, wish, stated)
            except SourceError as error:
                reasons.append(f"{source}: {error}")
                display.say(f"{source}: {error}")
                continue
            atomic_write(target.with_name(f"{target.name}.sha256"), f"{digest}  {target.name}\n".encode())
            part.replace(target)
            for other in target.parent.glob(f"{target.name}.*.part"):
                other.unlink()
            return target
    raise DataError(
        f"{archive.file} could not be fetched ({'; '.join(reasons)}): try again later, give another place with "
        f"`bench fetch NAME --source URL`, or put the file at {target} yourself"
    )


def is_sound(target: Path, registered: str | None) -> bool:
    """Whether a fetched file is what it was: by the registered digest, else by the one written beside it."""
    beside = target.with_name(f"{target.name}.sha256")
    noted = beside.read_text(encoding="utf-8").split()[:1] if beside.is_file() else []
    expected = registered or (noted[0] if noted else None)
    return expected is None or file_digest(target) == expected


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
        told = get_hf_file_metadata(url, timeout=timeout, endpoint=mirror)
    except HfHubHTTPError as error:
        raise SourceError(f"the hub says {error.response.status_code}") from None
    except Exception as error:  # noqa: BLE001 - what its client raises without a connection is its own affair
        late = "timeout" in type(error).__name__.lower()
        why = f"nothing came for {timeout:g} seconds" if late else f"no connection ({error})"
        raise SourceError(why) from None
    if told.commit_hash not in (None, revision):
        raise SourceError(f"the hub serves revision {told.commit_hash[:12]}…, asked for was {revision[:12]}…")
    return Address(url, told.etag if told.etag and re.fullmatch(SHA256, told.etag) else None)


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
        told = re.match(r"bytes (\d+)-\d+/(\d+)$", answer.headers.get("Content-Range", ""))
        if told is None or int(told[1]) != have:
            raise SourceError("the server continues at another place than it was asked to")
        return int(told[2])
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


def checked(part: Path, archive: Archive, target: Path, wish: Wish, stated: str | None) -> str:
    """The SHA-256 of a complete download, if it is the registered one, else the hub's, or the user accepts it."""
    size = part.stat().st_size
    if archive.bytes is not None and size != archive.bytes:
        part.unlink()
        raise SourceError(f"it has {size:,} bytes, registered are {archive.bytes:,}; thrown away")
    with part.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    known = (("sha256", archive.sha256, sha256), ("md5", archive.md5, md5), ("sha256", stated, sha256))
    for kind, registered, found in known:
        if registered is not None and registered != found:
            part.unlink()
            raise SourceError(f"its {kind} is {found[:12]}…, registered is {registered[:12]}…; thrown away")
    if all(registered is None for _, registered, _ in known) and not wish.accept_digest:
        raise DataError(
            f"{target.name} has sha256 {sha256} and nobody registered one to compare with: if you trust the source, "
            "the same command with --accept-digest takes it, without downloading again if the server can continue"
        )
    return sha256


@dataclass(frozen=True)
class Entry:
    """One entry of an archive."""

    name: str
    size: int
    kind: str
    """`file`, `folder`, or what else it is."""


def tar_entries(archive: tarfile.TarFile) -> Iterator[tuple[Entry, IO[bytes] | None]]:
    for member in archive:
        kind = "file" if member.isreg() else "folder" if member.isdir() else "link or device"
        yield Entry(member.name, member.size, kind), archive.extractfile(member) if kind == "file" else None


def zip_entries(archive: zipfile.ZipFile) -> Iterator[tuple[Entry, IO[bytes] | None]]:
    for info in archive.infolist():
        mode = info.external_attr >> 16
        kind = "folder" if info.is_dir() else "link" if mode and stat.S_ISLNK(mode) else "file"
        yield Entry(info.filename, info.file_size, kind), archive.open(info) if kind == "file" else None


@contextmanager
def entries_of(path: Path) -> Iterator[Iterator[tuple[Entry, IO[bytes] | None]]]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as zipped:
            yield zip_entries(zipped)
    else:
        with tarfile.open(path) as tarred:
            yield tar_entries(tarred)


def unpack(path: Path, root: Path) -> None:
    """Unpack below `root`; what appears there under its own name is complete."""
    part = root / f".unpack-{path.name}"
    shutil.rmtree(part, ignore_errors=True)  # of somebody who was killed
    part.mkdir()
    try:
        with entries_of(path) as entries:
            unpack_into(entries, part, min(MOST_BYTES, MOST_RATIO * path.stat().st_size), path)
        for entry in sorted(part.iterdir()):
            if (root / entry.name).exists():
                raise DataError(f"{path} holds '{entry.name}', which is already in {root}: move it away")
            entry.rename(root / entry.name)
    except BROKEN as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, FileExistsError):
            raise  # the disk's fault, not the archive's
        raise DataError(f"{path} is damaged or cut short ({error}): remove it and fetch it again") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def unpack_into(entries: Iterator[tuple[Entry, IO[bytes] | None]], folder: Path, most: int, path: Path) -> None:
    """Write plain files and folders; anything else, or more than allowed, stops it before it is written."""
    written = 0
    for number, (entry, content) in enumerate(entries):
        target = folder / safe_name(entry, path)
        if number >= MOST_MEMBERS or written + entry.size > most:
            raise DataError(f"{path} is refused: it would unpack to more than an archive of its size should")
        if entry.kind == "folder":
            target.mkdir(parents=True, exist_ok=True)
            continue
        assert content is not None
        target.parent.mkdir(parents=True, exist_ok=True)
        with content, target.open("xb") as file:
            while block := content.read(BLOCK):
                written += len(block)
                if written > most:  # sizes in an archive are only what it claims
                    raise DataError(f"{path} is refused: it unpacks to more than it says")
                file.write(block)


def safe_name(entry: Entry, path: Path) -> Path:
    """The entry's name, if it is a plain file or folder that stays inside."""
    name = PurePosixPath(entry.name.replace("\\", "/"))
    if entry.kind not in ("file", "folder"):
        raise DataError(f"{path} is refused: '{entry.name}' in it is a {entry.kind}")
    if name.is_absolute() or ".." in name.parts or ":" in entry.name or "\0" in entry.name:
        raise DataError(f"{path} is refused: '{entry.name}' in it would be written outside its folder")
    return Path(*name.parts)
