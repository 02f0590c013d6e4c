"""The methods of the suite. The file name is the registry: every module here that defines a `Method` is one.

Names are found by reading the files, so listing them imports no torch.
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
import sysconfig
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
    """A method ready to be built."""

    name: str
    cls: "type[Method]"
    modules: dict[str, str]
    """SHA-256 of the method's file; of a user's own method, of every file of its folder that it imports."""
    folder: Path | None = None
    """Where the user's own files are; none: a method of the suite."""

    @property
    def digest(self) -> str:
        lines = [f"{name} {digest}\n" for name, digest in sorted(self.modules.items())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def source(self) -> str | None:
        """What tells an own method from another of its name; none: a method of the suite."""
        return None if self.folder is None else self.digest

    def imported(self) -> dict[str, str]:
        """Files of the user's folder that this process has imported so far, by whoever."""
        return {} if self.folder is None else own_modules(self.folder)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load(name: str) -> Loaded:
    """A method of the suite by name."""
    entry = entries()[name]
    file = Path(str(files("methods") / f"{name}.py"))
    return Loaded(name, getattr(importlib.import_module(f"methods.{name}"), entry.cls), {file.name: sha256(file)})


SUITE = ("benchmark", "methods", "protocols")


def own_modules(folder: Path) -> dict[str, str]:
    """Digests of the files below a folder that were imported; installed packages and the suite aside."""
    return {path.relative_to(folder).as_posix(): sha256(path) for _, path in imported_from(folder)}


def imported_from(folder: Path) -> list[tuple[str, Path]]:
    """Names and files of the modules that lie below a folder."""
    installed = [Path(path).resolve() for path in {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}]
    apart = [place for place in installed if place.is_relative_to(folder)]  # an environment inside the folder
    found = []
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name.partition(".")[0] in SUITE or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        if path.is_relative_to(folder) and path.is_file() and not any(path.is_relative_to(place) for place in apart):
            found.append((name, path))
    return found


def load_own(path: Path, cls: str) -> Loaded:
    """A class in the user's own file. This runs the file: only ever on explicit request.

    Files beside it can be imported by name, as from a script.
    """
    from methods.base import Method  # noqa: PLC0415 - imports torch

    folder = path.resolve().parent
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: a file of the user's must not take the place of an installed package
    for name, _ in imported_from(folder):  # what another own method has imported from here is not this one's
        if name != "__main__":
            del sys.modules[name]
    spec = importlib.util.spec_from_file_location(f"own_method_{path.stem}", path.resolve())
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
    return Loaded(path.stem.lower(), found, own_modules(folder), folder)
