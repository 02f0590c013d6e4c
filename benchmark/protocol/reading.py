"""YAML files read without trust, and models of them whose faults become one sentence."""

import difflib
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from benchmark.errors import UsageError

MAX_YAML_BYTES = 1_000_000
MAX_YAML_DEPTH = 20


def suggest(word: str, known: Any) -> str:
    """`, did you mean 'x'?` or `; known: a, b`, for the end of a sentence about an unknown word."""
    names = sorted(map(str, known))
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f", did you mean '{close[0]}'?" if close else f"; known: {', '.join(names)}"


class _Loader(yaml.SafeLoader):
    """Safe YAML that also refuses a key given twice, which plain YAML silently overwrites."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for place, _ in node.value:
            key = self.construct_object(place, deep=True)
            if key in keys:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key}' is given twice", node.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep)


UNREADABLE = (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What YAML's own reader raises for text that it cannot make sense of, such as an impossible date."""


class NotAllowedError(yaml.YAMLError):
    """YAML that we do not take: its `problem` says why."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def parsed_yaml(text: str) -> Any:
    """A YAML document without aliases and not too deep; whatever is wrong raises one of `UNREADABLE`."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):
            raise NotAllowedError("aliases (*name) are not allowed here, write the values out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_YAML_DEPTH:
            raise NotAllowedError(f"nested more than {MAX_YAML_DEPTH} deep")
    return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader with one more rule


def read_yaml(path: Path | Traversable) -> Any:
    """The document of a YAML file; whatever is wrong with it becomes one sentence that names the file."""
    try:
        raw = path.read_bytes()
        if len(raw) > MAX_YAML_BYTES:
            raise UsageError(f"{path}: larger than {MAX_YAML_BYTES} bytes, not read")
        return parsed_yaml(raw.decode("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text") from None
    except UNREADABLE as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "a value in it cannot be read"
        raise UsageError(f"{path}{where}: broken YAML: {problem}") from None


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], values: Any, source: str) -> Model:
    """`values` as a model, or one sentence with the source, the key, the value and the nearest valid key."""
    if not isinstance(values, dict):
        raise UsageError(f"{source}: expected a mapping of keys to values, found {type(values).__name__}")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"{source}: {_sentence(model, error)}") from None


def _sentence(model: type[BaseModel], error: ValidationError) -> str:
    missing = [".".join(map(str, each["loc"])) for each in error.errors() if each["type"] == "missing"]
    misspelt = [each for each in error.errors() if each["type"] == "extra_forbidden"]
    if len(missing) > 1 and not misspelt:
        return f"keys {', '.join(map(repr, missing))} are missing"
    first = (misspelt or error.errors())[0]  # a key that is unknown may be one that is missing
    places = [
        str(part)
        for part in first["loc"]
        if not str(part).startswith(("tuple[", "function-", "constrained-", "literal["))
    ]
    key = ".".join(places)
    if first["type"] == "extra_forbidden":
        return (
            f"unknown key '{key}' (value {_short(first['input'])}){suggest(places[-1], _keys_at(model, places[:-1]))}"
        )
    if first["type"] == "missing":
        return f"key '{key}' is missing"
    message = first["msg"].removeprefix("Value error, ")
    return f"{key}: {_short(first['input'])}: {message}" if key else message


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys_at(model: type[BaseModel], places: list[str]) -> Iterator[str]:
    """Valid keys of the mapping at `places`, following nested models and mappings of models."""
    current: Any = model
    for place in places:
        field = current.model_fields.get(place) if hasattr(current, "model_fields") else None
        if field is None:
            continue  # the key of a mapping such as budgets.paper
        kinds = [field.annotation, *get_args(field.annotation)]
        current = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), current)
    yield from current.model_fields
