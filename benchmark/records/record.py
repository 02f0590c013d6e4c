"""The run record: one run, one JSON file that stands alone, with the question, the counts and where they came from.

Scores are not stored: they follow from counts (scoring.py), so a corrected metric costs a report and no training. Nor
is anything stored that follows from the question: what was changed, which budget it is (reference.py). The last key
seals the others: it is their digest, so that a damaged or edited record is noticed. What package data can refute of a
record that is whole, audit.py refutes.
"""

import json
import re
import shlex
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from benchmark.digests import digest_of, sealed
from benchmark.errors import UsageError
from benchmark.files import atomic_write
from benchmark.protocol.catalogue import load_backbones
from benchmark.protocol.models import UNSAID, DatasetSpec, Spec
from benchmark.protocol.protocols import Protocol, protocol_names, suite_protocol
from benchmark.records import scoring
from benchmark.records.question import MAX_CLASSES, Own, Question
from benchmark.records.reference import Difference, difference, suite_methods
from benchmark.records.results import Provenance, SessionResult, Stored

OWN, PUBLISHED = "runs", "published"
"""Folders of a results folder: what `bench run` writes, and what `bench publish` has moved over."""
PLAIN_WORD = re.compile(r"(?!(?i:true|false|yes|no|on|off|null|y|n)$)[A-Za-z][A-Za-z0-9_]*")
"""Text that a shell and YAML take as it is."""

NOT_SET = ("views", "backbone", "weights", "reduced", "data", "protocol")
"""What `changed` tells beside parameters."""
FILE, DIR, CLASS = "FILE", "DIR", "CLASS"
"""In a command, for the file of the weights, the folder of the data and the class of an own method, if not known."""


class RunRecord(Spec):
    """One run, complete or not."""

    schema_version: Literal[2] = Field(2, alias="schema")
    key: str
    status: Literal["done", "partial", "diverged"]
    reason: str | None = None
    question: Question
    own: Own
    stored: Stored
    sessions: tuple[SessionResult, ...]
    provenance: Provenance

    @property
    def _defaults(self) -> dict[str, Any]:
        """All parameters of the method as they are if nobody sets them."""
        question = self.question
        if question.method_source is not None:
            return self.own.defaults or {}
        known = suite_methods().get(question.method, {}).get(question.method_version)
        return {} if known is None else known.every

    @property
    def params(self) -> dict[str, Any]:
        """All parameters of the method, also those that the question leaves out because they are at their default."""
        return self._defaults | self.question.params

    @cached_property
    def _difference(self) -> Difference:
        return difference(self.question.document(), self.protocol, self._defaults)

    @property
    def protocol(self) -> Protocol:
        """The suite's, or the user's own as the record tells it."""
        name = self.question.protocol["name"]
        if name in protocol_names():
            return suite_protocol(name)
        if self.own.protocol is None:
            raise UsageError(f"the suite has no protocol '{name}', and the record does not hold it")
        return self.own.protocol

    @property
    def data_spec(self) -> DatasetSpec:
        """The dataset, or the part of it that the question names."""
        return self.protocol.data_with(self.question.shared.get("images"))

    @property
    def budget_name(self) -> str:
        return self._difference.budget

    @property
    def changed(self) -> dict[str, Any]:
        """What differs from the protocol's own setting; empty, with the budget `paper`: a reference run."""
        return self._difference.changed

    @property
    def setting(self) -> str:
        """Digest of the question without its seed: runs that differ in their seed alone may be averaged."""
        return digest_of(self.question.model_dump(mode="json", by_alias=True, exclude={"seed"}))

    @property
    def group(self) -> str:
        """Runs of one group may stand in one table."""
        return group_name(self.budget_name, self.changed)

    @property
    def optimiser_steps(self) -> int:
        return sum(phase.epochs * phase.steps for session in self.sessions for phase in session.phases)

    @property
    def stored_per_class(self) -> tuple[float, float]:
        """Images and numbers that the method stores, per class met so far."""
        classes = max(1, sum(self.sizes))
        return self.stored.images / classes, self.stored.numbers / classes

    @model_validator(mode="after")
    def _counts_fit(self) -> "RunRecord":
        """Counts and assignments must fit the classes, or nothing computed from them means anything."""
        total = 0
        for session, classes in zip(self.sessions, self.question.protocol["classes"], strict=False):
            total += len(session.classes)
            if list(session.classes) != classes or total > MAX_CLASSES:
                raise ValueError("its classes are not those of its protocol")
            sizes = [each.size for each in (session.counts, session.train_counts, session.probe) if each is not None]
            if max(sizes) > total:
                raise ValueError("counts do not fit the number of classes")
            if len({*session.counts.true}) < total:
                raise ValueError("there is a class without test images")
            if any(sorted(a) != list(range(len(a))) or len(a) != len(session.classes) for a in session.assignments()):
                raise ValueError("an assignment is not one to one")
        complete = len(self.sessions) == self.question.session_count > 0
        if len(self.sessions) > self.question.session_count or (self.status == "done" and not complete):
            raise ValueError("sessions are missing")
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """What `--set` took: whole values, also of knobs that are mappings, which `changed` tells key by key."""
        question, found = self.question, {}
        parts = {"budget": question.budget, "shared": UNSAID | question.shared}
        for key in sorted(self.changed):
            part, dot, rest = key.partition(".")
            if dot and part in parts:
                found[key] = parts[part][rest]
            elif part in self.params and key not in NOT_SET:
                found[part] = self.params[part]
        return found

    @property
    def options(self) -> dict[str, Any]:
        """What `benchmark.run` takes to make the same run: at its commit, on such a machine, it gives the same bytes.

        Where the record does not know a file that is needed, a word in capitals stands for it.
        """
        question, given, changed = self.question, self.provenance.given, dict(self.changed)
        own_images = {"reduced", "data"} & changed.keys()  # which images, nobody can type: say where they are
        if self.data_spec.first is not None:  # they can be taken again from the complete dataset
            own_images -= {"data"}
        own_method = None if question.method_source is None else given.method or f"{question.method}.py:{CLASS}"
        own_protocol = None
        if self.own.protocol is not None:
            own_protocol = given.protocol or f"{question.protocol['name']}.yaml"
            own_images = own_images if isinstance(self.own.protocol.dataset, str) else set()  # its file says where
        own_backbone = given.backbone if changed.get("backbone") not in load_backbones() else None
        own_weights = given.weights or (
            FILE if "weights" in changed else None
        )  # a digest, which nobody can type either
        options = {
            "method": own_method or question.method,
            "protocol": own_protocol or question.protocol["name"],
            "seed": question.seed,
            "budget": self.budget_name,
            "backbone": own_backbone or changed.get("backbone"),
            "weights": own_weights,
            "data_dir": given.data_dir or (DIR if own_images else None),
            "views": changed.get("views"),
            "settings": self.settings,
            "device": self.provenance.device or None,
            "threads": self.provenance.threads or None,
        }
        return {name: value for name, value in options.items() if value not in (None, {})}

    @property
    def command(self) -> str:
        """The options as a line to paste; a record may come from anybody, so every word of it is quoted."""
        words = ["bench run"]
        for name, value in self.options.items():
            if name == "settings":
                words += [f"--set {shlex.quote(f'{key}={setting_text(item)}')}" for key, item in value.items()]
            else:
                words.append(f"--{name.replace('_', '-')} {quoted_path(str(value))}")
        return " ".join(words)

    @property
    def sizes(self) -> list[int]:
        return [len(session.classes) for session in self.sessions]

    def counts(self) -> list[scoring.Counts]:
        """Dense counts of every session."""
        totals = np.cumsum(self.sizes)
        return [session.counts.dense(int(size)) for session, size in zip(self.sessions, totals, strict=True)]

    def metrics(self) -> scoring.Metrics:
        return scoring.score(self.counts(), [session.assignment for session in self.sessions])

    def probe_metrics(self) -> scoring.Metrics | None:
        """Metrics of the probe, scored as a method is: its rows are named once, at the end of their session."""
        totals, found = np.cumsum(self.sizes), [session.probe for session in self.sessions]
        if not found:
            return None
        counts = [probe.dense(int(size)) for probe, size in zip(found, totals, strict=True) if probe is not None]
        if len(counts) < len(found):
            return None
        own = [
            scoring.assign(scoring.new_block(matrix, len(matrix) - size, size))
            for matrix, size in zip(counts[1:], self.sizes[1:], strict=True)
        ]
        return scoring.score(counts, [range(self.sizes[0]), *own])

    def diagnostics(self) -> dict[str, Any]:
        """Figures beside the result: other ways to assign, quality of the clustering, where novel images went."""
        counts, sizes = self.counts(), self.sizes
        by_train = scoring.score(counts, [session.train_assignment for session in self.sessions])
        oracle = scoring.oracle_score(counts, sizes)
        rows = []
        for t, session in enumerate(self.sessions[1:], 1):
            known, new = sum(sizes[:t]), sizes[t]
            table = scoring.clustering(counts[t], known, new)
            novel = session.train_counts.dense(known + new)[known:]
            rows.append(
                {
                    "session": t,
                    "nmi": scoring.mutual_information(table),
                    "ari": scoring.rand_index(table),
                    "empty_rows": int((table[:, :new].sum(axis=0) == 0).sum()),
                    "train_share_on_new_rows": float(novel[:, known:].sum() / max(1, novel.sum())),
                    "test_share_on_new_rows": float(table[:, :new].sum() / max(1, table.sum())),
                    "last_epoch": {
                        phase.name: {name: values[-1] for name, values in phase.diagnostics.items()}
                        for phase in session.phases
                    },
                }
            )
        summary = {
            name: {
                "average_accuracy": m.average_accuracy,
                "average_forgetting": m.average_forgetting,
                "average_discovery": m.average_discovery,
            }
            for name, m in (("train_assignment", by_train), ("oracle_each_session", oracle))
        }
        return {**summary, "sessions": rows}

    def path(self, out: Path, folder: str = OWN) -> Path:
        return record_path(out, self.question, folder)

    def document(self) -> dict[str, Any]:
        """The record as it is written, sealed."""
        return sealed(self.model_dump(mode="json", by_alias=True))

    def save(self, out: Path, folder: str = OWN) -> Path:
        path = self.path(out, folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, (compact(self.document()) + "\n").encode())
        return path

    def comparable(self) -> dict[str, Any]:
        """The record less times and provenance: equal for equal questions on one machine."""
        return self.model_dump(mode="json", by_alias=True, exclude={"provenance"})

    def agrees_with(self, other: "RunRecord") -> bool:
        """Whether two records are the same run; a probe that one of them does not have is left out of account."""
        one, two = self.comparable(), other.comparable()
        for mine, theirs in zip(one["sessions"], two["sessions"], strict=False):
            if None in (mine["probe"], theirs["probe"]):
                mine["probe"] = theirs["probe"] = None
        return one == two


def setting_text(value: Any) -> str:
    """A value as `--set` takes it."""
    return value if isinstance(value, str) and PLAIN_WORD.fullmatch(value) else json.dumps(value)


def quoted_path(text: str) -> str:
    """For a shell; `~/` at the beginning is left to it."""
    return f"~/{shlex.quote(text[2:])}" if text.startswith("~/") and len(text) > 2 else shlex.quote(text)


def group_name(budget: str, changed: dict[str, Any]) -> str:
    return ", ".join([f"budget {budget}", *(f"{key}={json.dumps(value)}" for key, value in sorted(changed.items()))])


def stored_text(stored: Sequence[tuple[float, float]]) -> str:
    """`18.5 to 20 images + 96 numbers`: what one or several runs store per class; a class of few images has few."""
    parts = []
    for counts, unit in zip(zip(*stored, strict=True), ("images", "numbers"), strict=True):
        least, most = (f"{count:,.0f}" if count >= 1000 else f"{count:.4g}" for count in (min(counts), max(counts)))
        if max(counts) > 0:
            parts.append(f"{least} {unit}" if least == most else f"{least} to {most} {unit}")
    return " + ".join(parts) or "nothing"


def compact(tree: dict[str, Any]) -> str:
    """JSON with a line for every top-level key: small, and a diff shows what changed."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in tree.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def record_path(out: Path, question: Question, folder: str = OWN) -> Path:
    name = f"seed{question.seed}-{question.key[:8]}.json"
    return out / folder / question.protocol["name"] / question.method / name
