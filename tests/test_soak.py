"""A hundred kills at random moments."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import BENCH

import benchmark
from benchmark.records.reading import read_record

KILLS, LANES = 100, 2


def wait_for_state(folder: Path, process: subprocess.Popen) -> None:
    """Until this attempt has written a state, or has ended."""
    began = time.time_ns()
    while process.poll() is None:
        with contextlib.suppress(OSError):  # states come and go
            if any(path.stat().st_mtime_ns > began for path in folder.rglob("state.safetensors")):
                return
        time.sleep(0.02)


@pytest.mark.soak
def test_a_hundred_kills_make_no_difference(tmp_path):
    """SIGKILL at any moment, from first import to last write; then the same command, until runs are complete."""
    moments, lock, done = random.Random(0), threading.Lock(), {"kills": 0}
    ended: list[Path] = []

    def lane(number: int) -> None:
        run = 0
        while done["kills"] < KILLS:
            folder = tmp_path / f"lane{number}-{run}"
            words = [*BENCH, "run", "--views", "2", "--threads", "1", "--out", str(folder), "--seed", str(run)]
            variables = os.environ | {"CNCD_CACHE": str(folder / "cache")}
            while True:
                process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=variables)
                with lock:
                    after, anywhere = moments.uniform(0.5, 9.0), moments.random() < 0.5
                    enough = done["kills"] >= KILLS
                if not anywhere and not enough:  # while it trains: after a state was written
                    wait_for_state(folder, process)
                    after /= 3
                try:
                    _, errors = process.communicate(timeout=None if enough else after)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.communicate()
                    with lock:
                        done["kills"] += 1
                    continue
                assert process.returncode == 0, errors
                break
            ended.extend(folder.glob("runs/*/*/*.json"))
            run += 1

    began = time.monotonic()
    with ThreadPoolExecutor(LANES) as pool:
        for future in [pool.submit(lane, number) for number in range(LANES)]:
            future.result()
    differences, attempts = 0, 0
    for path in ended:
        record = read_record(path)
        whole = benchmark.run(
            views=2, threads=1, seed=record.question.seed, out=tmp_path / "whole" / str(record.question.seed)
        )
        differences += record.comparable() != whole.comparable()
        attempts += record.provenance.attempts
    sys.stderr.write(
        f"{done['kills']} kills, {len(ended)} runs in {attempts} attempts that had begun to train, "
        f"{differences} differences, {time.monotonic() - began:.0f} s\n"
    )
    assert done["kills"] >= KILLS
    assert len(ended) >= 2
    assert differences == 0
