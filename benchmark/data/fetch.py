"""Downloads: a dataset's archive or a backbone's weights, nothing of which is believed before it was checked.

`bench fetch` asks for one by name; `bench run` and `bench bank` fetch what they miss. A download goes to a `.part` that
the next attempt continues. It gets its name only when size and digest are right and it is not a web page. What the
model hub serves under a pinned revision has the digest that the hub states for it, where nobody registered another.
Archives are checked before they are unpacked (no links, no paths that leave the folder, no more than a stated size)
into a temporary folder that is then renamed.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from benchmark.data.datasets import data_folder
from benchmark.data.download import SourceError, copied_from_hub_cache, resolve, transfer
from benchmark.data.layouts import find_layout
from benchmark.data.unpack import unpack
from benchmark.digests import move_aside
from benchmark.display import Display, Stop
from benchmark.errors import DataError, UsageError
from benchmark.files import atomic_write, file_digest, make_folder, waiting_lock
from benchmark.protocol.catalogue import fetched_weights, load_backbones, load_datasets
from benchmark.protocol.models import Archive, Backbone, DatasetSpec
from benchmark.protocol.reading import suggest

DO_WITHOUT = "(--offline fetches nothing)"


@dataclass(frozen=True)
class FetchOptions:
    """How to fetch: where to look instead of the registered places, how long to wait, what digest will do."""

    sources: tuple[str, ...] = ()
    timeout: float = 30.0
    accept_digest: bool = False


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
            return fetch_weights(spec, FetchOptions(timeout=silence()), display, self.stop)

    def dataset(self, spec: DatasetSpec, root: Path) -> Path:
        with Display(quiet=self.quiet) as display:
            display.say(f"{spec.title} is not in {root}, it is fetched now {DO_WITHOUT}")
            return fetch_dataset(spec, root, FetchOptions(timeout=silence()), display, self.stop)


def fetch(name: str, data_dir: Path | None, options: FetchOptions, display: Display, stop: Stop) -> Path:
    """Make a dataset or a backbone's weights be there; where they are."""
    datasets, backbones = load_datasets(), load_backbones()
    if name in datasets:
        return fetch_dataset(datasets[name], data_folder(data_dir), options, display, stop)
    if name in backbones:
        return fetch_weights(backbones[name], options, display, stop)
    raise UsageError(f"unknown dataset or backbone '{name}'{suggest(name, [*datasets, *backbones])}")


def fetch_weights(spec: Backbone, options: FetchOptions, display: Display, stop: Stop) -> Path:
    if spec.download is None:
        raise UsageError(f"backbone '{spec.name}' is not for download: give its file with --weights")
    archive = spec.download.model_copy(update={"sha256": spec.sha256})
    return fetch_file(archive, fetched_weights(archive), options, display, stop)


def fetch_dataset(spec: DatasetSpec, root: Path, options: FetchOptions, display: Display, stop: Stop) -> Path:
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
        archive = fetch_file(spec.archive, root / spec.archive.file, options, display, stop)
        display.say(f"unpacking {archive.name}")
        unpack(archive, root)
        archive.unlink()
        found = find_layout(spec, root)
    if found is None:
        raise DataError(f"{spec.archive.file} did not hold {spec.title}: nothing usable came out of it in {root}")
    return found.place


def fetch_file(archive: Archive, target: Path, options: FetchOptions, display: Display, stop: Stop) -> Path:
    """One file, from the first source that serves it whole and unchanged."""
    make_folder(target.parent)
    with waiting_lock(target.with_name(f".{target.name}.lock"), "fetching the same file", display, stop):
        if target.is_file() and is_sound(target, archive.sha256):
            display.say(f"{target} is already there")
            return target
        if target.is_file():
            move_aside(target, "it is fetched again")
        reasons = []
        for source in options.sources or archive.urls:
            # a part belongs to its source: halves of two files make no whole
            part = target.with_name(f"{target.name}.{hashlib.sha256(source.encode()).hexdigest()[:8]}.part")
            size = f"{archive.bytes:,} bytes" if archive.bytes else f"about {archive.megabytes} MB"
            display.say(f"fetching {archive.file}, {size}, from {source}")
            try:
                stated = copied_from_hub_cache(source, part)
                if stated is None:
                    address = resolve(source, options.timeout)
                    transfer(address.url, part, options.timeout, display, stop)
                    stated = address.sha256
                digest = checked(part, archive, target, options, stated)
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


def checked(part: Path, archive: Archive, target: Path, options: FetchOptions, stated: str | None) -> str:
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
    if all(registered is None for _, registered, _ in known) and not options.accept_digest:
        raise DataError(
            f"{target.name} has sha256 {sha256} and nobody registered one to compare with: if you trust the source, "
            "the same command with --accept-digest takes it, without downloading again if the server can continue"
        )
    return sha256
