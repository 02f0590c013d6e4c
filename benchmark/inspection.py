"""What a method may hold and how it may predict: looked at while it runs, so that mistakes end in a sentence.

What must outlive an interruption lives in parameters and buffers. A tensor or a value kept anywhere else makes a
resumed run another one, silently; and it is not counted among what the method stores.
"""

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.errors import UsageError
from benchmark.record import Stored
from benchmark.seeds import generator
from benchmark.slabs import Slabs
from benchmark.stream import CHUNK, Tokens
from methods.base import Method

DEPTH = 6
"""How deep containers and objects are searched."""
SAMPLE = 2048
"""Test images that are predicted a second time."""
FLIPS = 1e-3
"""Share of rows that rounding may change between batches."""

WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

Plain = None | bool | int | float | complex | str | bytes | slice | range


def refuse_strays(method: nn.Module) -> None:
    """Name the first tensor or array that a method keeps outside its parameters and buffers."""
    for name, kind in strays(method):
        raise UsageError(
            f"the method keeps {kind} in '{name}', outside its parameters and buffers, where a resumed run would not "
            "find it: use register_buffer in build or begin"
        )


def strays(method: nn.Module) -> Iterator[tuple[str, str]]:
    """Names and kinds of what is kept in attributes of the method, of its modules and of its classes."""
    registered = {id(module) for module in method.modules()}
    for path, module in method.named_modules():
        prefix = f"{path}." if path else ""
        passing: set[str] = getattr(module, "_non_persistent_buffers_set", set())
        yield from ((f"{prefix}{name}", "a buffer that is not saved") for name in sorted(passing))
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                yield from within(value, f"{prefix}{name}", DEPTH, {*registered})
    for cls in method_classes(method):
        for name, value in vars(cls).items():
            yield from within(value, f"{cls.__name__}.{name}", DEPTH, {*registered})


def method_classes(method: nn.Module) -> list[type]:
    """The method's own classes, those of the contract aside."""
    return [cls for cls in type(method).__mro__ if issubclass(cls, Method) and cls is not Method]


def class_values(method: nn.Module) -> dict[str, str]:
    """Plain values kept in the method's classes, as text."""
    return {
        f"{cls.__name__}.{name}": repr(value)
        for cls in method_classes(method)
        for name, value in vars(cls).items()
        if is_plain(value)
    }


def within(value: Any, name: str, depth: int, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Tensors, arrays and modules below a value, through containers, objects and what functions carry along."""
    if isinstance(value, Plain | Slabs | types.ModuleType) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor | np.ndarray):
        yield name, "a tensor" if isinstance(value, Tensor) else "an array"
    elif isinstance(value, nn.Module):
        yield name, "a module that is not registered"
    elif depth > 0:
        for inner, child in children(value):
            yield from within(child, f"{name}{inner}", depth - 1, seen)


def children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{k}]", item) for k, item in enumerate(value))
    elif isinstance(value, types.FunctionType | types.MethodType):
        function = value.__func__ if isinstance(value, types.MethodType) else value
        yield from (("()", cell.cell_contents) for cell in function.__closure__ or () if filled(cell))
        yield from (("()", default) for default in function.__defaults__ or ())
    elif isinstance(value, functools.partial):
        yield from (("()", item) for item in (*value.args, *value.keywords.values()))
    elif not isinstance(value, type) and hasattr(value, "__dict__"):
        yield from ((f".{key}", item) for key, item in vars(value).items())


def filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises if there is nothing yet
    except ValueError:
        return False
    return True


def refuse_unsaved(method: Method, rebuilt: Method, in_classes: dict[str, str]) -> None:
    """Name the first plain value that a method rebuilt from its saved state does not have.

    `in_classes` is what its classes held when the run began.
    """
    theirs = dict(rebuilt.named_modules())
    pairs = []
    for path, module in method.named_modules():
        prefix = f"{path}." if path else ""
        two: dict[str, Any] = dict(vars(theirs[path])) if path in theirs else {}
        pairs += [(f"{prefix}{name}", vars(module).get(name), two.get(name)) for name in sorted({*vars(module), *two})]
    pairs += [(name, text, in_classes.get(name)) for name, text in class_values(method).items()]
    for name, one, other in pairs:
        if is_plain(one) and is_plain(other) and repr(one) != repr(other):
            raise UsageError(
                f"the method's '{name}' is {shown(one)} now and would be {shown(other)} in a resumed run: set it in "
                "build or begin, from sizes alone, or keep it as a buffer"
            )


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_plain, value))
    return isinstance(value, Plain)


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def counted(method: Method, block: nn.Module, classes: int) -> Stored:
    """What a method holds beside such a block and a head of `classes` rows: all of its state, counted.

    Exemplars are counted as images, each with its id and its row; all else in a buffer is a number.
    """
    exemplars, _ = method.memory()
    numbers = sum(b.numel() for b in method.buffers()) - sum(b.numel() for b in block.buffers())
    parameters, plain = (sum(p.numel() for p in module.parameters()) for module in (method, block))
    return Stored(
        images=len(exemplars.unique()),
        numbers=max(0, numbers - 2 * len(exemplars)),
        parameters=max(0, parameters - plain - classes * method.width),
    )


def checked_rows(rows: Any, images: int, total: int) -> Tensor:
    """A method's prediction, if it is a row for each image."""
    must = f"the method must predict a row from 0 to {total - 1} for each image"
    if not isinstance(rows, Tensor):
        raise UsageError(f"{must}: a tensor, not {type(rows).__name__}")
    if rows.is_meta or rows.layout != torch.strided or rows.dtype not in WHOLE:
        kind = "meta" if rows.is_meta else str(rows.dtype).removeprefix("torch.")
        raise UsageError(f"{must}: whole numbers, not {kind}")
    if rows.shape != (images,):
        raise UsageError(f"{must}: {images} numbers, not shape {tuple(rows.shape)}")
    rows = rows.cpu().long()
    if images and (rows.min() < 0 or rows.max() >= total):
        raise UsageError(f"{must}, not {int(rows.min() if rows.min() < 0 else rows.max())}")
    return rows


def refuse_unsteady(
    method: Method, tokens: Callable[[Tensor], Tokens], rows: Tensor, ids: Tensor, total: int, seed: int
) -> None:
    """Predict some images again, in other company and another order: an image's row must be its own affair.

    Batches are of the same sizes as before, because kernels round differently for other sizes, and drawn with
    replacement, so that there is other company even where all images fit into one batch.
    """
    count = min(SAMPLE, len(ids))
    places = torch.randint(len(ids), (count,), generator=generator(seed, "predict again"))
    again = [checked_rows(method.predict(tokens(ids[part])), len(part), total) for part in places.split(CHUNK)]
    changed = int((torch.cat(again) != rows[places]).sum()) if again else 0
    if changed > max(1, FLIPS * len(places)):
        raise UsageError(
            f"the method predicts {changed} of {len(places)} test images otherwise when they come in other batches or "
            "in another order: a prediction must depend on its own image alone, not on its neighbours, its place or "
            "what was predicted before"
        )
