"""The run record: one run, one JSON file that stands alone, with the question, the counts and where they came from.

Scores are not stored: they follow from counts (scoring.py), so a corrected metric costs a report and no training.
"""

import hashlib
import json
import re
import shlex
import stat
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from benchmark import scoring
from benchmark.errors import UsageError
from benchmark.files import atomic_write
from benchmark.protocol import NAME, Spec

Place = Annotated[int, Field(ge=0, lt=100_000)]
Triplet = tuple[Place, Place, Annotated[int, Field(gt=0, le=1_000_000_000)]]
"""(true class, predicted row, images): most of a 200-class matrix is zero."""


MAX_CLASSES = 5_000
"""More than any protocol has; a record that claims more would only fill the memory."""
MAX_BYTES = 100_000_000
PLAIN_WORD = re.compile(r"(?!(?i:true|false|yes|no|on|off|null|y|n)$)[A-Za-z][A-Za-z0-9_]*")
"""Text that a shell and YAML take as it is."""


class Question(Spec):
    """What a run answers. Two runs with the same question are the same run; its hash is the run's key."""

    schema_version: Literal[1] = Field(1, alias="schema")
    method: str = Field(pattern=NAME)
    method_version: int
    method_source: str | None = None
    params: dict[str, Any]
    protocol: dict[str, Any]
    backbone: dict[str, Any]
    budget: dict[str, Any]
    shared: dict[str, Any]
    views: int | Literal["live"]
    seed: int = Field(ge=0)
    data: dict[str, Any] | None = Field(None, description="digest of the images; none: the package's own")

    @model_serializer(mode="wrap")
    def _own_data_goes_without_saying(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Records of embedded data were made before there was any other: their keys stay valid."""
        values: dict[str, Any] = dump(self)
        if self.data is None:
            values.pop("data", None)
        return values

    @model_validator(mode="after")
    def _protocol_is_named(self) -> "Question":
        name, classes = self.protocol.get("name"), self.protocol.get("classes")
        if not isinstance(name, str) or not re.fullmatch(NAME, name) or not isinstance(classes, list):
            raise ValueError("protocol: it needs a name and classes")
        return self

    @property
    def session_count(self) -> int:
        return len(self.protocol["classes"])

    @property
    def key(self) -> str:
        return hashlib.sha256(canonical(self.model_dump(mode="json", by_alias=True))).hexdigest()

    def difference(self, other: dict[str, Any]) -> str:
        """First place where a stored question is another one, for an error message; empty if it is the same."""
        mine, theirs = flat(self.model_dump(mode="json", by_alias=True)), flat(other)
        for key in sorted(mine.keys() | theirs.keys()):
            if mine.get(key) != theirs.get(key):
                return f"{key} is {theirs.get(key)!r} there and {mine.get(key)!r} here"
        return ""


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping of dotted keys."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {
        k: v for key, value in tree.items() for k, v in flat(value, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def canonical(tree: Any) -> bytes:
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


class PhaseLog(Spec):
    """By epoch: the mean of every loss term, and what the method says of itself; null where one was absent."""

    name: str
    epochs: int
    terms: dict[str, list[float | None]]
    diagnostics: dict[str, list[float | None]] = Field({})


class SessionResult(Spec):
    """What was measured at the end of a session."""

    classes: tuple[int, ...] = Field(description="dataset labels of the classes that arrived")
    counts: tuple[Triplet, ...] = Field(description="test images: (class in order of arrival, row, images)")
    train_counts: tuple[Triplet, ...] = Field(description="the session's own training images, likewise")
    assignment: tuple[int, ...] = Field(description="class (within the session) of each row it created")
    train_assignment: tuple[int, ...] = Field(description="the same, solved on training images: a diagnostic")
    phases: tuple[PhaseLog, ...]

    def assignments(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.assignment, self.train_assignment


class Provenance(BaseModel):
    """Where a record came from. No host and no user name."""

    model_config = ConfigDict(extra="allow")

    commit: str | None = None
    dirty: bool | None = None
    versions: dict[str, str] = {}
    platform: str = ""
    device: str = ""
    threads: int = 0
    started: str = ""
    finished: str = ""
    seconds: float = 0.0
    attempts: int = 1
    session_seconds: list[float] = []
    peak_memory_mb: float = 0.0
    own_memory_mb: float | None = None
    trunk_images: int = 0
    bank_seconds: float = 0.0
    base_session: Literal["trained", "cached"] = "trained"
    data_digest: str = ""
    weights_digest: str = ""


class RunRecord(Spec):
    """One run, complete or not."""

    schema_version: Literal[1] = Field(1, alias="schema")
    key: str
    status: Literal["done", "partial", "diverged"]
    reason: str | None = None
    question: Question
    budget_name: str = Field(pattern=NAME)
    changed: dict[str, Any] = Field(description="what differs from the protocol's own setting; empty: a reference run")
    stored_per_class: str
    optimiser_steps: int
    sessions: tuple[SessionResult, ...]
    provenance: Provenance

    @property
    def setting(self) -> str:
        """Digest of the question without its seed: runs that differ in their seed alone may be averaged."""
        return hashlib.sha256(
            canonical(self.question.model_dump(mode="json", by_alias=True, exclude={"seed"}))
        ).hexdigest()

    @property
    def group(self) -> str:
        """Runs of one group may stand in one table."""
        return group_name(self.budget_name, self.changed)

    @model_validator(mode="after")
    def _counts_fit(self) -> "RunRecord":
        """Counts and assignments must fit the classes, or nothing computed from them means anything."""
        total = 0
        for session, classes in zip(self.sessions, self.question.protocol["classes"], strict=False):
            total += len(session.classes)
            if list(session.classes) != classes or total > MAX_CLASSES:
                raise ValueError("its classes are not those of its protocol")
            for triplets, met in ((session.counts, total), (session.train_counts, 0)):
                i, j, _ = arrays(triplets)
                if max(i.max(initial=0), j.max(initial=0)) >= total:
                    raise ValueError("counts do not fit the number of classes")
                seen = np.zeros((total, total), dtype=bool)
                seen[i, j] = True
                if seen.sum() != len(triplets):
                    raise ValueError("counts name a place twice")
                if seen.any(axis=1).sum() < met:
                    raise ValueError("there is a class without test images")
            if any(sorted(a) != list(range(len(a))) or len(a) != len(session.classes) for a in session.assignments()):
                raise ValueError("an assignment is not one to one")
        complete = len(self.sessions) == self.question.session_count > 0
        if len(self.sessions) > self.question.session_count or (self.status == "done" and not complete):
            raise ValueError("sessions are missing")
        return self

    @property
    def command(self) -> str:
        """What to type for the same run: at its commit, on such a machine, it gives the same bytes.

        An own method's or protocol's file goes by its name here; `DIR` stands for the folder of the data and `FILE` for
        that of the weights.
        """
        options = {"backbone": "--backbone", "views": "--views"}
        quote = shlex.quote  # a record may come from anybody, and people will paste this
        data = {"reduced", "data"} & self.changed.keys()  # which images, nobody can type: say where they are
        words = ["bench run --method", quote(self.question.method), "--protocol", quote(self.question.protocol["name"])]
        words += [f"--seed {self.question.seed} --budget {quote(self.budget_name)}"]
        words += ["--data-dir DIR"] if data else []
        for key, value in sorted(self.changed.items()):
            if key in data:
                continue
            if key == "weights":  # a digest, which nobody can type either
                words.append("--weights FILE")
                continue
            bare = isinstance(value, str) and PLAIN_WORD.fullmatch(value)
            text = value if bare else json.dumps(value)
            words.append(f"{options[key]} {quote(str(value))}" if key in options else f"--set {quote(f'{key}={text}')}")
        threads = self.provenance.threads
        return " ".join([*words, f"--threads {threads}"] if threads > 0 else words)

    @property
    def sizes(self) -> list[int]:
        return [len(session.classes) for session in self.sessions]

    def counts(self) -> list[scoring.Counts]:
        """Dense counts of every session."""
        totals = np.cumsum(self.sizes)
        return [dense(s.counts, int(n), int(n)) for s, n in zip(self.sessions, totals, strict=True)]

    def metrics(self) -> scoring.Metrics:
        return scoring.score(self.counts(), [session.assignment for session in self.sessions])

    def diagnostics(self) -> dict[str, Any]:
        """Figures beside the result: other ways to assign, quality of the clustering, where novel images went."""
        counts, sizes = self.counts(), self.sizes
        by_train = scoring.score(counts, [session.train_assignment for session in self.sessions])
        oracle = scoring.oracle_score(counts, sizes)
        rows = []
        for t, session in enumerate(self.sessions[1:], 1):
            known, new = sum(sizes[:t]), sizes[t]
            table = scoring.clustering(counts[t], known, new)
            seen = dense(session.train_counts, known + new, known + new)[known:]
            rows.append(
                {
                    "session": t,
                    "nmi": scoring.mutual_information(table),
                    "ari": scoring.rand_index(table),
                    "empty_rows": int((table[:, :new].sum(axis=0) == 0).sum()),
                    "train_share_on_new_rows": float(seen[:, known:].sum() / max(1, seen.sum())),
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

    def path(self, out: Path) -> Path:
        return record_path(out, self.question)

    def save(self, out: Path) -> Path:
        path = self.path(out)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, (compact(self.model_dump(mode="json", by_alias=True)) + "\n").encode())
        return path

    def comparable(self) -> dict[str, Any]:
        """The record less times and provenance: equal for equal questions on one machine."""
        return self.model_dump(mode="json", by_alias=True, exclude={"provenance"})


def group_name(budget: str, changed: dict[str, Any]) -> str:
    return ", ".join([f"budget {budget}", *(f"{key}={json.dumps(value)}" for key, value in sorted(changed.items()))])


def compact(tree: dict[str, Any]) -> str:
    """JSON with a line for every top-level key: small, and a diff shows what changed."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in tree.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def record_path(out: Path, question: Question) -> Path:
    name = f"seed{question.seed}-{question.key[:8]}.json"
    return out / "runs" / question.protocol["name"] / question.method / name


def sparse(counts: scoring.Counts) -> tuple[Triplet, ...]:
    return tuple((int(i), int(j), int(counts[i, j])) for i, j in zip(*np.nonzero(counts), strict=True))


def dense(triplets: tuple[Triplet, ...], rows: int, columns: int) -> scoring.Counts:
    counts = np.zeros((rows, columns), dtype=np.int64)
    i, j, n = arrays(triplets)
    counts[i, j] = n
    return counts


def arrays(triplets: tuple[Triplet, ...]) -> scoring.Counts:
    """Classes, rows and numbers of images; twice as fast as making an array of tuples."""
    flat = np.fromiter(chain.from_iterable(triplets), dtype=np.int64, count=3 * len(triplets))
    return flat.reshape(-1, 3).T


def read_record(path: Path) -> RunRecord:
    """A record from its file; a foreign or broken one is refused with its reason."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_BYTES:
            raise UsageError(f"{path} is not a run record: it is no regular file, or too large")
        record = RunRecord.model_validate_json(path.read_bytes())
        matches = record.key == record.question.key
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise UsageError(f"{path} is not a run record: {where}: {first['msg']}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # a number that JSON does not have
        raise UsageError(f"{path} is not a run record: {error}") from None
    if not matches:
        raise UsageError(f"{path} is not a run record: its key does not match its question")
    return record
