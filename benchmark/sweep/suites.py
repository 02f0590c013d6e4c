"""Suites: which runs are wanted, from a file of protocols/suites, a file of the user's own, or the command line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from benchmark.errors import UsageError
from benchmark.protocol.models import NAME, Spec, Views
from benchmark.protocol.reading import UNREADABLE, parsed_yaml, read_yaml, suggest, validated

MOST_SEEDS = 10_000


def seeds_of(text: str) -> list[int]:
    """`0-2,7` as 0, 1, 2, 7."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,10})\s*(?:-\s*(\d{1,10})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first >= MOST_SEEDS:
            raise UsageError(f"seeds: '{text}': write numbers and ranges such as 0-2 or 0,3,7")
        found += range(first, last + 1)
    return [*dict.fromkeys(found)]


class Block(Spec):
    """Every method on every protocol, with every seed, parameter set and combination of settings."""

    methods: tuple[str, ...] = Field(min_length=1, description="names, or path/to/mine.py:Mine")
    protocols: tuple[str, ...] = Field(min_length=1, description="names, or files")
    seeds: tuple[int, ...] = Field(min_length=1, description="numbers, or text such as 0-2")
    params: tuple[str, ...] = Field((), description="parameter sets by name or file; none: the defaults")
    settings: tuple[dict[str, Any], ...] = Field(({},), min_length=1, description="what --set would take, run by run")
    grid: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = Field(
        {}, description="values of a setting: all combinations are run"
    )
    labels: tuple[str, ...] = Field((), description="names of the rows, one for each of settings, for pages")
    budget: str = "paper"
    backbone: str | None = None
    views: Views | None = None

    @field_validator("methods", "protocols", "params", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else value

    @field_validator("seeds", mode="before")
    @classmethod
    def _ranges(cls, value: Any) -> Any:
        try:
            if isinstance(value, int) and not isinstance(value, bool):
                return [value]
            return seeds_of(value) if isinstance(value, str) else value
        except UsageError as error:
            raise ValueError(str(error)) from None

    @field_validator("labels")
    @classmethod
    def _a_label_each(cls, value: tuple[str, ...], info: Any) -> tuple[str, ...]:
        if value and len(value) != len(info.data.get("settings", ())):
            raise ValueError("give as many labels as settings")
        return value


class Suite(Spec):
    """A named set of runs."""

    name: str = Field(pattern=NAME)
    title: str
    runs: tuple[Block, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Wanted:
    """One run of a suite: the options of `bench run` that say what is asked."""

    method: str
    protocol: str
    seed: int
    budget: str = "paper"
    backbone: str | None = None
    weights: Path | None = None
    views: int | str | None = None
    params: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    data_dir: Path | None = None


@dataclass(frozen=True)
class Common:
    """Options of the command line that hold for all runs of a sweep; given, they come before the suite's own."""

    budget: str | None = None
    backbone: str | None = None
    weights: Path | None = None
    views: str | None = None
    data_dir: Path | None = None


def suite_names() -> list[str]:
    return sorted(
        e.name.removesuffix(".yaml") for e in (files("protocols") / "suites").iterdir() if e.name.endswith(".yaml")
    )


def load_suite(name: str) -> Suite:
    """A suite of the package by name, or the user's own by path."""
    own = name.endswith((".yaml", ".yml"))
    if not own and name not in suite_names():
        raise UsageError(f"unknown suite '{name}'{suggest(name, suite_names())} (your own: --suite my/suite.yaml)")
    path = Path(name) if own else files("protocols") / "suites" / f"{name}.yaml"
    suite = validated(Suite, read_yaml(path), name)
    expected = Path(name).stem
    if suite.name != expected:
        raise UsageError(f"{name}: name: '{suite.name}': must equal the file's name '{expected}'")
    return suite


def several(setting: str) -> tuple[str, list[Any]]:
    """`omega=0,1,2` as a key and its values; commas inside brackets, braces and quotes divide nothing."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set: '{setting}': write key=value or key=value,value, for example --set omega=0,1,2")
    parts = divided(text)
    if len(parts) > 1 and not all(part.strip() for part in parts):
        raise UsageError(f"--set: '{setting[:60]}': there is no value between two commas")
    try:
        return key.strip(), [parsed_yaml(part) for part in parts]
    except UNREADABLE:
        raise UsageError(f"--set: '{setting[:60]}': a value cannot be read") from None


def divided(text: str) -> list[str]:
    """Text between commas that are not inside brackets, braces or quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote or letter in "\"'":
            quote = "" if letter == quote else quote or letter
        depth += 0 if quote else (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def combinations(block: Block) -> Iterator[dict[str, Any]]:
    """Every entry of `settings` with every combination of the grid."""
    for settings in block.settings:
        for values in product(*block.grid.values()):
            yield settings | dict(zip(block.grid, values, strict=True))


def wanted_runs(blocks: tuple[Block, ...], common: Common) -> list[Wanted]:
    """All runs, seeds outermost: whatever is done when a sweep stops, all methods have as many seeds."""
    seeds = [*dict.fromkeys(seed for block in blocks for seed in block.seeds)]
    return [
        Wanted(
            method,
            protocol,
            seed,
            budget=common.budget or block.budget,
            backbone=common.backbone or block.backbone,
            weights=common.weights,
            views=common.views or block.views,
            params=params,
            settings=settings,
            data_dir=common.data_dir,
        )
        for seed in sorted(seeds)
        for block in blocks
        if seed in block.seeds
        for protocol in block.protocols
        for params in block.params or (None,)
        for settings in combinations(block)
        for method in block.methods
    ]
