"""Random numbers by purpose: every stream is derived from the run's seed and what it is for, none is carried along.

So a checkpoint needs no random state: a step draws the same numbers whether or not the run was interrupted before it.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmark.errors import UsageError


def derive(seed: int, purpose: str, *where: int) -> int:
    """A 63-bit seed for one purpose at one place (session, phase, step) of a run."""
    digest = hashlib.sha256(json.dumps([seed, purpose, *where]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, purpose: str, *where: int) -> torch.Generator:
    """A CPU generator of its own: drawing from it moves no other stream."""
    return torch.Generator().manual_seed(derive(seed, purpose, *where))


def seed_for(seed: int, purpose: str, *where: int) -> None:
    """Before a method is called: what it draws depends on where it is, not on what was drawn before."""
    torch.manual_seed(derive(seed, purpose, *where))


@contextmanager
def repeatable(threads: int | None) -> Iterator[None]:
    """Deterministic kernels and a fixed number of threads; torch's global state is the caller's again afterwards.

    The number of threads decides how sums are split, hence their last bits.
    """
    most = max(64, 4 * (os.cpu_count() or 1))
    if threads is not None and threads > most:
        raise UsageError(f"--threads: {threads}: this machine has {os.cpu_count()} cores, give at most {most}")
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault(
        "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
    )  # CUDA's matrix products ask for it; read at their first use
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.set_num_threads(threads or before[0])
            torch.use_deterministic_algorithms(mode=True)
            yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(mode=before[1])
