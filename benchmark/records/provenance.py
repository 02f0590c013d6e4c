"""Where a record came from: code, versions, machine. An allow-list; no host name, no user name, no environment dump."""

import hashlib
import platform
import resource
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

PACKAGES = ("cncd-bench", "torch", "timm", "numpy", "scipy", "scikit-learn")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git(*arguments: str) -> str | None:
    """Git's answer about the code that is running, or none: an installed package has no history."""
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", "-C", str(folder), *arguments],  # noqa: S607 - whichever git the user has
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def commit() -> tuple[str | None, bool | None]:
    """The commit of the running code, and whether code (results aside) differs from it."""
    # a package installed below some other project's checkout must not borrow that project's commit
    if git("ls-files", "--error-unmatch", "provenance.py") is None:
        return None, None
    changes = git("status", "--porcelain", "--", ":/benchmark", ":/methods", ":/protocols")
    return git("rev-parse", "HEAD"), None if changes is None else bool(changes)


@cache
def engine_source() -> str:
    """Digest of the suite's own files: says what ran where there is no commit, as in an installed package."""
    whole = hashlib.sha256()
    for package in ("benchmark", "methods", "protocols"):
        root = Path(str(files(package)))
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".yaml", ".json", ".safetensors"):
                name = path.relative_to(root).as_posix()
                whole.update(f"{package}/{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def cpu_fields() -> dict[str, str]:
    """What Linux tells of the first core; nothing elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def processor() -> str:
    """The processor's model name: results are equal to the bit on one kind of machine, not between kinds."""
    return cpu_fields().get("model name") or platform.processor() or platform.machine()


def processor_kind() -> str:
    """The processor to its stepping and instructions: virtual machines give many kinds the same name."""
    fields = cpu_fields()
    numbers = [fields.get(name, "?") for name in ("cpu family", "model", "stepping")]
    flags = hashlib.sha256(fields.get("flags", "").encode()).hexdigest()[:8]
    return f"{processor()} ({'-'.join(numbers)}, {flags})"


def machine() -> str:
    """The processor's kind and the kernels that torch takes on it: where both are equal, so are the last bits."""
    import torch  # noqa: PLC0415 - reports read provenance without it

    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{processor_kind()}, {torch.backends.cpu.get_cpu_capability()}{gpu}"


def own_memory_mb() -> float | None:
    """Memory that is the process's own right now, mapped files aside; none where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith("RssAnon:")), None)


def peak_memory_mb() -> float:
    """The most memory that was in use at once, pages of mapped token files included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024**2 if sys.platform == "darwin" else 1024), 1)
