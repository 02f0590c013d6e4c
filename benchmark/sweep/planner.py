"""From runs that are wanted to the steps of a plan: what is done is left out, what others need comes first."""

import json
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.data.datasets import Dataset, data_folder
from benchmark.engine.request import Lookups, Request, ask
from benchmark.errors import MissingError
from benchmark.files import cache_folder, make_folder
from benchmark.protocol.catalogue import fetched_weights
from benchmark.protocol.models import Backbone, DatasetSpec
from benchmark.records.question import DataIdentity
from benchmark.records.record import record_path, setting_text
from benchmark.sweep.past import Past
from benchmark.sweep.plan import Plan, Step, believed_state
from benchmark.sweep.suites import Wanted

if TYPE_CHECKING:
    from benchmark.tokens.bank import Bank

UNKNOWN = "unknown"
"""For the digest of what nobody has registered and is not here."""


MEMORY_MB = {"fetch": 500, "bank": 6000, "base": 3000, "run": 3000}
"""What a step is given where no record says what such a run took."""


@dataclass(frozen=True)
class Shares:
    """How a machine is divided: cores of a run, of a bank, and where runs compute."""

    threads: int
    cores: int
    device: str = "auto"


class Expected(Lookups):
    """Takes registered digests for data and weights that are not here yet, and notes what must be fetched.

    Once it is fetched, the plan is made anew from what came.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fetches: dict[str, Step] = {}

    def find_weights(self, spec: Backbone, given: Path | None) -> tuple[Path, str]:
        try:
            return super().find_weights(spec, given)
        except MissingError:
            if spec.download is None:
                raise
            path = fetched_weights(spec.download)
            self.note(spec.name, path, f"bench fetch {spec.name}")
            return path, spec.identity or UNKNOWN

    def find_images(self, spec: DatasetSpec, data_dir: Path | None) -> tuple[DataIdentity, Dataset | None]:
        try:
            return super().find_images(spec, data_dir)
        except MissingError:
            if spec.archive is None or (data_dir is not None and not data_dir.is_dir()):
                raise
            option = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
            name = spec.held_out_of or spec.name
            self.note(name, data_folder(data_dir) / spec.folders[0], f"bench fetch {name}{option}")
            (a, b), (c, d) = (spec.span(split) or [0, 0] for split in ("train", "test"))
            return DataIdentity(digest=spec.registered or UNKNOWN, train=(a, b), test=(c, d)), None

    def note(self, name: str, path: Path, command: str) -> None:
        step = Step(f"fetch/{name}", "fetch", command, proof=str(path.resolve()), folder=str(Path.cwd()))
        self.fetches[name] = replace(step, memory_mb=MEMORY_MB["fetch"])


@dataclass
class Planner:
    """Makes the steps of runs, and remembers what they share."""

    out: Path
    shares: Shares
    past: Past
    lookups: Expected = field(default_factory=Expected)
    banks: dict[str, Step] = field(default_factory=dict)
    bases: dict[str, Step] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    """That a bank will still take on disk, by the name of its step."""
    known_banks: dict[str, Step | None] = field(default_factory=dict)
    shapes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Tokens and width of a backbone's trunk, by name."""

    def __post_init__(self) -> None:
        self.root, self.cache, self.folder = self.out.resolve(), cache_folder().resolve(), str(Path.cwd())
        self.device = "" if self.shares.device == "auto" else f" --device {shlex.quote(self.shares.device)}"

    def run(self, wanted: Wanted) -> tuple[Request, Step]:
        request = ask(**vars(wanted), lookups=self.lookups)
        question = request.question
        record, work = record_path(self.root, question), self.root / "work" / question.key
        # a run that was begun goes on with the threads it was begun with
        begun = (threads_begun(work / f"{name}.safetensors") for name in ("state", "state-before"))
        threads = next((count for count in begun if count), self.shares.threads)
        took = self.past.of(question)
        step = Step(
            name=f"{question.protocol['name']}/{question.method}/seed{question.seed}-{question.key[:8]}",
            kind="run",
            command=f"bench run {words_of(wanted, wanted.settings, method=wanted.method, params=wanted.params)} "
            f"--threads {threads}{self.device} --out {shlex.quote(str(self.out))}",
            proof=str(record),
            lock=str(work / "lock"),
            folder=self.folder,
            cores=threads,
            memory_mb=took.memory_mb or MEMORY_MB["run"],
            seconds=took.seconds,
        )
        return request, step

    def bank(self, wanted: Wanted, request: Request) -> Step | None:
        """The step that makes the tokens of a run; none if they are there, or kept in memory."""
        if not request.tokens.needs_bank:
            return None
        ours, theirs = request.shared, request.protocol.shared
        decide = ("bank", "trunk", "images")
        chosen = {f"shared.{key}": getattr(ours, key) for key in decide if getattr(ours, key) != getattr(theirs, key)}
        options = words_of(wanted, chosen, run=False)
        if options not in self.known_banks:
            self.known_banks[options] = self._new_bank(request, options)
        step = self.known_banks[options]
        if step is not None:
            self.banks[step.name] = step
        return step

    def _new_bank(self, request: Request, options: str) -> Step | None:
        command = f"bench bank {options} --threads {self.shares.cores}{self.device}"
        views, protocol = request.tokens.views, request.protocol
        every = sum(map(len, protocol.classes)) == protocol.data.classes  # then protocols share it
        formats = "".join(f"-{value}" for value in (request.shared.trunk, request.shared.bank) if value != "float32")
        formats += "" if request.shared.images is None else f"-{request.shared.images}images"
        name = f"bank/{protocol.data.name if every else protocol.name}-{request.backbone.name}{formats}-views{views}"
        cores, memory = self.shares.cores, MEMORY_MB["bank"]
        step = Step(name, "bank", command, folder=self.folder, cores=cores, memory_mb=memory)
        fetches = self.fetches(request)
        if fetches:
            self.bytes[name] = self.expected_bytes(request)
            return replace(step, needs=fetches)
        from benchmark.tokens.bank import FOOTER, HEADER, complete_file, wanted_pieces  # noqa: PLC0415 - imports torch
        from benchmark.tokens.bank_command import bank_of  # noqa: PLC0415

        bank: Bank = bank_of(request.tokens)
        pieces = wanted_pieces(bank, views)
        proof = complete_file(bank.folder.resolve(), pieces)
        missing = bank.missing(pieces)
        if proof.exists() and not missing:
            return None
        proof.unlink(missing_ok=True)  # it says what is no longer true
        name = f"bank/{bank.folder.name}-views{views}"
        self.bytes[name] = sum(HEADER + bank.payload(piece) + FOOTER for piece in missing)
        seconds = sum(map(bank.images, missing)) * self.past.seconds_an_image(request.backbone.name)
        return replace(step, name=name, proof=str(proof), seconds=seconds or None)

    def expected_bytes(self, request: Request) -> int:
        """Of the tokens of a complete dataset that is not here yet."""
        from benchmark.tokens import upkeep  # noqa: PLC0415 - imports torch
        from benchmark.tokens.backbone import build_vit, split_vit  # noqa: PLC0415
        from benchmark.tokens.bank import Shape  # noqa: PLC0415

        spec = request.backbone
        if spec.name not in self.shapes:
            self.shapes[spec.name] = split_vit(build_vit(spec), spec)[0].shape
        shape = Shape(*self.shapes[spec.name], request.shared.bank)
        views = request.tokens.views
        return upkeep.plan(request.protocol, request.data, spec, views, shape, self.cache, None).bytes

    def fetches(self, request: Request) -> tuple[str, ...]:
        """Steps that bring what a run needs and is not here."""
        known = self.lookups.fetches
        data = request.data.held_out_of or request.data.name
        return tuple(known[name].name for name in (request.backbone.name, data) if name in known)

    def base(self, wanted: Wanted, request: Request, threads: int) -> Step:
        """The step that trains the base session of a run."""
        from benchmark.engine.base_session import DONE, base_folder  # noqa: PLC0415 - imports torch

        device = device_type(self.shares.device)
        folder = base_folder(request, device, threads, self.cache)
        name = f"base/{request.protocol.name}-seed{wanted.seed}-{folder.name[:8]}"
        if name not in self.bases:
            words = words_of(wanted, beside_method(wanted, request), run=False, seed=wanted.seed, budget=wanted.budget)
            self.bases[name] = Step(
                name,
                "base",
                f"bench base {words} --threads {threads}{self.device}",
                proof=str(folder / DONE),
                lock=str(folder / "lock"),
                folder=self.folder,
                cores=threads,
                memory_mb=MEMORY_MB["base"],
                seconds=self.past.of(request.question).base_seconds,
            )
        return self.bases[name]


def beside_method(wanted: Wanted, request: Request) -> dict[str, Any]:
    """What was set of the budget and the shared constants, beside what the command names."""
    protocol = request.protocol
    pairs = {
        "budget": (request.budget, protocol.budgets[wanted.budget]),
        "shared": (request.shared, protocol.shared),
    }
    return {
        f"{part}.{key}": value
        for part, (now, plain) in pairs.items()
        for key, value in dict(now).items()
        if value != getattr(plain, key)
    }


def words_of(wanted: Wanted, settings: Mapping[str, Any], *, run: bool = True, **more: Any) -> str:
    """The options of a command as a line to paste."""
    options: dict[str, Any] = {"protocol": wanted.protocol, "backbone": wanted.backbone, "weights": wanted.weights}
    options |= {"views": wanted.views, "data-dir": wanted.data_dir}
    if run:
        options = {"method": None} | options | {"seed": wanted.seed, "budget": wanted.budget}
    options |= more
    words = [f"--{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None]
    words += [f"--set {shlex.quote(f'{key}={setting_text(value)}')}" for key, value in settings.items()]
    return " ".join(words)


def device_type(device: str) -> str:
    """What `--device` comes to on this machine."""
    if device != "auto":
        return device.partition(":")[0]
    import torch  # noqa: PLC0415

    return "cuda" if torch.cuda.is_available() else "cpu"


def threads_begun(state: Path) -> int | None:
    """Threads of an unfinished run, read off the head of its state file; none if there is none."""
    try:
        with state.open("rb") as file:
            head = file.read(int.from_bytes(file.read(8), "little"))
        return int(json.loads(json.loads(head)["__metadata__"]["progress"])["threads"]) or None
    except (OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError):
        return None


def make_plan(name: str, wanted: Iterable[Wanted], out: Path, shares: Shares) -> Plan:
    """All steps that are not done yet, those that others need first."""
    planner = Planner(out, shares, Past.of_results(out))
    states: dict[str, str] = {}
    records, finished, pending = [], [], []
    for one in wanted:
        request, step = planner.run(one)
        records.append(Path(step.proof))
        if step.name in states:  # asked for twice
            continue
        states[step.name] = believed_state(step)
        if states[step.name] in ("done", "diverged"):
            finished.append(step)
        else:
            bank = planner.bank(one, request)
            first = (*planner.fetches(request), *([bank.name] if bank else []))
            pending.append((planner.base(one, request, step.cores), replace(step, needs=first)))
    shared = {name for name, count in Counter(base.name for base, _ in pending).items() if count > 1}
    trained: dict[str, Step] = {}
    for base, step in pending:
        needs = step.needs
        if base.name in shared and not Path(base.proof).exists():
            trained.setdefault(base.name, replace(base, needs=needs))  # before the first run that needs it
            needs = (*needs, base.name)
        trained[step.name] = replace(step, needs=needs)
    steps = [*planner.lookups.fetches.values(), *planner.banks.values(), *trained.values()]
    return Plan(
        name=name,
        out=out,
        steps=steps,
        finished=finished,
        runs=len(states),
        done=sum(state == "done" for state in states.values()),
        diverged=sum(state == "diverged" for state in states.values()),
        shared_base=len(shared),
        bytes=sum(planner.bytes.values()),
        free=shutil.disk_usage(make_folder(cache_folder())).free,
        missing=[*planner.lookups.fetches],
        records=records,
    )


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
