"""What the tests of commands share."""

import sys
from pathlib import Path

from conftest import SHORT

BENCH = [sys.executable, "-P", "-m", "benchmark.cli"]
QUICK = [word for key, value in SHORT.items() for word in ("--set", f"{key}={value}")]
DIGITS = Path(__file__).parent.parent / "protocols" / "digits-t2.yaml"
