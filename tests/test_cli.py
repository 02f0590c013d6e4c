"""`bench`: what it prints, and what it says of bad input."""

import contextlib
import json
import os
import pty
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands import DIGITS, QUICK
from records import fading, save


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error: no traceback, nothing on stdout."""
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("bench: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_help_needs_no_torch():
    """The answer is quick because nothing heavy is imported; `bench` alone is help too."""
    script = (
        "import sys; sys.argv = ['bench']\n"
        "from benchmark.cli import guarded\n"
        "code = guarded()\n"
        "heavy = {'torch', 'timm', 'sklearn', 'pandas', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "sys.exit(code or (9 if heavy else 0))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert "Exit codes: 0 ok" in done.stdout


def test_lists(bench):
    names = {row["name"] for row in json.loads(bench("list", "protocols", "--json").stdout)["protocols"]}
    assert names == {
        *("cifar10-t1", "cifar10-t2", "cifar100-t2", "cifar100-t5"),
        *("tiny-t2", "tiny-t5", "tiny-t10", "digits-t2", "cifar100-holdout-t2"),
    }
    document = json.loads(bench("list", "methods", "--json").stdout)
    assert document["schema"] == 1
    assert {"fea", "kmeans"} <= {row["name"] for row in document["methods"]}
    assert "vit-b16-dino" in bench("list", "backbones").stdout
    assert "digits" in bench("list", "datasets").stdout


def test_run_report_and_json(bench, tmp_path):
    done = bench("run", "--budget", "quick", "--views", "2", "--out", "results")
    assert done.returncode == 0, done.stderr
    assert "average discovery (AvD)" in done.stdout
    assert done.stderr.count("session") == 3  # one line a session where there is no terminal
    again = bench("run", "--budget", "quick", "--views", "2", "--out", "results", "--json")
    assert "answered from the record of" in again.stderr
    document = json.loads(again.stdout)
    assert set(document) == {"schema", "record", "metrics", "seconds"}
    assert document["schema"] == 1
    figures = document["metrics"]
    assert set(figures) == {
        *("average_accuracy", "average_forgetting", "average_discovery"),
        *("overall", "accuracy"),
    }
    assert [len(row) for row in figures["accuracy"]] == [1, 2, 3]
    record = json.loads((tmp_path / document["record"]).read_text())
    assert re.fullmatch(r"seed0-[0-9a-f]{8}\.json", Path(document["record"]).name)
    assert record["status"] == "done"
    report = bench("report")
    assert report.returncode == 0, report.stderr
    assert f"{figures['average_accuracy']:.2f} (one seed)" in report.stdout
    for suffix in ("md", "csv", "tex"):
        assert (tmp_path / "results" / "report" / "tables" / f"own.{suffix}").stat().st_size > 100
    assert (tmp_path / "results" / "report" / "index.html").stat().st_size > 10_000
    assert not (tmp_path / "results" / "tables").exists()
    (row,) = json.loads(bench("list", "runs", "--json").stdout)["runs"]
    assert set(row) == {
        *("name", "protocol", "method", "seed", "group", "status"),
        *("own", "source", "label", "metrics"),
    }
    assert (row["own"], row["method"], row["label"]) == (True, "fea", "fea (own)")
    assert (row["name"], row["status"]) == (f"digits-t2/fea/{Path(document['record']).stem}", "done")
    assert row["metrics"] == {key: figures[key] for key in row["metrics"]}
    shown = bench("show", row["name"]).stdout
    assert f"{figures['accuracy'][2][1]:.2f}" in shown
    assert "bench run --method fea --protocol digits-t2 --seed 0 --budget quick --views 2" in shown
    assert "class (within its session) of each row it created" in shown
    text = (tmp_path / document["record"]).read_text()
    assert str(Path.home()) not in text
    assert socket.gethostname() not in text


def test_json_while_running_keeps_stdout_clean(bench_process):
    """In a process of its own: what a library writes to stdout would spoil it, too."""
    done = bench_process("run", "--method", "kmeans", *QUICK, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["metrics"]["overall"]


def test_a_terminal_shows_a_bar_with_the_time_left(tmp_path):
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "benchmark.cli", "run", "--set", "budget.novel_epochs=30", "--views", "2"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # Linux says EIO when the other side is gone
        while part := os.read(ours, 4096):
            shown += part
    assert process.wait() == 0
    text = shown.decode()
    assert re.search(r"session 1, discover .*/90 +\d:\d\d:\d\d", text)
    assert not re.search("\x1b\\[3[0-9]", text)  # NO_COLOR is honoured
    assert "average accuracy" in process.stdout.read().decode()


BROKEN = "name: broken\nsessions: [6, 2\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--method", "fae"], 2, "unknown method 'fae', did you mean 'fea'?"),
        (["--protocol", "digit-t2"], 2, "unknown protocol 'digit-t2', did you mean 'digits-t2'?"),
        (["--set", "omga=1"], 2, "unknown key 'omga' (value 1), did you mean 'omega'?"),
        (["--set", "omega"], 2, "write key=value"),
        (["--protocol", "broken.yaml"], 2, "broken.yaml, line 3: broken YAML"),
        (["--protocol", "overlap.yaml"], 2, "class 5 is in more than one place"),
        (["--protocol", "absent.yaml"], 2, "cannot read absent.yaml: No such file or directory"),
        (["--seed", "-1"], 2, "--seed: -1: must be a whole number"),
        (["--seed", "x"], 2, "Invalid value for '--seed'"),
        (["--out", "file/results"], 2, "a regular file is in the way"),
        (["--budget", "long"], 2, "unknown budget 'long'"),
        (["--weights", "none.safetensors"], 3, "no weight file at none.safetensors"),
        (["--protocol", "tiny-t10"], 3, "`bench fetch vit-b16-dino` downloads them"),
        (["--method", "mine.py:Mine"], 2, "mine.py, line 2, in <module>: cannot be imported: ZeroDivisionError"),
        (["--metod", "fea"], 2, "No such option: --metod"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_the_documented_code(bench, tmp_path, words, code, said):
    (tmp_path / "broken.yaml").write_text(BROKEN)
    overlap = yaml.safe_load(DIGITS.read_text()) | {"name": "overlap", "sessions": [[0, 1, 5], [5, 6]]}
    (tmp_path / "overlap.yaml").write_text(yaml.safe_dump(overlap))
    (tmp_path / "file").write_text("regular")
    (tmp_path / "mine.py").write_text("\n1 / 0")
    done = bench("run", *words)
    assert said in sentence(done)
    assert done.returncode == code
    assert (tmp_path / "file").read_text() == "regular"


def test_report_without_records_says_what_to_do(bench):
    done = bench("report")
    assert done.returncode == 2
    assert "make one with `bench run`" in sentence(done)


def test_a_committed_report_is_checked(bench, tmp_path):
    """Exit code 4 and a diff if what is there does not follow from the records; nothing is written."""
    results = tmp_path / "results"
    for seed in (0, 1):
        save(results, "fea", "digits-t2", seed)
    missing = bench("report", "--check")
    assert missing.returncode == 4
    assert "tables/own.md is missing" in missing.stdout
    assert "run `bench report --published`" in missing.stderr
    assert not (results / "tables").exists()
    assert bench("report", "--published").returncode == 0
    save(results, "gm", "digits-t2", 2, folder="runs")
    assert bench("report").returncode == 0  # a report with own runs goes elsewhere
    fine = bench("report", "--check")
    assert (fine.returncode, fine.stdout) == (0, "results follows from the 2 published records\n")
    save(results, "fea", "digits-t2", 2, fading(3, 50, 2))
    (results / "published" / "digits-t2" / "fea" / "foreign.json").write_text("[]")
    moved = bench("report", "--check", "--json")
    assert moved.returncode == 4
    document = json.loads(moved.stdout)
    assert any(text.startswith("--- tables/own.md as it is") for text in document["stale"])
    assert document["files"] == []
    assert "foreign.json is not a run record: it holds no keys" in moved.stderr


def test_runs_can_be_found(bench, tmp_path):
    results = tmp_path / "elsewhere"
    for seed in (0, 1):
        save(results, "fea", "digits-t2", seed)
    save(results, "gm", "digits-t2", 0, changed={"gamma_sd": 0.0})
    save(results, "gm", "cifar10-t2", 0, status="diverged", reason="term 'label' is nan")
    save(results, "fea", "cifar10-t2", 0, status="partial")

    def names(*words: str) -> list[str]:
        done = bench("list", "runs", "--results", "elsewhere", "--json", *words)
        assert done.returncode == 0, done.stderr
        return [row["name"].rsplit("-", 1)[0] for row in json.loads(done.stdout)["runs"]]

    assert names("--protocol", "cifar10-t2") == ["cifar10-t2/fea/seed0", "cifar10-t2/gm/seed0"]
    assert names("--method", "fea", "--seed", "1") == ["digits-t2/fea/seed1"]
    assert names("--status", "diverged") == ["cifar10-t2/gm/seed0"]
    assert names("--group", "gamma_sd") == ["digits-t2/gm/seed0"]
    assert names("--method", "nobody") == []
    assert "gamma_sd=0.0" in bench("list", "runs", "--results", "elsewhere").stdout
    document = json.loads(bench("show", "cifar10-t2/gm", "--results", "elsewhere", "--json").stdout)
    assert (document["status"], document["reason"]) == ("diverged", "term 'label' is nan")
    assert document["metrics"]["average_accuracy"] is None
    assert document["provenance"]["commit"] == "a" * 40
    (found,) = [path for path in (results / "published").rglob("*.json") if "cifar10-t2/gm" in path.as_posix()]
    key = json.loads(found.read_text())["key"]
    for way in (key, str(found), f"./{found.relative_to(tmp_path)}", f"cifar10-t2/gm/{found.stem}"):
        assert bench("show", way, "--results", "elsewhere").stdout.startswith(f"cifar10-t2/gm/{found.stem}\n"), way
    for words, said in (
        (("show", "nothing"), "there is no run 'nothing'"),
        (("show", "digits-t2/fea"), "may mean 2 runs"),
        (("list", "runs", "--status", "odd"), "no run has the status 'odd'"),
        (("list", "methods", "--seed", "1"), "--seed goes with `bench list runs`"),
    ):
        done = bench(*words, "--results", "elsewhere")
        assert said in sentence(done)
        assert done.returncode == 2


def test_diverged_run_ends_with_its_code_and_is_remembered(bench, tmp_path):
    words = ["run", "--views", "2", "--set", "budget.base_epochs=1", "--set", "budget.novel_epochs=4"]
    words += ["--set", "budget.lr=100", "--set", "fd=sq_l2", "--set", "lambda_fd=1e30"]
    done = bench(*words)
    assert done.returncode == 5, done
    assert "the run is recorded as diverged" in done.stderr
    again = bench(*words)
    assert again.returncode == 5
    assert "recorded as diverged in" in sentence(again)
    assert "div (1/1)" in bench("report").stdout


def test_method_of_the_documentation_runs_as_printed(bench, tmp_path):
    """docs/add-a-method.md: its code is extracted, saved and run with the command it gives."""
    page = (Path(__file__).parent.parent / "docs" / "add-a-method.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0]
    (tmp_path / "mine.py").write_text(code)
    assert "bench try mine.py:Mine" in page
    tried = bench("try", "mine.py:Mine")
    assert tried.returncode == 0, tried.stdout
    assert "bench run --method mine.py:Mine --budget quick" in page
    done = bench("run", "--method", "mine.py:Mine", "--budget", "quick", "--views", "2", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    record = json.loads((tmp_path / document["record"]).read_text())
    terms = record["sessions"][1]["phases"][0]["terms"]
    assert set(terms) == {"novel", "rehearse"}
    assert len(terms["novel"]) == 20
    assert document["metrics"]["average_discovery"] > 50
