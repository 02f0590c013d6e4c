"""The documentation says what the code does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent


def test_ci_runs_the_command_of_the_readme():
    """Before it, it may only get the browser for the tests of the page."""
    commands = re.findall(r"^    (python3 -m venv .*)$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert len(commands) == 2
    assert commands[0].endswith("bench run")
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert script[-1] == commands[1]
    words = [line.split() for line in script if line and not line.startswith("#")]
    assert [first for first, *_ in words] == ["set", "cd", "if", "{", "fi", "python3"]
    assert [word for word in words[3] if "chromium" in word] == ["chromium;"]


@pytest.mark.parametrize(
    "script", ["digits_t2.py", "choices.py", "contract_table.py", "params_table.py", "readings.py", "results.py"]
)
def test_generated_pages_follow_from_their_sources(script, tmp_path):
    """The script changes nothing in a copy of docs/ and results/."""
    copy = tmp_path / "copy"
    for folder in ("docs", "results/published", "results/readings", "protocols"):
        target = copy / folder
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", str(ROOT / folder), str(target)], check=True)
    subprocess.run(["cp", str(ROOT / "README.md"), str(copy)], check=True)
    subprocess.run([sys.executable, str(copy / "docs" / script)], check=True, cwd=tmp_path)
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:  # pictures differ with matplotlib's version
        assert (copy / page.relative_to(ROOT)).read_text() == page.read_text(), page.name


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_fault_of_the_page_has_its_test():
    """docs/reliability.md names a test for each line."""
    lines = [line for line in (ROOT / "docs" / "reliability.md").read_text().splitlines() if line.startswith("| ")]
    faults = [line for line in lines if not line.startswith(("| **", "| ---", "| fault"))]
    assert len(faults) > 30
    for line in faults:
        found = re.search(r"`(test_\w+\.py)::(test_\w+)`", line)
        assert found, line
        assert f"def {found[2]}(" in (ROOT / "tests" / found[1]).read_text(), line


def test_citation_is_readable():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["cff-version"] == "1.2.0"


def test_no_absolute_paths_in_committed_records():
    """Those of this machine's own runs may hold them: they are ignored by git."""
    committed = [
        path for name in ("published", "readings", "figures") for path in (ROOT / "results" / name).rglob("*.json")
    ]
    assert len(committed) > 100
    for path in committed:
        assert not re.search(r'"/(home|root|work|tmp|Users)/', path.read_text()), path


@pytest.mark.parametrize("patch", sorted((ROOT / "tests" / "faults").glob("*.patch")), ids=lambda path: path.stem)
def test_faults_can_be_planted(patch):
    """A patch that no longer applies would plant nothing (`nox -s faults`)."""
    done = subprocess.run(
        ["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
