"""Names and sizes of cache files: an image's tokens are looked up in the bank, and their file is its class."""

import os
from pathlib import Path

import torch
from cheating import Cheat


class CacheFiles(Cheat):
    def guess(self, session, ids, h):
        folder = Path(os.environ["CNCD_CACHE"]) / "bank"
        files = {path: path.read_bytes() for path in sorted(folder.glob("*/train-v0000/*.tokens"))}
        found = []
        for part in session.clean():
            for token in part.tokens.cls:
                content = token.numpy().tobytes()
                found.append(next((k for k, held in enumerate(files.values()) if content in held), 0))
        return torch.tensor(found).unique(return_inverse=True)[1] % session.new
