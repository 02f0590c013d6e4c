"""`bench try`: does a method keep the contract? Short runs on the embedded digits, in a folder that is gone afterwards.

The engine refuses much while it runs; its sentence is then what is wrong. What only several runs can show is looked at
here: the same seed twice, hidden labels dealt anew, a run that was interrupted and killed, growth, and every term.
"""

import copy
import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.data.stream import Stream
from benchmark.display import Display, Stop
from benchmark.engine.base_session import BaseLearner, base_session
from benchmark.engine.feed import NovelFeed
from benchmark.engine.lifecycle import begin, build
from benchmark.engine.own_code import naming_own_lines
from benchmark.engine.request import Request, ask
from benchmark.engine.run import Run
from benchmark.engine.world import World, open_world, pick_device
from benchmark.errors import BenchError, DivergedError, InterruptedRunError, UsageError
from benchmark.files import file_digest, make_folder
from benchmark.records.record import RunRecord
from benchmark.seeds import repeatable
from benchmark.watch import Interrupting, Killed, Watch
from methods.contract import Method

SHORT = {"budget.base_epochs": 1, "budget.novel_epochs": 4}
PROTOCOL, VIEWS, SEED = "digits-t2", 2, 0
EPOCHS, LOOKED_AT = 200, (0, 60, 120, 199)
"""Epochs of a session in which terms are looked at: a schedule may keep one out for a while."""
NUDGE = 0.01
"""Weights are moved a little first: where a teacher and its pupil are one, distillation has no gradient."""


@dataclass(frozen=True)
class Finding:
    """What one check found; `said` is empty if all is well."""

    check: str
    said: str = ""
    tried: bool = True

    @property
    def passed(self) -> bool:
        return self.tried and not self.said


@dataclass
class Trial:
    """A method on trial: everything is opened once, every run gets a fresh copy of it."""

    ask: Callable[[], Request]
    """Reads the user's file anew, as another process would."""
    world: World
    folder: Path
    watch: Watch

    @cached_property
    def first(self) -> tuple[RunRecord, str]:
        """What the others are compared with."""
        return self.run("first")

    def run(
        self, name: str, *, stream: Stream | None = None, display: Display | None = None, stop: Stop | None = None
    ) -> tuple[RunRecord, str]:
        """One run below a name of its own: its record, and the digest of all weights at its end."""
        with self.watch.watched():
            request = self.ask()
        out = self.folder / name
        kept = make_folder(out / "kept")
        world = self.fresh(request, stream or self.world.stream, display or Display(quiet=True), stop or Stop())
        with naming_own_lines(request.method.folder), self.watch.watched():
            record = Run(world, out, make_folder(out / "work"), self.folder / "cache", kept).finish()
        return record, file_digest(kept / "weights.safetensors")

    def fresh(self, request: Request, stream: Stream, display: Display, stop: Stop) -> World:
        block = copy.deepcopy(self.world.block)
        return dataclasses.replace(self.world, request=request, stream=stream, block=block, display=display, stop=stop)

    def start(self) -> tuple[Method, World]:
        """The method at the end of the base session."""
        request = self.ask()
        world = self.fresh(request, self.world.stream, Display(quiet=True), Stop())
        base, _, _ = base_session(world, self.folder / "cache")
        return at_end_of_base(world, base), world


def at_end_of_base(world: World, base: BaseLearner) -> Method:
    method = build(world, base).eval()
    world.seeded("end", 0)
    with torch.no_grad():
        method.end(world.session(0))
    return method


def dealt_anew(stream: Stream) -> Stream:
    """The same sessions, the hidden labels of their images shuffled; base labels stay."""
    hidden = stream.hidden.copy()
    for number in range(1, len(stream.sessions)):
        ids = stream.ids(number).numpy()
        hidden[ids] = np.random.default_rng(number).permutation(hidden[ids])
    return dataclasses.replace(stream, hidden=hidden)


def runs_to_the_end(trial: Trial) -> str:
    """The engine says what is wrong."""
    record, _ = trial.first
    return "" if record.status == "done" else f"it ended as {record.status}"


def same_seed(trial: Trial) -> str:
    (first, weights), (second, again) = trial.first, trial.run("second")
    if weights == again and first.comparable() == second.comparable():
        return ""
    return (
        "two runs with the same seed end with different weights: draw random numbers with torch's default generator, "
        "which the engine seeds, and let nothing depend on time, on sets or on what ran before"
    )


def no_labels(trial: Trial) -> str:
    _, weights = trial.first
    _, other = trial.run("dealt", stream=dealt_anew(trial.world.stream))
    if trial.watch.found:
        return f"{trial.watch.found[0]}: images and labels come from the engine alone"
    if weights != other:
        return "weights depend on labels of discovery images, which a method must not see"
    return ""


def resumes(trial: Trial) -> str:
    """Interrupted in the middle of session 1, killed after it, and then let finish."""
    first, weights = trial.first
    stop = Stop()
    with suppress(InterruptedRunError):  # one that trains nothing has no step to stop at, and begins anew below
        trial.run("resumed", display=Interrupting(stop), stop=stop)
    with suppress(Killed):
        trial.run("resumed", display=Interrupting())
    record, again = trial.run("resumed")
    if again == weights and record.comparable() == first.comparable():
        return ""
    return (
        "a run that was interrupted and killed ends otherwise than one that was not: what must survive belongs into "
        "buffers and parameters, registered in build or begin, and begin may use sizes alone"
    )


def old_rows_stay(trial: Trial) -> str:
    method, world = trial.start()
    for number in (1, 2):
        session = world.session(number, method.memory()[0])
        for place, phase in enumerate(method.phases()):
            before = head_rows(method)
            begin(method, world, number, place)
            after = head_rows(method)
            if before is None or after is None:
                continue
            if len(after) < len(before) or not torch.equal(after[: len(before)], before):
                return (
                    f"begin moves old rows of the head in session {number}: rows of known classes must stay bit by bit "
                    "(self.head.grow(rows), or super().begin(session, phase), adds fresh ones)"
                )
            if len(after) != session.total:
                return (
                    f"after begin of session {number} the head has {len(after)} rows, there are {session.total} classes"
                )
            with torch.no_grad():
                method.eval()
                world.seeded("prepare", number, place)
                method.prepare(session, phase)
        with torch.no_grad():
            world.seeded("end", number)
            method.end(session)
    return ""


def head_rows(method: Method) -> Tensor | None:
    weight = getattr(method.head, "weight", None)
    return weight.detach().clone() if isinstance(weight, Tensor) else None


def terms_pull(trial: Trial) -> str:
    """Every term that shows up must have a gradient somewhere."""
    method, world = trial.start()
    session = world.session(1, method.memory()[0])
    for place, phase in enumerate(method.phases()):
        begin(method, world, 1, place)
        with torch.no_grad():
            method.eval()
            world.seeded("prepare", 1, place)
            method.prepare(session, phase)
        feed = NovelFeed(world, 1, place, phase, EPOCHS, method.memory())
        idle = idle_terms(nudged(method), feed, world, place)
        if idle:
            return (
                f"term '{idle[0]}' of phase '{phase.name}' has no gradient for any trained parameter, in any of "
                f"{len(LOOKED_AT)} batches: is it detached, constant, or switched off? Then leave it out"
            )
    return ""


def nudged(method: Method) -> Method:
    moved = copy.deepcopy(method).train()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in moved.parameters():
            if parameter.requires_grad:
                parameter.add_(NUDGE * torch.randn_like(parameter))
    return moved


def idle_terms(method: Method, feed: NovelFeed, world: World, phase: int) -> list[str]:
    trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
    pulled: dict[str, bool] = {}
    for epoch in LOOKED_AT:
        world.seeded("noise", 1, phase, epoch)
        for name, term in method.losses(feed.batch(epoch, 0)).items():
            pulled[name] = pulled.get(name, False) or pulls(term, trained)
    return [name for name, moved in pulled.items() if not moved]


def pulls(term: Tensor, trained: list[nn.Parameter]) -> bool:
    if not term.requires_grad:
        return False
    gradients = torch.autograd.grad(term, trained, retain_graph=True, allow_unused=True)
    return any(gradient is not None and bool(gradient.any()) for gradient in gradients)


CHECKS: dict[str, Callable[[Trial], str]] = {
    "it runs to the end, and the engine refuses nothing": runs_to_the_end,
    "same seed, same result": same_seed,
    "hidden labels change nothing, and no file is read": no_labels,
    "interrupted, killed and resumed: the same result": resumes,
    "known classes keep their rows when the head grows": old_rows_stay,
    "every loss term has a gradient": terms_pull,
}


COMPARED = (no_labels, resumes)
"""Checks that compare a run with another of the same seed."""


@dataclass(frozen=True)
class Verdict:
    """All findings."""

    method: str
    findings: list[Finding]

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.tried and not finding.passed]

    def text(self) -> str:
        lines = []
        for finding in self.findings:
            mark = "ok  " if finding.passed else "FAIL" if finding.tried else "-   "
            lines.append(f"{mark}  {finding.check}")
            lines += [f"      {finding.said}"] if finding.said else []
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        findings = [vars(finding) | {"passed": finding.passed} for finding in self.findings]
        return {"method": self.method, "passed": not self.failed, "checks": findings}


def attempt(method: str, settings: Mapping[str, Any], display: Display) -> Verdict:
    """Put a method of the suite, or the user's own, on trial."""
    path = Path(method.rpartition(":")[0])
    watch = Watch(path.resolve().parent if path.suffix == ".py" else None)

    def asked() -> Request:
        return ask(method, PROTOCOL, SEED, views=VIEWS, settings=SHORT | dict(settings))

    findings: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="bench-try-") as folder, repeatable(None):
        with watch.watched():
            request = asked()
        world = open_world(request, pick_device("cpu"), Display(quiet=True), Stop())
        trial = Trial(asked, world, Path(folder), watch)
        for name, check in CHECKS.items():
            display.say(f"trying: {name}")
            # what does not even run cannot be tried any further, and what is never the same cannot be compared
            tried = all(finding.passed for finding in findings[: 2 if check in COMPARED else 1])
            findings.append(Finding(name, said(check, trial, request) if tried else "", tried))
    return Verdict(method, findings)


def said(check: Callable[[Trial], str], trial: Trial, request: Request) -> str:
    """What a check says, or the sentence it ended with."""
    try:
        with naming_own_lines(request.method.folder):
            return check(trial)
    except DivergedError as error:
        return f"{error}: not with this learning rate, at least"
    except UsageError as error:
        return str(error)
    except BenchError as error:
        return f"{type(error).__name__}: {error}"
