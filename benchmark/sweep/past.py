"""What records say without being read whole: whether a run is done, and how long such runs took before.

A record has a line for each of its keys. Here only some are read and no digest is compared: these are hints, for plans
and for people who wait. Whoever uses a record's figures reads it whole (records/reading.py).
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from benchmark.digests import digest_of
from benchmark.records.question import Question
from benchmark.records.record import OWN, PUBLISHED
from benchmark.records.results import Provenance

HEAD = 400
STATUS = re.compile(rb'^"status": "(done|partial|diverged)",$', re.MULTILINE)


def status_of(record: Path) -> str | None:
    """`done`, `partial` or `diverged`, as a record's first lines say; none if there is no such file."""
    try:
        with record.open("rb") as file:
            found = STATUS.search(file.read(HEAD))
    except OSError:
        return None
    return found[1].decode() if found else None


@dataclass(frozen=True)
class Took:
    """What runs like one took: seconds in all and for the base session, megabytes; none if there were none."""

    seconds: float | None = None
    base_seconds: float | None = None
    memory_mb: int | None = None


@dataclass
class Past:
    """Finished runs of a results folder, by what was asked: exactly, or method, protocol and budget."""

    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    images: dict[str, list[float]] = field(default_factory=dict)
    """Seconds that the trunk of a backbone took for a picture, by name."""
    _kept: dict[str, Took] = field(default_factory=dict, repr=False)

    @staticmethod
    def of_results(results: Path) -> "Past":
        past = Past()
        for folder in (PUBLISHED, OWN):
            for path in sorted((results / folder).rglob("*.json")):
                record = lines_of(path)
                if record is None:
                    continue
                for key in keys_of(record["question"]):
                    past.runs.setdefault(key, []).append(record["provenance"])
                made = record["provenance"]["trunk_images"]
                if made and record["provenance"]["bank_seconds"]:
                    name = record["question"]["backbone"]["name"]
                    past.images.setdefault(name, []).append(record["provenance"]["bank_seconds"] / made)
        return past

    def of(self, question: Question) -> Took:
        """Of the same setting with whatever seed; else of the same method, protocol and budget."""
        for key in keys_of(question.document()):
            if key in self._kept:
                return self._kept[key]
            if key in self.runs:
                self._kept[key] = took(self.runs[key])
                return self._kept[key]
        return Took()

    def seconds_an_image(self, backbone: str) -> float:
        return mean(self.images[backbone]) if backbone in self.images else 0.0


def took(runs: list[dict[str, Any]]) -> Took:
    sessions = [run["session_seconds"][0] for run in runs if run["session_seconds"]]
    memory = [run["own_memory_mb"] for run in runs if run["own_memory_mb"]]
    # what the system maps for it, and room for what differs from run to run
    most = int(1.5 * max(memory)) + 1000 if memory else None
    return Took(mean(run["seconds"] for run in runs), mean(sessions) if sessions else None, most)


def keys_of(question: dict[str, Any]) -> tuple[str, str]:
    parts = {name: question[name] for name in ("method", "budget", "views")}
    parts |= {"protocol": question["protocol"]["name"], "backbone": question["backbone"]["name"]}
    parts["images"] = question["shared"].get("images")
    rough = digest_of(parts)
    return digest_of(parts | {"params": question["params"], "shared": question["shared"]}), rough


def lines_of(record: Path) -> dict[str, Any] | None:
    """Question and provenance of a finished record; none if it has none, or is no record."""
    try:
        lines = record.read_text(encoding="utf-8").splitlines()
        if not any(line == '"status": "done",' for line in lines[:6]):
            return None
        parts = {}
        for line in lines:
            for key in ("question", "provenance"):
                if line.startswith(f'"{key}": '):
                    parts[key] = json.loads(line.removeprefix(f'"{key}": ').rstrip(","))
        keys_of(parts["question"])
        return parts | {"provenance": Provenance.model_validate(parts["provenance"]).model_dump()}
    except (OSError, ValueError, KeyError, TypeError):
        return None
