"""What a user changes: `--set key=value`, parameter sets and views, read and checked."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field

from benchmark.errors import UsageError
from benchmark.protocol.models import Spec
from benchmark.protocol.reading import UNREADABLE, parsed_yaml, read_yaml, suggest, validated


class ParamSet(Spec):
    """A named set of parameters for one method."""

    method: str
    params: dict[str, Any] = Field({})
    shared: dict[str, Any] = Field({})
    budget: dict[str, Any] = Field({})


def param_sets() -> list[str]:
    return sorted(
        e.name.removesuffix(".yaml") for e in (files("protocols") / "params").iterdir() if e.name.endswith(".yaml")
    )


def load_params(name: str, method: str) -> ParamSet:
    """A parameter set of the suite by name, or the user's own file."""
    if name.endswith((".yaml", ".yml")):
        document = read_yaml(Path(name))
    elif name in param_sets():
        document = read_yaml(files("protocols") / "params" / f"{name}.yaml")
    else:
        raise UsageError(f"unknown parameter set '{name}'{suggest(name, param_sets())}")
    found = validated(ParamSet, document, name)
    if found.method != method:
        raise UsageError(f"{name} holds parameters of '{found.method}', not of '{method}'")
    return found


def parse_setting(setting: str) -> tuple[str, Any]:
    """`key=value` with the value read as YAML."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set: '{setting}': write key=value, for example --set omega=1")
    try:
        return key.strip(), parsed_yaml(text)
    except UNREADABLE:
        raise UsageError(f"--set: '{setting[:60]}': the value cannot be read") from None


def by_part(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`omega` is the method's, `budget.lr` the budget's, `shared.tau_c` shared."""
    parts: dict[str, dict[str, Any]] = {"params": {}, "budget": {}, "shared": {}}
    for key, value in settings.items():
        part, dot, rest = key.partition(".")
        if dot and part in parts:
            parts[part][rest] = value
        else:
            parts["params"][key] = value
    return parts


def parse_views(views: int | str) -> Any:
    try:
        number = int(views)
    except ValueError:
        if views == "live":
            return views
        raise UsageError(f"--views: '{views}': must be a number from 2 on, or live") from None
    if not 2 <= number <= 1024:
        raise UsageError(f"--views: {number}: must be a number from 2 to 1024, or live")
    return number
