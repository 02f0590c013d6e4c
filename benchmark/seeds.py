"""Random numbers by purpose: every stream is derived from the run's seed and what it is for, none is carried along.

So a checkpoint needs no random state: step 500 of session 2 draws the same numbers whether or not the run was interrupted.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, purpose: str, *where: int) -> int:
    """A 63-bit seed for one purpose at one place (session, phase, step) of a run."""
    digest = hashlib.sha256(json.dumps([seed, purpose, *where]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, purpose: str, *where: int) -> torch.Generator:
    """A CPU generator of its own: drawing from it moves no other stream."""
    return torch.Generator().manual_seed(derive(seed, purpose, *where))


@contextmanager
def isolated() -> Iterator[None]:
    """Give torch's global generators back to the caller as they were."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_available() else []):
        yield
