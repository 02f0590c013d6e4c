"""Memory for many numbers that are written at once: neither filled beforehand nor, where it can be, fresh.

torch fills what `torch.empty` returns as long as it is asked to be deterministic, so that a forgotten number is at
least the same one every time. Where all of it is written at once that is time for nothing.
"""

import math
import weakref

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALIGNMENT = 64
"""As torch aligns its own: matrix kernels are slower, and round differently, where memory is not."""


def aligned(size: int) -> npt.NDArray[np.uint8]:
    memory = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


class MemoryPool:
    """Memory for batches that is used again once nobody holds its tensors: fresh pages cost more than what fills them.

    A tensor made of an array keeps that array alive as long as any view of the tensor lives, the autograd graph's
    included. When the array goes, its memory comes back here.
    """

    def __init__(self) -> None:
        self.free: dict[int, list[npt.NDArray[np.uint8]]] = {}

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        waiting = self.free.setdefault(size, [])
        try:
            memory = waiting.pop()  # asking first whether there is one would not do: other threads take too
        except IndexError:
            memory = aligned(size)
        lent = memory[:]
        weakref.finalize(lent, waiting.append, memory).atexit = False
        return torch.from_numpy(lent).view(dtype).view(shape)

    def __deepcopy__(self, _memo: object) -> "MemoryPool":
        """A copy of a block has memory of its own, with nothing in it."""
        return MemoryPool()
