"""`bench try`: sound methods pass, and what is broken is named."""

import json
import re
import time
from pathlib import Path

import pytest
from conftest import METHODS

from benchmark import trial, watch
from benchmark.display import Display

BROKEN = Path(__file__).parent / "broken.py"
RUNS, SAME, LABELS, RESUMES, GROWTH, TERMS = trial.CHECKS


def verdict(method: str) -> trial.Verdict:
    return trial.attempt(method, {}, Display(quiet=True))


@pytest.mark.parametrize("method", METHODS)
def test_methods_of_the_suite_keep_the_contract(method):
    findings = verdict(method).findings
    assert [(finding.check, finding.said) for finding in findings if not finding.passed] == []
    assert [finding.check for finding in findings] == [*trial.CHECKS]


def test_a_sound_method_passes():
    assert verdict(f"{BROKEN}:Sound").failed == []


@pytest.mark.parametrize(
    ("cls", "check", "said"),
    [
        ("Stray", RUNS, "keeps a tensor in 'latest', outside its parameters and buffers"),
        ("PeeksAtFile", LABELS, r"broken\.py, line \d+ opens .*digits.*: images and labels come from the engine alone"),
        ("PeeksAtEngine", LABELS, r"broken\.py, line \d+ calls gc\.get_objects"),
        ("Idle", TERMS, "term 'hold' of phase 'discover' has no gradient for any trained parameter"),
        ("Logits", RUNS, r"a row from 0 to 5 for each image: 256 whole numbers, not float32 of shape \(256, 6\)"),
        ("Chance", SAME, "two runs with the same seed end with different weights"),
        ("Foreign", RUNS, "remembers images that are not of session 0"),
        ("MovesRows", GROWTH, "begin moves old rows of the head in session 1"),
        ("Begins", RUNS, "'share' is .* now and would be .* in a resumed run"),
        ("Fails", RUNS, r"broken\.py, line \d+, in losses: AttributeError: .*nothing"),
    ],
)
def test_what_is_broken_is_named_and_nothing_else(cls, check, said):
    failed = verdict(f"{BROKEN}:{cls}").failed
    assert [finding.check for finding in failed] == [check]
    assert re.search(said, failed[0].said)


def test_labels_in_memory_are_noticed_without_the_watch(monkeypatch):
    """Looking at the interpreter is noticed; were it not, the weights would tell."""
    monkeypatch.setattr(watch, "SNOOPING", ())
    (failed,) = verdict(f"{BROKEN}:PeeksAtEngine").failed
    assert "weights depend on labels of discovery images" in failed.said


def test_a_run_that_cannot_be_resumed_is_noticed(monkeypatch):
    """With the engine's own checks out of the way, the comparison of runs tells."""
    for name in ("refuse_strays", "refuse_unsaved"):
        monkeypatch.setattr(f"benchmark.engine.run.{name}", lambda *_: None)
    assert RESUMES in [finding.check for finding in verdict(f"{BROKEN}:Forgets").failed]


def test_the_command(bench, tmp_path):
    began = time.monotonic()
    done = bench("new", "method", "my idea")
    assert (done.returncode, done.stdout) == (
        0,
        "wrote my_idea.py: bench try my_idea.py:MyIdea, then bench run --method my_idea.py:MyIdea\n",
    )
    done = bench("try", "my_idea.py:MyIdea", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema"], document["passed"], len(document["checks"])) == (1, True, len(trial.CHECKS))
    assert time.monotonic() - began < 60
    done = bench("try", f"{BROKEN}:Idle")
    assert done.returncode == 2
    assert f"FAIL  {TERMS}\n      term 'hold'" in done.stdout
    assert done.stderr.splitlines()[-1] == f"bench: {BROKEN}:Idle fails 1 of {len(trial.CHECKS)} checks"
