"""The methods of the suite. The file name is the registry: every module here that defines a `Method` is one.

Names are found by reading the files, so listing them imports no torch.
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from methods.base import Method


@dataclass(frozen=True)
class Entry:
    """A method's name, class and first line of documentation."""

    name: str
    cls: str
    title: str


def entries() -> dict[str, Entry]:
    found = {}
    for file in sorted(files("methods").iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".py"):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == "Method" for b in node.bases):
                name = file.name.removesuffix(".py")
                found[name] = Entry(name, node.name, (ast.get_docstring(tree) or name).splitlines()[0])
    return found


class NotAMethodError(Exception):
    """The user's file holds no class that the engine could run."""


@dataclass(frozen=True)
class Loaded:
    """A method ready to be built; `source` is the digest of the file if it is the user's own."""

    name: str
    cls: "type[Method]"
    source: str | None


def load(name: str) -> Loaded:
    """A method of the suite by name."""
    entry = entries()[name]
    return Loaded(name, getattr(importlib.import_module(f"methods.{name}"), entry.cls), None)


def load_own(path: Path, cls: str) -> Loaded:
    """A class in the user's own file. This runs the file: only ever on explicit request."""
    from methods.base import Method  # noqa: PLC0415 - imports torch

    spec = importlib.util.spec_from_file_location(f"own_method_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = getattr(module, cls, None)
    if not (inspect.isclass(found) and issubclass(found, Method)):
        names = [n for n, c in vars(module).items() if inspect.isclass(c) and issubclass(c, Method) and c is not Method]
        raise NotAMethodError(f"{path} defines no method class '{cls}' (it has: {', '.join(names) or 'none'})")
    if inspect.isabstract(found):
        raise NotAMethodError(f"{path}: class '{cls}' lacks {', '.join(sorted(found.__abstractmethods__))}")
    if not issubclass(found.Params, Method.Params):
        raise NotAMethodError(f"{path}: class '{cls}': Params must be a subclass of Method.Params")
    required = [name for name, field in found.Params.model_fields.items() if field.is_required()]
    if required:
        raise NotAMethodError(f"{path}: class '{cls}': give the knob '{required[0]}' a default")
    return Loaded(path.stem.lower(), found, hashlib.sha256(path.read_bytes()).hexdigest())
