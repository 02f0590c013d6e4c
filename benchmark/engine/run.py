"""One run: `run` answers a question, from its record or by training; `Run` carries it through its sessions.

Nothing here knows a method by name. Every random number is derived from (seed, purpose, session, phase, step), and all
state of a run is in its checkpoint, so a run that was killed ends with the record of one that was not.
"""

import time
from pathlib import Path
from typing import Literal

import filelock
import torch
from torch import Tensor

from benchmark.digests import move_aside
from benchmark.display import Display, Stop
from benchmark.engine.base_session import BaseLearner, base_session
from benchmark.engine.checkpoint import Checkpoint, Progress, Saved, State, restore
from benchmark.engine.evaluation import evaluate
from benchmark.engine.feed import NovelFeed, prefetched
from benchmark.engine.inspection import counted, plain_values, refuse_strays, refuse_unsaved, strays_in_classes
from benchmark.engine.lifecycle import begin, build, phase_epochs, rebuild, rebuild_copy, remembered
from benchmark.engine.own_code import naming_own_lines
from benchmark.engine.probe import Probe
from benchmark.engine.recording import announce, keep_predictions, keep_weights, provenance_of, session_result
from benchmark.engine.request import Request
from benchmark.engine.training import TrainingPlan, fit
from benchmark.engine.world import World, open_world, pick_device
from benchmark.errors import DivergedError, LockedError, UsageError
from benchmark.files import cache_folder, lock_at, make_folder
from benchmark.records import provenance
from benchmark.records.question import Question
from benchmark.records.reading import DamagedRecordError, read_record
from benchmark.records.record import OWN, RunRecord, record_path
from benchmark.records.results import SessionResult, Stored
from benchmark.seeds import repeatable
from methods import imported_from
from methods.contract import Method, Session


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
    finished = answered(readable_record(path), path, question, kept, shown, threads)
    if finished is not None:
        return finished
    work = make_folder(out / "work" / question.key)
    try:
        lock = lock_at(work / "lock").acquire(timeout=1)  # somebody may just be asking whether it is held
    except filelock.Timeout:
        raise LockedError(f"another process is working on this run ({work}): wait for it or stop it") from None
    with lock, repeatable(threads), shown:
        finished = answered(sound_record(path), path, question, kept, shown, threads)
        if finished is not None:
            return finished
        world = open_world(request, pick_device(device), shown, stop or Stop())
        with naming_own_lines(request.method.folder):
            return Run(world, out, work, cache or cache_folder(), kept).finish()


class Run:
    """A run that is under way: session after session is trained, judged and written down.

    What changes meanwhile are the method, the probe beside it, and `progress`; all three are in the checkpoint.
    """

    base: BaseLearner
    method: Method
    probe: Probe

    def __init__(self, world: World, out: Path, work: Path, cache: Path, kept: Path | None) -> None:
        self.world, self.request = world, world.request
        self.out, self.work, self.cache, self.kept = out, work, cache, kept
        self.started, self.commit = provenance.now(), provenance.commit()
        self.checkpoint = Checkpoint(work / "state.safetensors", self.request.question)
        self.results: list[SessionResult] = []
        self.stored = Stored()
        """The most that the method held at the end of a session."""
        self.progress = Progress(threads=torch.get_num_threads(), engine=provenance.engine_source())
        self.momentum: dict[str, Tensor] = {}
        self.base_progress, self.base_cached = Progress(), False

    def finish(self) -> RunRecord:
        """Go through the sessions, from wherever an earlier attempt got.

        The record is written whole after each of them, and if the run diverges.
        """
        try:
            self.open()
            last = len(self.world.stream.sessions) - 1
            for number in range(self.progress.session + self.progress.ended, last + 1):
                self.train(number)
                self.judge(number)
                record = self.write("done" if number == last else "partial")
                self.checkpoint.save(self.progress, self.method, {})
                announce(self.world.display, record)
        except DivergedError as error:
            self.write("diverged", reason=str(error))
            raise DivergedError(f"{error}; the run is recorded as diverged, its last good state is kept") from None
        self.checkpoint.remove()
        return record

    def open(self) -> None:
        """The base session, the method built on it, and what an earlier attempt saved."""
        saved = self.checkpoint.load(lambda progress: progress.is_within(len(self.world.stream.sessions)))
        self.base, self.base_progress, self.base_cached = base_session(self.world, self.cache)
        self.imported = imported_before(self.request)
        self.method = build(self.world, self.base)
        self.probe = Probe(self.world.block.width).to(self.world.device)
        self.checkpoint.beside = self.probe
        if saved is not None:
            self.resume(saved)
        if self.progress.attempts and self.kept is not None and not (self.kept / "session0.npz").exists():
            raise UsageError(f"this run was begun without --keep: remove {self.work} to start over with it")
        self.progress.attempts += 1
        self.in_classes = {name for name, _ in strays_in_classes(self.method)}

    def resume(self, saved: Saved) -> None:
        """Bring method, probe, results and progress to where a saved run stood."""
        record = sound_record(record_path(self.out, self.request.question))
        done = saved.progress.session + saved.progress.ended
        if record is None or len(record.sessions) < done:
            self.world.display.say("the record of the sessions done so far is gone: starting over")
            return
        refuse_other_threads(saved.progress)
        if saved.progress.engine != self.progress.engine:
            raise UsageError(
                f"this run was begun by other code of the suite: go back to it, or remove {self.work} to start over"
            )
        self.results, self.stored = [*record.sessions[:done]], record.stored
        self.progress, self.momentum = saved.progress, saved.momentum
        rebuild(self.method, self.world, self.progress, saved.model)
        restore(self.probe, saved.beside)
        place = f"session {self.progress.session}, after {self.progress.optimiser_steps} steps"
        self.world.display.say(f"resuming in {place}")

    def train(self, number: int) -> None:
        """Let the method learn a session, phase by phase, and distil what must outlive it."""
        world, method, progress = self.world, self.method, self.progress
        session = world.session(number, torch.tensor(progress.held, dtype=torch.long))
        if number != progress.session:
            progress.enter(number)
        phases = method.phases() if number else ()
        for place, epochs in enumerate(phase_epochs(phases, self.request.budget.novel_epochs)):
            if place >= progress.phase:
                self.train_phase(session, place, epochs)
        self.ended_at = time.monotonic()
        method.eval()
        world.seeded("end", number)
        with torch.no_grad():
            method.end(session)
        session.close()
        progress.ended = True
        refuse_strays(method, self.in_classes)
        progress.held = remembered(method, world, number, progress.held)[0].tolist()

    def train_phase(self, session: Session, place: int, epochs: int) -> None:
        """Train one phase of a session, from where `progress` stands.

        What the method holds outside its state must be at the end of a phase what it was when the phase began: a
        resumed run begins it again and then loads the state.
        """
        world, method, progress, budget = self.world, self.method, self.progress, self.request.budget
        phase, values = method.phases()[place], plain_values(method)
        if place > progress.phase:
            progress.phase, progress.step, self.momentum = place, 0, {}
            begin(method, world, session.number, place)
            values = plain_values(method)
            method.eval()
            world.seeded("prepare", session.number, place)
            with torch.no_grad():
                method.prepare(session, phase)
            refuse_strays(method, self.in_classes)
        exemplars = remembered(method, world, session.number, progress.held)
        feed = NovelFeed(world, session.number, place, phase, epochs, exemplars)
        if len(progress.terms) == place:
            progress.add_phase(feed.shape_for_record())
        title = f"session {session.number}, {phase.name}"
        plan = TrainingPlan(title, session.number, place, epochs, budget.lr, budget.clip, self.request.shared)
        state = State(progress, self.momentum, self.checkpoint)
        with prefetched(feed) as ready:
            fit(method, ready, plan, seed=world.seed, state=state, stop=world.stop, display=world.display)
        refuse_strays(method, self.in_classes)
        refuse_unsaved(values, plain_values(method))

    def judge(self, number: int) -> None:
        """Let the evaluator count what the method predicts, as a resumed run would: rebuilt from its saved state."""
        method, world, progress = self.method, self.world, self.progress
        rebuilt, again = (rebuild_copy(method, world, self.base, progress) for _ in range(2))
        refuse_strays(rebuilt, self.in_classes)
        values = plain_values(method)
        refuse_unsaved(plain_values(rebuilt), values)
        predictions = evaluate(rebuilt, again, self.probe, world, number)
        refuse_strays(method, self.in_classes)
        refuse_unsaved(values, plain_values(method))
        if self.kept is not None:
            keep_predictions(make_folder(self.kept) / f"session{number}.npz", predictions)
            keep_weights(self.kept / "weights.safetensors", method)
        trained = progress if number else self.base_progress
        self.results.append(session_result(world, number, predictions, trained, method))
        seconds = round(trained.seconds + time.monotonic() - self.ended_at, 2)
        progress.session_seconds = [*progress.session_seconds, seconds]
        stored = counted(method, self.base.block, world.stream.known(number + 1)).model_dump()
        self.stored = Stored(**{name: max(count, getattr(self.stored, name)) for name, count in stored.items()})
        refuse_late_import(self.request, self.imported)

    def write(self, status: Literal["done", "partial", "diverged"], reason: str | None = None) -> RunRecord:
        """The record as it stands, whole, in one stroke."""
        record = RunRecord(
            key=self.request.question.key,
            status=status,
            reason=reason,
            question=self.request.question,
            own=self.request.own,
            stored=self.stored,
            sessions=tuple(self.results),
            provenance=provenance_of(
                self.world, self.progress, started=self.started, commit=self.commit, base_cached=self.base_cached
            ),
        )
        record.save(self.out)
        return record


def answered(
    record: RunRecord | None,
    path: Path,
    question: Question,
    kept: Path | None,
    display: Display,
    threads: int | None,
) -> RunRecord | None:
    """The record of a finished run; one that diverged fails again, at once."""
    if record is None or record.status == "partial":
        return None
    if record.key != question.key:
        raise UsageError(
            f"{path} answers another question: {question.difference(record.question.document())}; move it away"
        )
    if record.status == "diverged":
        raise DivergedError(f"{record.reason} (recorded as diverged in {path}; remove it to try again)")
    made = record.provenance.threads
    if threads is not None and threads != made:
        raise UsageError(
            f"the run is finished, with --threads {made}, and the last bits depend on it: ask with --threads {made}, "
            f"or with another --out for a run with {threads}"
        )
    if kept is not None and not (kept / "weights.safetensors").exists():
        raise UsageError(f"the run is finished and its weights were not kept: remove {path} and run again with --keep")
    when = record.provenance.finished
    display.say(f"answered from the record of {when}, made with --threads {made}; another --out trains anew")
    return record


def readable_record(path: Path) -> RunRecord | None:
    """The record in a file, if there is one and it says what was written."""
    try:
        return read_record(path) if path.exists() else None
    except DamagedRecordError:
        return None


def sound_record(path: Path) -> RunRecord | None:
    """The same for whoever holds the run's lock: a damaged record is moved aside."""
    record = readable_record(path)
    if record is None and path.exists():
        move_aside(path, "the run is done again")
    return record


def kept_folder(path: Path, out: Path) -> Path:
    """Where `--keep` puts predictions and weights: beside the own records, under the record's name."""
    return out / "kept" / path.relative_to(out / OWN).with_suffix("")


def imported_before(request: Request) -> set[str]:
    """Files of an own method's folder that this process has imported."""
    folder = request.method.folder
    return set() if folder is None else imported_from(folder)


def refuse_late_import(request: Request, before: set[str]) -> None:
    """The digest of an own method covers what import statements name; a file that was imported otherwise is refused."""
    late = request.method.unforeseen(before)
    if late:
        raise UsageError(
            f"--method: {late[0]} was imported while the method ran, and no import statement names it: write one, so "
            "that the record can say what it was"
        )


def refuse_other_threads(progress: Progress) -> None:
    """A run that goes on with another number of threads would end with bits of neither."""
    if progress.threads != torch.get_num_threads():
        raise UsageError(
            f"this run was begun with {progress.threads} threads, which decide the last bits, and here are "
            f"{torch.get_num_threads()}: go on with --threads {progress.threads}"
        )
