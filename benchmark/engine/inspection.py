"""What a method may hold and how it may predict: looked at while it runs, so that mistakes end in a sentence.

What must outlive an interruption lives in parameters and buffers. A tensor or a value kept anywhere else makes a
resumed run another one, silently; and it is not counted among what the method stores.
"""

import gc
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.errors import UsageError
from benchmark.records.results import Stored
from benchmark.seeds import generator
from benchmark.tokens.memory import MemoryPool
from methods.contract import CHUNK, Method, Tokens

SAMPLE = 2048
"""Test images that are predicted a second time."""
FLIPS = 1e-3
"""Share of rows that rounding may change between batches."""

WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

Plain = None | bool | int | float | complex | str | bytes | slice | range


def refuse_strays(method: nn.Module, in_classes: set[str]) -> None:
    """Name the first tensor, array or module that a method keeps where its state does not reach.

    `in_classes` are the constants that its classes had when the run began.
    """
    for name, kind in (*strays(method), *(found for found in strays_in_classes(method) if found[0] not in in_classes)):
        raise UsageError(
            f"the method keeps {kind} in '{name}', outside its parameters and buffers, where a resumed run would not "
            "find it: use register_buffer in build or begin"
        )


def strays(method: nn.Module) -> Iterator[tuple[str, str]]:
    """Names and kinds of what is kept in attributes of the method and of its modules."""
    visited = {id(module) for module in nn.Module.modules(method)}
    for path, module in nn.Module.named_modules(method):
        prefix = f"{path}." if path else ""
        passing: set[str] = getattr(module, "_non_persistent_buffers_set", set())
        yield from ((f"{prefix}{name}", "a buffer that is not saved") for name in sorted(passing))
        for name, value in attributes(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                yield from within(value, f"{prefix}{name}", visited)


def attributes(thing: object) -> dict[str, Any]:
    """What an object holds, in its dictionary and in slots."""
    slots = [name for cls in type(thing).__mro__ for name in slot_names(cls)]
    return {**{name: getattr(thing, name) for name in slots if hasattr(thing, name)}, **getattr(thing, "__dict__", {})}


def slot_names(cls: type) -> list[str]:
    slots = vars(cls).get("__slots__", ())
    return [name for name in ([slots] if isinstance(slots, str) else slots) if not name.startswith("__")]


def strays_in_classes(method: nn.Module) -> Iterator[tuple[str, str]]:
    """The same for the method's own classes, those of the contract aside."""
    visited = {id(module) for module in nn.Module.modules(method)}
    for cls in type(method).__mro__:
        if issubclass(cls, Method) and cls is not Method:
            for name, value in vars(cls).items():
                yield from within(value, f"{cls.__name__}.{name}", visited)


def within(value: Any, name: str, visited: set[int]) -> Iterator[tuple[str, str]]:
    """Tensors, arrays and modules below a value, through containers, objects and what functions carry along."""
    waiting = deque([(name, value)])
    while waiting:
        place, thing = waiting.popleft()
        if isinstance(thing, Plain | MemoryPool | types.ModuleType | type | types.CodeType) or id(thing) in visited:
            continue
        visited.add(id(thing))
        if isinstance(thing, Tensor | np.ndarray):
            yield place, "a tensor" if isinstance(thing, Tensor) else "an array"
        elif isinstance(thing, nn.Module):
            yield place, "a module that is not registered"
        else:
            waiting.extend((f"{place}{inner}", child) for inner, child in children(thing))


def children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{k}]", item) for k, item in enumerate(value))
    elif isinstance(value, types.MethodType):
        yield "()", value.__func__
    elif isinstance(value, types.FunctionType):
        yield from (("()", cell.cell_contents) for cell in value.__closure__ or () if filled(cell))
        yield from (("()", item) for item in (value.__defaults__, value.__kwdefaults__, vars(value)))
    elif attributes(value):
        yield from ((f".{key}", item) for key, item in attributes(value).items())
    else:  # iterators, queues, caches and whatever else the interpreter knows the inside of
        yield from (("()", item) for item in gc.get_referents(value))


def filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises if there is nothing yet
    except ValueError:
        return False
    return True


def plain_values(method: Method) -> dict[str, str]:
    """As text: plain values in the method, in its modules and in its classes, and which parameters are trained."""
    values: dict[str, Any] = {}
    for path, module in nn.Module.named_modules(method):
        prefix = f"{path}." if path else ""
        values |= {f"{prefix}{name}": value for name, value in attributes(module).items() if name != "training"}
    for cls in type(method).__mro__:
        if issubclass(cls, Method) and cls is not Method:
            values |= {f"{cls.__name__}.{name}": value for name, value in vars(cls).items()}
    plain = {name: repr(value) for name, value in values.items() if is_plain(value)}
    trained = nn.Module.named_parameters(method, remove_duplicate=False)
    return plain | {f"{name}.requires_grad": repr(parameter.requires_grad) for name, parameter in trained}


def refuse_unsaved(resumed: dict[str, str], now: dict[str, str]) -> None:
    """Name the first plain value that is another than a resumed run would have."""
    for name in sorted(resumed.keys() | now.keys()):
        one, other = now.get(name, "not there"), resumed.get(name, "not there")
        if one != other:
            raise UsageError(
                f"the method's '{name}' is {one[:40]} now and would be {other[:40]} in a resumed run: set it in build "
                "or begin, from sizes alone, or keep it as a buffer"
            )


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_plain, value))
    return isinstance(value, Plain)


def counted(method: Method, block: nn.Module, classes: int) -> Stored:
    """What a method holds beside such a block and a head of `classes` rows: all of its state, counted.

    Exemplars are counted as images, each with its id and its row; all else in a buffer is a number.
    """
    exemplars, _ = method.memory()
    numbers = sum(b.numel() for b in method.buffers()) - sum(b.numel() for b in block.buffers())
    parameters, plain = (sum(p.numel() for p in module.parameters()) for module in (method, block))
    return Stored(
        images=len(exemplars.unique()),
        numbers=max(0, numbers - 2 * len(exemplars.unique())),
        parameters=max(0, parameters - plain - classes * method.width),
    )


def checked_rows(rows: Any, images: int, total: int) -> Tensor:
    """A method's prediction, if it is a row for each image."""
    must = f"the method must predict a row from 0 to {total - 1} for each image"
    if type(rows) is not Tensor:
        raise UsageError(f"{must}: a tensor, not {type(rows).__name__}")
    if rows.shape != (images,) or rows.is_meta or rows.layout != torch.strided or rows.dtype not in WHOLE:
        kind = "meta" if rows.is_meta else str(rows.dtype).removeprefix("torch.")
        raise UsageError(f"{must}: {images} whole numbers, not {kind} of shape {tuple(rows.shape)}")
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
