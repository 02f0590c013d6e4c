"""The session engine: `run` carries a question to its record, `evaluate` alone sees test images.

Nothing here knows a method by name. Every random number is derived from (seed, purpose, session, phase, step), and all
state of a run is in its checkpoint, so a run that was killed ends with the record of one that was not.
"""

import copy
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import filelock
import torch
from torch import Tensor

from benchmark import provenance
from benchmark.base_session import BaseLearner, base_session
from benchmark.checkpoint import Checkpoint, Loaded, Progress, restore
from benchmark.chronicle import (
    Chronicle,
    Predictions,
    announce,
    keep_predictions,
    keep_weights,
    session_result,
)
from benchmark.descent import Course, fit
from benchmark.errors import DivergedError, LockedError, UsageError, naming_own_lines
from benchmark.feed import NovelFeed
from benchmark.files import cache_folder, lock_at, make_folder
from benchmark.inspection import (
    checked_rows,
    counted,
    plain_values,
    refuse_strays,
    refuse_unsaved,
    refuse_unsteady,
    strays_in_classes,
)
from benchmark.intact import move_aside
from benchmark.probe import Probe
from benchmark.progress import Display, Stop
from benchmark.record import OWN, DamagedRecordError, Question, RunRecord, Stored, read_record, record_path
from benchmark.request import Request
from benchmark.seeds import repeatable
from benchmark.setting import Setting, open_setting, pick_device
from benchmark.stream import CHUNK, Unlabelled, plain
from benchmark.tokens import clean_tokens
from methods import imported_from
from methods.base import Method, Phase


@torch.no_grad()
def evaluate(method: Method, again: Method, probe: Probe, setting: Setting, session: int) -> dict[str, Predictions]:
    """Predictions for the test images of all classes so far (`test`) and for the session's own images (`train`).

    Also those of the `probe` for the test images, after it has learnt the session from the method's features and rows;
    none from the first session on whose features it cannot read. The only place where a test image or a hidden label is
    read. `method` and `again` were rebuilt from the state of the one that is trained, so that nothing flows back. The
    second predicts some images in other batches: rows must stay.
    """
    stream, total = setting.stream, setting.stream.known(session + 1)
    ids = {"test": stream.test_ids(total), "train": stream.ids(session)}
    classes = {"test": stream.hidden_test[ids["test"].numpy()], "train": stream.hidden[ids["train"].numpy()]}
    sources = {"test": setting.test_source, "train": setting.source}
    rows, parts = {}, {}
    for split, source in sources.items():
        tokens = partial(clean_tokens, source)
        setting.seeded("predict", session)
        rows[split] = torch.cat(
            [checked_rows(method.predict(tokens(part)), len(part), total) for part in ids[split].split(CHUNK)]
        )
        if split == "test":
            setting.seeded("predict", session)
            refuse_unsteady(again, tokens, rows[split], ids[split], total, setting.seed)
        block = getattr(method, "block", None)
        parts[split] = [probe.features(block, tokens(part)) for part in ids[split].split(CHUNK)]
    found = {split: Predictions(ids[split].numpy(), classes[split], rows[split].numpy()) for split in sources}
    h = {split: [part for part in every if part is not None] for split, every in parts.items()}
    if probe.blind or any(len(h[split]) < len(parts[split]) for split in sources):
        if not probe.blind:
            setting.display.say("notice: the method's block gives no features that the probe can read: it goes without")
        probe.blind.fill_(True)
        return found
    believed = rows["train"] if session else torch.from_numpy(classes["train"])  # labels are known in session 0 alone
    train, test = torch.cat(h["train"]), torch.cat(h["test"])
    probe.learn(train, believed.to(train.device), stream.new(session))
    return found | {"probe": replace(found["test"], row=probe.predict(test).cpu().numpy())}


def phase_epochs(phases: tuple[Phase, ...], epochs: int) -> list[int]:
    """A session's epochs dealt out to its phases; rounding never loses or adds one."""
    if phases and abs(sum(phase.share for phase in phases) - 1) > 1e-6:
        raise UsageError("the shares of the method's phases must add up to 1")
    ends = [round(epochs * sum(phase.share for phase in phases[: k + 1])) for k in range(len(phases))]
    dealt = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    while 0 in dealt and max(dealt) > 1:  # no phase is skipped as long as there are epochs to go round
        dealt[dealt.index(max(dealt))] -= 1
        dealt[dealt.index(0)] += 1
    return dealt


def discover(
    method: Method,
    setting: Setting,
    session: Unlabelled,
    progress: Progress,
    momentum: dict[str, Tensor],
    save: Checkpoint,
    in_classes: set[str],
) -> None:
    """Train a method on one session, phase by phase, from where `progress` stands.

    What it holds outside its state must be at the end of a phase what it was when the phase began: a resumed run begins
    it again and then loads the state.
    """
    budget, shared = setting.request.budget, setting.request.shared
    phases, held = method.phases(), plain_values(method)
    for number, (phase, epochs) in enumerate(zip(phases, phase_epochs(phases, budget.novel_epochs), strict=True)):
        if number < progress.phase:
            continue
        if number > progress.phase:
            progress.phase, progress.step, momentum = number, 0, {}
            begin(method, setting, session.number, number)
            held = plain_values(method)
            method.eval()
            setting.seeded("prepare", session.number, number)
            with torch.no_grad():
                method.prepare(session, phase)
            refuse_strays(method, in_classes)
        exemplars = remembered(method, setting, session.number, progress.held)
        feed = NovelFeed(setting, session.number, number, phase, epochs, exemplars)
        if len(progress.logs) == number:
            progress.logs.append({})
            progress.figures.append({})
            progress.shapes.append(feed.told())
        title = f"session {session.number}, {phase.name}"
        course = Course(title, session.number, number, epochs, budget.lr, budget.clip, shared)
        fit(method, feed, course, setting, progress, momentum, save)
        refuse_strays(method, in_classes)
        refuse_unsaved(held, plain_values(method))


def remembered(method: Method, setting: Setting, session: int, held: list[int]) -> tuple[Tensor, Tensor]:
    """A method's exemplars, if they are of the session under way or were `held` when the one before ended."""
    remembers = method.memory()
    if not isinstance(remembers, tuple) or len(remembers) != 2:
        raise UsageError("the method's memory must be a pair: image ids and output rows")
    ids, rows = plain(remembers[0], "memory"), plain(remembers[1], "memory")
    allowed = torch.cat([setting.stream.ids(session), torch.tensor(held, dtype=torch.long)])
    if not torch.isin(ids.cpu(), allowed).all():
        raise UsageError(f"the method remembers images that are not of session {session}")
    if len(ids) != len(rows) or (len(rows) and not 0 <= rows.min() <= rows.max() < setting.stream.known(session + 1)):
        raise UsageError("the method's memory must give each image a row that exists")
    return ids, rows


def begin(method: Method, setting: Setting, number: int, phase: int) -> None:
    """Sizes are all that `begin` may use: the session it gets can not be read."""
    session = setting.session(number)
    session.close()
    setting.seeded("init", number, phase)
    method.begin(session, method.phases()[phase])
    method.to(setting.device)


def built(setting: Setting, base: BaseLearner) -> Method:
    """The method at the end of the base session, with a block and a head of its own."""
    request = setting.request
    setting.seeded("build")
    block, head = copy.deepcopy(base.block), copy.deepcopy(base.head)
    try:
        params = request.params.model_copy(deep=True)  # what a copy writes into its own must not reach another
        method = request.method.cls(block, head, params, request.backbone.projector)
    except ValueError as error:  # a knob that does not fit the backbone
        raise UsageError(f"{request.method.name}: {error}") from error
    return method.to(setting.device)


def rebuilt(method: Method, setting: Setting, progress: Progress, state: dict[str, Tensor]) -> None:
    """Bring a fresh method to where a saved run stood: its modules by size, then its tensors."""
    for number in range(1, progress.session + 1):
        last = len(method.phases()) - 1 if number < progress.session or progress.ended else progress.phase
        for phase in range(last + 1):
            begin(method, setting, number, phase)
    restore(method, state)


def rebuilt_copy(method: Method, setting: Setting, base: BaseLearner, progress: Progress) -> Method:
    """What a resumed run would go on with: only the method's saved state, nothing else that it holds."""
    twin = built(setting, base)
    rebuilt(twin, setting, progress, method.state_dict())
    return twin.eval()


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
        setting = open_setting(request, pick_device(device), shown, stop or Stop())
        with naming_own_lines(request.method.folder):
            return train(setting, out, work, cache or cache_folder(), kept)


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


def train(setting: Setting, out: Path, work: Path, cache: Path, kept: Path | None) -> RunRecord:
    """Carry a run through its sessions; the record is written whole after each, and if the run diverges."""
    progress = Progress()
    chronicle = Chronicle(setting, out, [], provenance.now(), provenance.commit(), Progress())
    try:
        return sessions(setting, chronicle, progress, work, cache, kept)
    except DivergedError as error:
        chronicle.write("diverged", progress, reason=str(error))
        raise DivergedError(f"{error}; the run is recorded as diverged, its last good state is kept") from None


def sessions(
    setting: Setting, chronicle: Chronicle, progress: Progress, work: Path, cache: Path, kept: Path | None
) -> RunRecord:
    """The base session, then one discovery session after the other, from wherever an earlier attempt got."""
    request, total = setting.request, len(setting.stream.sessions)
    save = Checkpoint(work / "state.safetensors", request.question)
    loaded = save.load(lambda progress: progress.is_within(total))
    base, chronicle.base, chronicle.base_cached = base_session(setting, cache)
    imported = imported_before(request)
    method = built(setting, base)
    save.beside = probe = Probe(setting.block.width).to(setting.device)
    progress.threads, progress.engine = torch.get_num_threads(), provenance.engine_source()
    momentum = {} if loaded is None else taken_up(loaded, method, probe, setting, chronicle, progress)
    if progress.attempts and kept is not None and not (kept / "session0.npz").exists():
        raise UsageError(f"this run was begun without --keep: remove {work} to start over with it")
    progress.attempts += 1
    in_classes = {name for name, _ in strays_in_classes(method)}
    for number in range(progress.session + progress.ended, total):
        session = setting.session(number, torch.tensor(progress.held, dtype=torch.long))
        if number != progress.session:
            progress.enter(number)
        if number > 0:
            discover(method, setting, session, progress, momentum, save, in_classes)
        momentum, ended_at = {}, time.monotonic()
        method.eval()
        setting.seeded("end", number)
        with torch.no_grad():
            method.end(session)
        session.close()
        progress.ended = True
        refuse_strays(method, in_classes)
        progress.held = remembered(method, setting, number, progress.held)[0].tolist()
        judged, again = (rebuilt_copy(method, setting, base, progress) for _ in range(2))
        refuse_strays(judged, in_classes)
        held = plain_values(method)
        refuse_unsaved(plain_values(judged), held)
        predictions = evaluate(judged, again, probe, setting, number)
        refuse_strays(method, in_classes)
        refuse_unsaved(held, plain_values(method))
        if kept is not None:
            keep_predictions(make_folder(kept) / f"session{number}.npz", predictions)
            keep_weights(kept / "weights.safetensors", method)
        trained = progress if number else chronicle.base
        chronicle.results.append(session_result(setting, number, predictions, trained, method))
        progress.session_seconds = [*progress.session_seconds, round(trained.seconds + time.monotonic() - ended_at, 2)]
        stored = counted(method, base.block, setting.stream.known(number + 1))
        chronicle.stored = Stored(**{k: max(v, getattr(chronicle.stored, k)) for k, v in stored.model_dump().items()})
        refuse_late_import(request, imported)
        record = chronicle.write("done" if number == total - 1 else "partial", progress)
        save.save(progress, method, {})
        announce(setting.display, record)
    save.remove()
    return record


def taken_up(
    loaded: Loaded, method: Method, probe: Probe, setting: Setting, chronicle: Chronicle, progress: Progress
) -> dict[str, Tensor]:
    """Bring method, results and progress to where a saved run stood; the optimiser's momentum."""
    record = sound_record(record_path(chronicle.out, setting.request.question))
    done = loaded.progress.session + loaded.progress.ended
    if record is None or len(record.sessions) < done:
        setting.display.say("the record of the sessions done so far is gone: starting over")
        return {}
    refuse_other_threads(loaded.progress)
    if loaded.progress.engine != progress.engine:
        work = chronicle.out / "work" / setting.request.question.key
        raise UsageError(
            f"this run was begun by other code of the suite: go back to it, or remove {work} to start over"
        )
    chronicle.results += record.sessions[:done]
    chronicle.stored = record.stored
    vars(progress).update(vars(loaded.progress))
    rebuilt(method, setting, progress, loaded.model)
    restore(probe, loaded.beside)
    setting.display.say(f"resuming in session {progress.session}, after {progress.optimiser_steps} steps")
    return loaded.momentum


def imported_before(request: Request) -> set[str]:
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
