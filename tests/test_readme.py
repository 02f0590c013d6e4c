"""README's two commands pass in either order, twice, and leave the checkout clean."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def git(folder: Path, *words: str) -> str:
    named = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(named, check=True, capture_output=True, text=True).stdout


def copied_checkout(target: Path) -> Path:
    """All files that git knows or would add, as a checkout with one commit."""
    for name in git(ROOT, "ls-files", "-co", "--exclude-standard").splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((ROOT / name).read_bytes())
    git(target, "init", "-q")
    git(target, "add", "-A")
    git(target, "commit", "-q", "-m", "copy")
    return target


def test_a_run_leaves_published_results_and_git_status_alone(tmp_path):
    """A run, then everything that checks committed results, then again; a run's record names the copy's commit."""
    checkout = copied_checkout(tmp_path / "copy")
    environment = os.environ | {"PYTHONPATH": str(checkout)}

    def call(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=checkout, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    for _ in range(2):
        call("-m", "benchmark.cli", "run", "--budget", "quick", "--views", "2", "--threads", "1")
        assert "follows from" in call("-m", "benchmark.cli", "report", "--check")
        call("docs/digits_t2.py")
        call("docs/params_table.py")
        assert "FEA (own)" in call("-m", "benchmark.cli", "report")
        assert git(checkout, "status", "--porcelain") == ""
    (record,) = (checkout / "results" / "runs").rglob("*.json")
    assert f'"commit": "{git(checkout, "rev-parse", "HEAD").strip()}", "dirty": false' in record.read_text()
