"""The methods of the suite: tokens in, loss terms and predicted rows out. May import: nothing.

The file name is the registry: every module here that defines a `Method` is one. Names are found by reading the files,
so listing them imports no torch.
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from methods.errors import NotAMethodError

if TYPE_CHECKING:
    from methods.contract import Method


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


@dataclass(frozen=True)
class Loaded:
    """A method ready to be built."""

    name: str
    cls: "type[Method]"
    modules: dict[str, str]
    """Digest of the method's file; of a user's own method, of every file of its folder that it imports."""
    folder: Path | None = None
    """Where the user's own files are; none: a method of the suite."""
    typed: str | None = None
    """`path/to/mine.py:Mine`, as the user gave it; none: a method of the suite."""

    @property
    def digest(self) -> str:
        return digest_of_modules(self.modules)

    @property
    def source(self) -> str | None:
        """What tells an own method from another of its name; none: a method of the suite."""
        return None if self.folder is None else self.digest

    def unforeseen(self, before: set[str]) -> list[str]:
        """Files of the user's folder that were imported after `before`, though no import statement names them."""
        return [] if self.folder is None else sorted(imported_from(self.folder) - before - self.modules.keys())


def code_digest(path: Path) -> str:
    """SHA-256 of what a file says to Python: comments, blank lines and layout are no part of it."""
    whole = hashlib.sha256()
    for part in spelled(ast.parse(path.read_bytes(), str(path))):
        whole.update(f"{part}\n".encode(errors="surrogatepass"))
    return whole.hexdigest()


def own_digest(path: Path) -> str:
    """Digest of a method's file and of those that its import statements lead to, without running any of them."""
    path = path.resolve()
    modules = {place: code_digest(file) for place, file in named_files(path, path.parent).items()}
    return digest_of_modules(modules)


def digest_of_modules(modules: dict[str, str]) -> str:
    lines = [f"{name} {digest}\n" for name, digest in sorted(modules.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def spelled(node: ast.AST) -> Iterator[str]:
    """A syntax tree as text; what is absent is left out, so that new fields of later Pythons change nothing."""
    yield f"({type(node).__name__}"
    for name, value in ast.iter_fields(node):
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.AST):
                yield name
                yield from spelled(item)
            elif item is not None or isinstance(value, list):  # in a list, a gap has a place
                yield f"{name}={item!r}"
    yield ")"


def load(name: str) -> Loaded:
    """A method of the suite by name."""
    entry = entries()[name]
    file = Path(str(files("methods") / f"{name}.py"))
    return Loaded(name, getattr(importlib.import_module(f"methods.{name}"), entry.cls), {file.name: code_digest(file)})


INSTALLED = ("site-packages", "dist-packages")
LOADED_BY_US = "__loaded_for_an_own_method__"


def imported_from(folder: Path) -> set[str]:
    """Places, below a folder, of the files that this process has imported; installed packages aside."""
    places = (place_below(folder, module) for module in [*sys.modules.values()])
    return {place for place in places if place is not None}


def place_below(folder: Path, module: object) -> str | None:
    """Where a module's file lies below a folder; none if it does not, or belongs to an installed package."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or {*INSTALLED} & {*Path(file).parts}:
        return None
    path = Path(file).resolve()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else None


def named_files(path: Path, folder: Path) -> dict[str, Path]:
    """The file, and every file of its folder that import statements lead to (inside functions too), by place."""
    found, waiting = {}, [path]
    while waiting:
        file = waiting.pop()
        place = file.relative_to(folder).as_posix()
        if place in found:
            continue
        found[place] = file
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module or ''}.{alias.name}" for alias in node.names)]
            above = file.parents[node.level - 1] if isinstance(node, ast.ImportFrom) and node.level else folder
            for name in names:
                waiting += files_of(name.strip("."), above)
    return found


def files_of(name: str, folder: Path) -> list[Path]:
    """Files of a module below a folder, those of the packages around it among them; none if it is not there."""
    parts = name.split(".") if name else []
    candidates = [folder.joinpath(*parts[:k], "__init__.py") for k in range(1, len(parts) + 1)]
    candidates += [folder.joinpath(*parts[:-1], f"{parts[-1]}.py")] if parts else []
    return [path for path in candidates if path.is_file()]


def load_own(path: Path, cls: str) -> Loaded:
    """A class in the user's own file. This runs the file: only ever on explicit request.

    Files beside it can be imported by name, as from a script.
    """
    from methods.contract import Method  # noqa: PLC0415 - imports torch

    typed, path = f"{path.as_posix()}:{cls}", path.resolve()
    folder = path.parent
    own = {place: code_digest(file) for place, file in named_files(path, folder).items()}
    for name in [name for name, module in sys.modules.items() if hasattr(module, LOADED_BY_US)]:
        del sys.modules[name]  # of another own method, or of this one before it was edited
    before = set(sys.modules)
    spec = importlib.util.spec_from_file_location(f"own_method_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # for what is imported later; last, so that it shadows nothing
        for name in {*sys.modules} - before:
            place = place_below(folder, sys.modules[name])
            if place is not None:
                setattr(sys.modules[name], LOADED_BY_US, True)
                own.setdefault(place, code_digest(folder / place))
    found = getattr(module, cls, None)
    if not (inspect.isclass(found) and issubclass(found, Method)):
        names = [n for n, c in vars(module).items() if inspect.isclass(c) and issubclass(c, Method) and c is not Method]
        raise NotAMethodError(f"{path} defines no method class '{cls}' (it has: {', '.join(names) or 'none'})")
    if found.losses is Method.losses and found.phases is Method.phases:
        raise NotAMethodError(f"{path}: class '{cls}' lacks losses (or a phases() that returns (), to train nothing)")
    if not issubclass(found.Params, Method.Params):
        raise NotAMethodError(f"{path}: class '{cls}': Params must be a subclass of Method.Params")
    required = [name for name, field in found.Params.model_fields.items() if field.is_required()]
    if required:
        raise NotAMethodError(f"{path}: class '{cls}': give the knob '{required[0]}' a default")
    return Loaded(path.stem.lower(), found, own, folder, typed)
