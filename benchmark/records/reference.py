"""What a question changes of its protocol's own setting: worked out, never believed.

A record holds the question alone. Which budget it is, what was changed and whether it may stand beside the paper's
figures follows from the question, the protocol and the method's defaults, all of which the package has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import Field

from benchmark.protocol.catalogue import load_backbones
from benchmark.protocol.models import UNSAID, Budget, DatasetSpec, Spec
from benchmark.protocol.protocols import Protocol, protocol_names
from benchmark.protocol.reading import read_yaml, validated


class MethodDefaults(Spec):
    """A version of one of the suite's methods: its parameters by default and the names of its phases."""

    params: dict[str, Any]
    later: dict[str, Any] = Field({}, description="knobs that came later: left out of questions at these values")
    phases: tuple[str, ...] = Field(description="stretches of a discovery session, in order")

    @property
    def every(self) -> dict[str, Any]:
        return self.params | self.later


@cache
def suite_methods() -> dict[str, dict[int, MethodDefaults]]:
    """By name and version, from protocols/methods.yaml, which needs no torch. A test compares it with the code."""
    document = read_yaml(files("protocols") / "methods.yaml")
    return {
        name: {
            int(version): validated(MethodDefaults, values, f"methods.yaml: {name} {version}")
            for version, values in versions.items()
        }
        for name, versions in document.items()
    }


@dataclass(frozen=True)
class Difference:
    """How a question differs from its protocol's own setting."""

    budget: str
    """The budget of the protocol that it is, or is nearest to."""
    changed: dict[str, Any]
    """What else is another; empty, and the budget `paper`: a reference run."""


def difference(question: Mapping[str, Any], protocol: Protocol, defaults: Mapping[str, Any]) -> Difference:
    """Compare a question (in its JSON form) with its protocol and its method's default parameters, all of them.

    A parameter that the question leaves out is at its default (knobs that came later).
    """
    budget = nearest_budget(question["budget"], protocol.budgets)
    own = dict(defaults) | protocol.params_of(question["method"], question["backbone"]["name"])
    changed = changes("", own, dict(defaults) | question["params"])
    changed |= changes("budget.", protocol.budgets[budget].model_dump(mode="json"), question["budget"])
    changed |= changes("shared.", UNSAID | protocol.shared.model_dump(mode="json"), UNSAID | question["shared"])
    backbone, data = question["backbone"], question["data"]
    if question["views"] != protocol.views:
        changed["views"] = question["views"]
    if protocol.name not in protocol_names():  # files of one name may ask different things
        changed["protocol"] = protocol.digest[:12]
    if backbone["name"] != protocol.backbone:
        changed["backbone"] = backbone["name"]
    if not is_registered(backbone["name"], backbone["weights"]):
        changed["weights"] = backbone["weights"][:12]
    spec = protocol.data_with(question["shared"].get("images"))
    fewer = shortfall(data, spec)
    if fewer:
        changed["reduced"] = fewer
    elif data["digest"] != spec.registered:
        changed["data"] = data["digest"][:12]
    return Difference(budget, changed)


def nearest_budget(budget: Mapping[str, Any], budgets: Mapping[str, Budget]) -> str:
    """The named budget with the fewest other values: the same budget has one name however it was asked for."""

    def distance(name: str) -> tuple[int, bool, str]:
        return len(changes("", budgets[name].model_dump(mode="json"), budget)), name != "paper", name

    return min(budgets, key=distance)


def changes(prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `after` that are others before."""
    old, new = flat(dict(before)), flat(dict(after))
    return {f"{prefix}{key}": new[key] for key in new if key not in old or old[key] != new[key]}


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping of dotted keys."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {
        k: v for key, value in tree.items() for k, v in flat(value, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def is_registered(backbone: str, weights: str) -> bool:
    """Whether these are the weights that the suite knows under this name."""
    known = load_backbones().get(backbone)
    return known is not None and known.identity is not None and known.identity == weights


def shortfall(data: Mapping[str, Any], spec: DatasetSpec) -> str | None:
    """`300+60 images per class` where the complete dataset has more; none if this is all, or nobody says how many."""
    if spec.train is None or [data[split] for split in ("train", "test")] == [spec.span("train"), spec.span("test")]:
        return None
    texts = [f"{least}" if least == most else f"{least}-{most}" for least, most in (data["train"], data["test"])]
    return f"{'+'.join(texts)} images per class"
