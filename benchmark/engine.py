"""The session engine: `run` carries a question to its record, `fit` alone descends, `evaluate` alone sees test images.

Nothing here knows a method by name. Every random number is derived from (seed, purpose, session, phase, step), and all
state of a run is in its checkpoint, so a run that was killed ends with the record of one that was not.
"""

import hashlib
import io
import math
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import filelock
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save as serialise
from torch import Tensor, nn
from torch.nn import functional as F

from benchmark import provenance, scoring
from benchmark.backbone import LastBlock
from benchmark.checkpoint import Checkpoint, Progress, restore
from benchmark.errors import DivergedError, InterruptedRunError, LockedError, UsageError
from benchmark.feed import BaseFeed, Feed, NovelFeed
from benchmark.files import atomic_write, make_folder
from benchmark.progress import Display, Stop
from benchmark.protocol import Shared
from benchmark.record import (
    PhaseLog,
    Provenance,
    Question,
    RunRecord,
    SessionResult,
    canonical,
    read_record,
    record_path,
    sparse,
)
from benchmark.request import Request, cache_folder
from benchmark.seeds import repeatable
from benchmark.setting import Setting, open_setting, pick_device
from benchmark.stream import LabelledBatch, Unlabelled
from benchmark.tokens import CHUNK, Live, TokenSource, clean_tokens
from benchmark.views import PRESETS
from methods.base import Method, Phase
from methods.heads import CosineHead


@dataclass(frozen=True)
class Course:
    """One stretch of training with its own optimiser and cosine."""

    title: str
    session: int
    phase: int
    epochs: int
    lr: float
    clip: float | None
    shared: Shared


class BaseLearner(nn.Module):
    """Session 0: cross-entropy on the labelled base classes."""

    def __init__(self, block: LastBlock, head: CosineHead) -> None:
        super().__init__()
        self.block, self.head = block, head

    def losses(self, batch: LabelledBatch) -> dict[str, Tensor]:
        return {"label": F.cross_entropy(self.head(self.block(batch.tokens)), batch.labels)}


def learning_rate(lr: float, floor: float, epoch: int, epochs: int) -> float:
    """Cosine by epoch from `lr` towards `floor * lr`."""
    return lr * (floor + (1 - floor) * (1 + math.cos(math.pi * epoch / epochs)) / 2)


def fit(
    learner: BaseLearner | Method,
    feed: Feed,
    course: Course,
    setting: Setting,
    progress: Progress,
    momentum: dict[str, Tensor],
    save: Checkpoint,
) -> None:
    """Descend on the learner's terms from where `progress` stands to the end of the course.

    One optimiser for all methods: SGD with momentum, a cosine by epoch, no weight decay on biases and other 1-d
    tensors. Stops at the first loss that is not finite; the last saved state stays.
    """
    parameters = {name: p for name, p in learner.named_parameters() if p.requires_grad}
    shared = course.shared
    groups = [
        {"params": [p for p in parameters.values() if p.ndim > 1], "weight_decay": shared.weight_decay},
        {"params": [p for p in parameters.values() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.SGD([g for g in groups if g["params"]], lr=course.lr, momentum=shared.momentum)
    for name, buffer in momentum.items():
        optimiser.state[parameters[name]]["momentum_buffer"] = buffer.to(parameters[name].device, copy=True)
    total = course.epochs * feed.steps
    setting.display.start(course.title, total, progress.step)
    learner.train()
    clock = time.monotonic()

    def keep() -> None:
        nonlocal clock
        progress.seconds += time.monotonic() - clock
        clock = time.monotonic()
        if not all(bool(torch.isfinite(p).all()) for p in parameters.values()):
            raise DivergedError(f"a weight is not finite in {course.title}, after {progress.step} steps")
        held = {n: optimiser.state[p].get("momentum_buffer") for n, p in parameters.items()}
        save.save(progress, learner, {n: b for n, b in held.items() if b is not None})

    while progress.step < total:
        epoch, step = divmod(progress.step, feed.steps)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(course.lr, shared.lr_floor, epoch, course.epochs)
        batch = feed.batch(epoch, step)
        setting.seeded("noise", course.session, course.phase, progress.step)
        terms = checked_terms(learner.losses(batch))
        values = dict(zip(terms, torch.stack([*terms.values()]).tolist(), strict=True)) if terms else {}
        for name, value in values.items():
            if not math.isfinite(value):
                raise DivergedError(f"term '{name}' is {value} in {course.title}, epoch {epoch}, step {step}")
        if terms:
            optimiser.zero_grad()
            torch.stack([*terms.values()]).sum().backward()
            if course.clip is not None:
                torch.nn.utils.clip_grad_norm_(parameters.values(), course.clip)
            optimiser.step()
        for name, value in values.items():
            entry = progress.sums.setdefault(name, [0.0, 0])
            progress.sums[name] = [entry[0] + value, entry[1] + 1]
        progress.step += 1
        progress.optimiser_steps += bool(terms)
        epoch_ended = progress.step % feed.steps == 0
        if epoch_ended:
            log_epoch(progress, epoch)
        setting.display.step(progress.step)
        if setting.stop.signal is not None:
            keep()
            raise InterruptedRunError(setting.stop.signal)
        if save.due(epoch_ended=epoch_ended):
            keep()
    keep()


def checked_terms(terms: dict[str, Tensor]) -> dict[str, Tensor]:
    """A method's terms, if the engine can descend on them."""
    if not isinstance(terms, dict):
        raise UsageError(f"the method's losses must be a dictionary of terms, not {type(terms).__name__}")
    for name, term in terms.items():
        if not isinstance(term, Tensor) or term.ndim != 0:
            raise UsageError(f"the method's term '{name}' must be a tensor with a single number")
    if terms and not any(term.requires_grad for term in terms.values()):
        raise UsageError(f"none of the method's terms ({', '.join(terms)}) depends on a trained parameter")
    return terms


def log_epoch(progress: Progress, epoch: int) -> None:
    """Close an epoch: the mean of every term; none for epochs in which a term was absent."""
    log = progress.logs[-1]
    for name, (total, count) in progress.sums.items():
        log.setdefault(name, [None] * epoch).append(float(f"{total / count:.4g}"))
    for values in log.values():
        values.extend([None] * (epoch + 1 - len(values)))
    progress.sums = {}


def base_question(setting: Setting) -> dict[str, Any]:
    """What the base session depends on: nothing of the method, so that all methods start from the same weights."""
    question, budget = setting.request.question, setting.request.budget
    return {
        "schema": 1,
        "classes": question.protocol["classes"][0],
        "dataset": setting.dataset.digest,
        "augmentation": question.protocol["augmentation"],
        "backbone": question.backbone,
        "budget": budget.model_dump(include={"base_epochs", "batch", "base_lr", "clip"}),
        "shared": question.shared,
        "views": question.views,
        "seed": question.seed,
    }


def base_session(setting: Setting, cache: Path) -> tuple[BaseLearner, Progress, bool]:
    """The trained base model, what was logged of it, and whether it came from the cache.

    Shared by every run that asks the same question of it; whoever comes first trains, the others wait.
    """
    question, budget = base_question(setting), setting.request.budget
    # threads and device decide the last bits: they are no part of any question, but those who share must share them too
    machine = {"device": setting.device.type, "threads": torch.get_num_threads()}
    folder = make_folder(cache / "base" / hashlib.sha256(canonical(question | machine)).hexdigest()[:32])
    setting.seeded("init", 0, 0)
    head = CosineHead(setting.block.width, setting.stream.new(0), setting.request.shared.tau_c).to(setting.device)
    learner = BaseLearner(setting.block, head)
    feed = BaseFeed(setting, budget.batch)
    save = Checkpoint(folder / "state.safetensors", question)
    with waiting_lock(folder / "lock", setting):
        loaded = save.load()
        progress, momentum = Progress(logs=[{}]), {}
        if loaded is not None:
            restore(learner, loaded.model)
            progress, momentum = loaded.progress, loaded.momentum
        cached = loaded is not None and progress.step == budget.base_epochs * feed.steps
        if not cached:
            course = Course(
                "base session", 0, 0, budget.base_epochs, budget.base_lr, budget.clip, setting.request.shared
            )
            fit(learner, feed, course, setting, progress, momentum, save)
    return learner, progress, cached


def waiting_lock(path: Path, setting: Setting) -> AbstractContextManager[Any]:
    """Take a lock, waiting for whoever has it, and still obeying signals; the kernel frees it when its holder dies."""
    lock, said = filelock.FileLock(path), False
    while setting.stop.signal is None:
        try:
            return lock.acquire(timeout=1 if said else 0)
        except filelock.Timeout:
            if not said:
                setting.display.say("waiting: another run is training the same base session")
            said = True
    raise InterruptedRunError(setting.stop.signal)


@dataclass(frozen=True)
class Predictions:
    """Where images are in the dataset, their class in order of arrival, and the row a method put them on."""

    position: npt.NDArray[np.int64]
    truth: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]

    def counts(self, rows: int) -> scoring.Counts:
        counts = np.zeros((rows, rows), dtype=np.int64)
        np.add.at(counts, (self.truth, self.row), 1)
        return counts


@torch.no_grad()
def evaluate(method: Method, setting: Setting, session: int) -> dict[str, Predictions]:
    """Predictions for the test images of all classes so far (`test`) and for the session's own images (`train`).

    The only place where a test image or a hidden label is read. Nothing flows back.
    """
    method.eval()
    stream, own = setting.stream, setting.stream.ids(session)
    seen = np.flatnonzero(stream.test_class < stream.known(session + 1))
    test = Live(setting.trunk, setting.dataset.test.images, PRESETS[setting.request.protocol.augmentation])
    sources: dict[str, tuple[TokenSource, npt.NDArray[np.int64], npt.NDArray[np.int64]]] = {
        "test": (test, stream.test_position[seen], stream.test_class[seen]),
        "train": (setting.source, stream.position[own.numpy()], stream.hidden[own.numpy()]),
    }
    predictions = {}
    for split, (source, position, truth) in sources.items():
        parts = torch.from_numpy(position).split(CHUNK)
        rows = torch.cat([method.predict(clean_tokens(source, part)).cpu() for part in parts])
        if (
            rows.is_floating_point()
            or rows.shape != truth.shape
            or rows.min() < 0
            or rows.max() >= stream.known(session + 1)
        ):
            raise UsageError(f"the method must predict a row from 0 to {stream.known(session + 1) - 1} for each image")
        predictions[split] = Predictions(position, truth, rows.numpy())
    return predictions


def phase_epochs(phases: tuple[Phase, ...], epochs: int) -> list[int]:
    """A session's epochs dealt out to its phases; rounding never loses or adds one."""
    if phases and abs(sum(phase.share for phase in phases) - 1) > 1e-6:
        raise UsageError("the shares of the method's phases must add up to 1")
    ends = [round(epochs * sum(phase.share for phase in phases[: k + 1])) for k in range(len(phases))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def discover(
    method: Method,
    setting: Setting,
    session: Unlabelled,
    progress: Progress,
    momentum: dict[str, Tensor],
    save: Checkpoint,
) -> None:
    """Train a method on one session, phase by phase, from where `progress` stands."""
    budget, shared = setting.request.budget, setting.request.shared
    phases = method.phases()
    for number, (phase, epochs) in enumerate(zip(phases, phase_epochs(phases, budget.novel_epochs), strict=True)):
        if number < progress.phase:
            continue
        if number > progress.phase:
            progress.phase, progress.step, momentum = number, 0, {}
            begin(method, setting, session, number)
            method.eval()
            setting.seeded("prepare", session.number, number)
            method.prepare(session, phase)
            progress.logs.append({})
        feed = NovelFeed(setting, session.number, number, phase, epochs, method.memory())
        title = f"session {session.number}, {phase.name}"
        course = Course(title, session.number, number, epochs, budget.lr, budget.clip, shared)
        fit(method, feed, course, setting, progress, momentum, save)


def begin(method: Method, setting: Setting, session: Unlabelled, phase: int) -> None:
    setting.seeded("init", session.number, phase)
    method.begin(session, method.phases()[phase])
    method.to(setting.device)


def rebuilt(method: Method, setting: Setting, progress: Progress, state: dict[str, Tensor]) -> None:
    """Bring a fresh method to where a saved run stood: its modules by size, then its tensors."""
    for number in range(1, progress.session + 1):
        session = setting.session(number)
        last = len(method.phases()) - 1 if number < progress.session or progress.ended else progress.phase
        for phase in range(last + 1):
            begin(method, setting, session, phase)
    restore(method, state)


def run(
    request: Request,
    *,
    out: Path = Path("results"),
    cache: Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    keep: bool = False,
    display: Display | None = None,
    stop: Stop | None = None,
) -> RunRecord:
    """Answer a question: from its record if it is finished, else by training on from where an earlier attempt got."""
    question = request.question
    path = record_path(out, question)
    make_folder(path.parent)
    kept = kept_folder(path, out) if keep else None
    shown = display or Display(quiet=True)
    finished = answered(path, question, kept, shown)
    if finished is not None:
        return finished
    work = make_folder(out / "work" / question.key)
    try:
        lock = filelock.FileLock(work / "lock").acquire(timeout=0)
    except filelock.Timeout:
        raise LockedError(f"another process is working on this run ({work}): wait for it or stop it") from None
    with lock, repeatable(threads), shown:
        finished = answered(path, question, kept, shown)
        if finished is not None:
            return finished
        setting = open_setting(request, pick_device(device), shown, stop or Stop())
        return train(setting, out, work, cache or cache_folder(), kept)


def answered(path: Path, question: Question, kept: Path | None, display: Display) -> RunRecord | None:
    """The record of a finished run; one that diverged fails again, at once."""
    if not path.exists():
        return None
    record = read_record(path)
    if record.key != question.key:
        difference = question.difference(record.question.model_dump(mode="json", by_alias=True))
        raise UsageError(f"{path} answers another question: {difference}; move it away")
    if record.status == "diverged":
        raise DivergedError(f"{record.reason} (recorded as diverged in {path}; remove it to try again)")
    if record.status == "done" and kept is not None and not (kept / "weights.safetensors").exists():
        raise UsageError(f"the run is finished and its weights were not kept: remove {path} and run again with --keep")
    if record.status == "partial":
        return None
    display.say(f"answered from the record of {record.provenance.finished}; another --out trains anew")
    return record


def kept_folder(path: Path, out: Path) -> Path:
    """Where `--keep` puts predictions and weights: beside runs/, under the record's own name."""
    return out / "kept" / path.relative_to(out / "runs").with_suffix("")


@dataclass
class Chronicle:
    """What is written down of a run while it goes on."""

    setting: Setting
    out: Path
    results: list[SessionResult]
    started: str
    commit: tuple[str | None, bool | None]
    base: Progress
    base_cached: bool = False
    stored_per_class: str = ""

    def write(
        self, status: Literal["done", "partial", "diverged"], progress: Progress, reason: str | None
    ) -> RunRecord:
        """The record as it stands, whole, in one stroke."""
        setting, question = self.setting, self.setting.request.question
        told = Provenance(
            commit=self.commit[0],
            dirty=self.commit[1],
            versions=provenance.versions(),
            platform=provenance.processor(),
            device=str(setting.device),
            threads=torch.get_num_threads(),
            started=self.started,
            finished=provenance.now(),
            seconds=round(sum(progress.session_seconds), 2),
            attempts=progress.attempts,
            session_seconds=progress.session_seconds,
            peak_memory_mb=provenance.peak_memory_mb(),
            trunk_images=setting.source.trunk_images,
            base_session="cached" if self.base_cached else "trained",
            data_digest=setting.dataset.digest,
            weights_digest=question.backbone["weights"],
        )
        record = RunRecord(
            key=question.key,
            status=status,
            reason=reason,
            question=question,
            budget_name=setting.request.budget_name,
            changed=setting.request.changed,
            stored_per_class=self.stored_per_class,
            optimiser_steps=self.base.optimiser_steps + progress.optimiser_steps,
            sessions=tuple(self.results),
            provenance=told,
        )
        record.save(self.out)
        return record


def train(setting: Setting, out: Path, work: Path, cache: Path, kept: Path | None) -> RunRecord:
    """Carry a run through its sessions; the record is written whole after each, and if the run diverges."""
    progress = Progress()
    chronicle = Chronicle(setting, out, [], provenance.now(), provenance.commit(), Progress())
    try:
        return sessions(setting, chronicle, progress, work, cache, kept)
    except DivergedError as error:
        chronicle.write("diverged", progress, str(error))
        raise DivergedError(f"{error}; the run is recorded as diverged, its last good state is kept") from None


def sessions(
    setting: Setting, chronicle: Chronicle, progress: Progress, work: Path, cache: Path, kept: Path | None
) -> RunRecord:
    """The base session, then one discovery session after the other, from wherever an earlier attempt got."""
    request = setting.request
    save = Checkpoint(work / "state.safetensors", request.question)
    loaded = save.load()
    base, chronicle.base, chronicle.base_cached = base_session(setting, cache)
    setting.seeded("build")
    method = request.method.cls(base.block, base.head, request.params, request.backbone.projector).to(setting.device)
    chronicle.stored_per_class = method.stored_per_class()
    momentum: dict[str, Tensor] = {}
    path = record_path(chronicle.out, request.question)
    if loaded is not None and not path.exists():
        setting.display.say("the record of the sessions done so far is gone: starting over")
        loaded = None
    if loaded is not None:
        vars(progress).update(vars(loaded.progress))
        momentum = loaded.momentum
        rebuilt(method, setting, progress, loaded.model)
        chronicle.results += read_record(path).sessions[: progress.session + progress.ended]
        if kept is not None and not (kept / "session0.npz").exists():
            raise UsageError(f"this run was begun without --keep: remove {work} to start over with it")
        setting.display.say(f"resuming in session {progress.session}, after {progress.optimiser_steps} steps")
    progress.attempts += 1
    last = len(setting.stream.sessions) - 1
    for number in range(progress.session + progress.ended, last + 1):
        session = setting.session(number)
        if number != progress.session:
            progress.enter(number)
        if number > 0:
            discover(method, setting, session, progress, momentum, save)
        momentum, ended_at = {}, time.monotonic()
        method.eval()
        setting.seeded("end", number)
        method.end(session)
        predictions = evaluate(method, setting, number)
        if kept is not None:
            keep_predictions(make_folder(kept) / f"session{number}.npz", predictions)
            keep_weights(kept / "weights.safetensors", method)
        trained = progress if number else chronicle.base
        chronicle.results.append(session_result(setting, number, predictions, trained, method))
        progress.ended = True
        progress.session_seconds = [*progress.session_seconds, round(trained.seconds + time.monotonic() - ended_at, 2)]
        record = chronicle.write("done" if number == last else "partial", progress, None)
        save.save(progress, method, {})
        announce(setting.display, record)
    save.path.unlink(missing_ok=True)
    return record


def keep_weights(path: Path, method: Method) -> None:
    weights = {name: tensor.detach().clone().contiguous() for name, tensor in method.state_dict().items()}
    atomic_write(path, serialise(weights))


def keep_predictions(path: Path, predictions: dict[str, Predictions]) -> None:
    """Image positions in the dataset, true classes and predicted rows, as plain arrays."""
    arrays = {f"{split}_{name}": array for split, p in predictions.items() for name, array in vars(p).items()}
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    atomic_write(path, content.getvalue())


def session_result(
    setting: Setting, number: int, predictions: dict[str, Predictions], progress: Progress, method: Method
) -> SessionResult:
    known, new = setting.stream.known(number), setting.stream.new(number)
    counts, train_counts = (predictions[split].counts(known + new) for split in ("test", "train"))
    solved = [
        list(range(new)) if number == 0 else scoring.assign(scoring.new_block(matrix, known, new))
        for matrix in (counts, train_counts)
    ]
    names = ["base"] if number == 0 else [phase.name for phase in method.phases()]
    logs = [
        PhaseLog(name=name, epochs=max(map(len, terms.values()), default=0), terms=terms)
        for name, terms in zip(names, progress.logs, strict=True)
    ]
    return SessionResult(
        classes=setting.stream.sessions[number],
        counts=sparse(counts),
        train_counts=sparse(train_counts),
        assignment=tuple(solved[0]),
        train_assignment=tuple(solved[1]),
        phases=tuple(logs),
    )


def announce(display: Display, record: RunRecord) -> None:
    """One line about the session that has just ended."""
    metrics, number = record.metrics(), len(record.sessions) - 1
    row = metrics.accuracy[-1]
    text = f"session {number}: overall {metrics.overall[-1]:.2f} %, base {row[0]:.2f} %"
    if number:
        text += f", novel {sum(row[1:]) / number:.2f} %, {record.provenance.session_seconds[-1]:.1f} s"
    display.say(text)
