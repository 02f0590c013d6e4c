"""What can be refuted of a record by package data alone: a whole file can still say what no run of the suite can say.

It is no proof of the opposite. Somebody who works out numbers that fit each other can invent a run; rerunning it shows.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from pydantic import ValidationError
from scipy.optimize import linear_sum_assignment

from benchmark.protocol.catalogue import load_backbones
from benchmark.protocol.models import Budget, Shared
from benchmark.protocol.protocols import protocol_names, suite_protocol
from benchmark.records import scoring
from benchmark.records.record import RunRecord
from benchmark.records.reference import MethodDefaults, suite_methods
from benchmark.records.results import PhaseLog


def refuted(record: RunRecord) -> str | None:
    """The first thing in a record that cannot be, in half a sentence; none if nothing was found."""
    for check in (_of_method, _of_protocol, _of_setting, _of_backbone, _of_data, _of_assignments, _of_budget):
        for reason in check(record):
            return reason
    return None


def _of_method(record: RunRecord) -> Iterator[str]:
    question = record.question
    if question.method_source is not None:
        if record.own.defaults is None or not question.params.keys() <= record.own.defaults.keys():
            yield f"'{question.method}' is an own method, and its default parameters are not given"
        if question.method in suite_methods():
            yield f"'{question.method}' is a method of the suite and cannot be an own one"
        return
    versions = suite_methods().get(question.method)
    if versions is None:
        yield f"the suite has no method '{question.method}'"
    elif question.method_version not in versions:
        yield f"the suite's '{question.method}' has no version {question.method_version}"
    elif not has_the_knobs(question.params, versions[question.method_version]):
        yield f"its parameters are not those of '{question.method}'"
    elif record.own.defaults is not None:
        yield "it tells default parameters of its own for a method of the suite"
    else:
        defaults = versions[question.method_version].every
        odd = [name for name, value in question.params.items() if not alike(value, defaults[name])]
        if odd:
            yield f"its parameter '{odd[0]}' is of another kind than that of '{question.method}'"


def has_the_knobs(params: Mapping[str, Any], known: MethodDefaults) -> bool:
    """All that the method has; of those that came later only what is not as it was before them."""
    added = params.keys() - known.params.keys()
    return known.params.keys() <= params.keys() and all(
        name in known.later and params[name] != known.later[name] for name in added
    )


def alike(one: object, two: object) -> bool:
    """Whether two values are of one kind: numbers, words or switches. None, as a default, stands for a number."""
    one, two = (0.0 if value is None else value for value in (one, two))
    kinds = [bool if isinstance(v, bool) else float if isinstance(v, int | float) else type(v) for v in (one, two)]
    return kinds[0] is kinds[1]


def _of_protocol(record: RunRecord) -> Iterator[str]:
    stated, name = record.question.protocol, record.question.protocol["name"]
    if name in protocol_names():
        protocol = suite_protocol(name)
        if stated.get("version") != protocol.version:
            yield f"it is of version {stated.get('version')} of {name}, the suite has version {protocol.version}"
    elif record.own.protocol is None:
        yield f"the suite has no protocol '{name}', and the record does not hold it"
        return
    else:
        protocol = record.own.protocol
    if stated != protocol.identity:
        yield f"its classes, data or rules are not those of protocol {name}"


def _of_setting(record: RunRecord) -> Iterator[str]:
    question = record.question
    for model, values in ((Budget, question.budget), (Shared, question.shared)):
        try:
            if model.model_validate(values).model_dump(mode="json") != values:
                yield f"its {model.__name__.lower()} is not complete"
        except ValidationError as error:
            yield f"its {model.__name__.lower()} cannot be: {error.errors()[0]['msg']}"


def _of_backbone(record: RunRecord) -> Iterator[str]:
    stated = record.question.backbone
    known = load_backbones().get(stated["name"])
    if known is not None and (stated.get("network"), stated.get("projector")) != (known.network, [*known.projector]):
        yield f"its network is not that of backbone '{known.name}'"


def _of_data(record: RunRecord) -> Iterator[str]:
    """Every class has as many images as the data says, and the data no more than the dataset has."""
    data, spec = record.question.data, record.data_spec
    spans_given = {"train": list(data.train), "test": list(data.test)}
    spans = {"train": spec.span("train"), "test": spec.span("test")}
    if spec.first is not None and spec.layout == "embedded":
        yield f"a part of {spec.title} cannot be asked for"
    whole = spec.whole.span("train")
    if spec.first is not None and whole is not None and spec.first >= whole[1]:
        yield f"it asks for {spec.first} training images per class of {spec.title}, which has {whole[1]}"
    more = [split for split, span in spans.items() if span is not None and spans_given[split][1] > span[1]]
    if more or not all(1 <= least <= most for least, most in spans_given.values()):
        yield f"its numbers of images per class cannot be those of {spec.title}"
    if spec.registered == data.digest and spans_given != spans:
        yield f"its data digest is that of {spec.title}, its numbers of images are not"
    if spec.layout == "embedded" and spec.registered != data.digest:
        yield f"its data digest is not that of {spec.title}"
    before = None
    for number, (session, counts) in enumerate(zip(record.sessions, record.counts(), strict=True)):
        images = counts.sum(axis=1)
        if images.min() < spans_given["test"][0] or images.max() > spans_given["test"][1]:
            odd = _odd(images, spans_given["test"])
            yield f"after session {number} a class has {odd} test images, its data has {_text(spans_given['test'])}"
        if before is not None and not np.array_equal(images[: len(before)], before):
            yield f"after session {number} classes have other numbers of test images than before"
        before = images
        size = len(counts)
        if session.probe is not None and not np.array_equal(session.probe.dense(size).sum(axis=1), images):
            yield f"after session {number} the probe has other test images than the method"
        old, new = np.split(session.train_counts.dense(size).sum(axis=1), [size - len(session.classes)])
        if old.any():
            yield f"training images of session {number} are of classes that came before"
        if new.min() < spans_given["train"][0] or new.max() > spans_given["train"][1]:
            odd = _odd(new, spans_given["train"])
            yield f"in session {number} a class has {odd} training images, its data has {_text(spans_given['train'])}"


def _odd(images: scoring.Counts, span: list[int]) -> int:
    return int(images.min() if images.min() < span[0] else images.max())


def _text(span: list[int]) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]} to {span[1]}"


def _of_assignments(record: RunRecord) -> Iterator[str]:
    """Base rows mean their class; the others are the best match of their session's counts."""
    for number, (session, counts) in enumerate(zip(record.sessions, record.counts(), strict=True)):
        if number == 0:
            if any(own != tuple(range(len(own))) for own in session.assignments()):
                yield "its base rows are renamed: they mean their class"
            continue
        new = len(session.classes)
        known = len(counts) - new
        train = session.train_counts.dense(len(counts))
        for matrix, assignment in zip((counts, train), session.assignments(), strict=True):
            block = scoring.new_block(matrix, known, new)
            best = block[linear_sum_assignment(block, maximize=True)].sum()
            if block[list(assignment), range(new)].sum() != best:
                yield f"the assignment of session {number} is not the best match of its counts"


def _of_budget(record: RunRecord) -> Iterator[str]:
    """Epochs and steps follow from the budget and the number of images."""
    budget, question = record.question.budget, record.question
    versions = suite_methods().get(question.method, {})
    suite = versions.get(question.method_version) if question.method_source is None else None
    met = 0
    for number, session in enumerate(record.sessions):
        images = sum(session.train_counts.images)
        met += images
        names = ("base",) if number == 0 else None if suite is None else suite.phases
        if names is not None and tuple(phase.name for phase in session.phases) != names:
            yield f"session {number} has other phases than '{question.method}'"
        epochs = budget["base_epochs"] if number == 0 else budget["novel_epochs"]
        if session.phases and sum(phase.epochs for phase in session.phases) != epochs:
            yield f"session {number} has other epochs than its budget ({epochs})"
        for phase in session.phases:
            yield from _of_phase(number, phase, images, met, budget["batch"])
            yield from _of_curves(phase, number)


def _of_phase(number: int, phase: PhaseLog, images: int, met: int, batch: int) -> Iterator[str]:
    """Steps of an epoch: of the session's images, or of all images met so far if there are exemplars among them."""
    most = met if phase.memory else images
    if number == 0 and phase.images != min(batch, images):
        yield f"session 0 takes {phase.images} images per step, its budget {min(batch, images)}"
    if not 1 <= phase.images <= images:
        yield f"session {number} takes {phase.images} images per step and has {images}"
        return
    fewest = max(1, images // (phase.images + phase.memory))
    if not fewest <= phase.steps <= max(1, most // phase.images):
        yield f"session {number} has {phase.steps} steps per epoch, which its images do not make"


def _of_curves(phase: PhaseLog, number: int) -> Iterator[str]:
    curves = (*phase.terms.values(), *phase.diagnostics.values())
    if any(len(curve) != phase.epochs for curve in curves):
        yield f"session {number} has curves that do not cover its epochs"
