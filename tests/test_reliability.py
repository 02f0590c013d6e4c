"""What must hold whatever fails: disks, states, names, two at once."""

import ast
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import BENCH
from conftest import SHORT
from test_resume import stopped_halfway

import benchmark
from benchmark import files
from benchmark.display import Display
from benchmark.files import atomic_write

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT], ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch, code, where):
    path, before = tmp_path / "file", tmp_path / "before"
    path.write_bytes(b"old")
    fault = OSError(code, os.strerror(code))

    class Broken:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, content):
            self.file.write(content[:2])
            raise fault

    def broken(*_, **__):
        raise fault

    with monkeypatch.context() as patch:
        if where == "write":
            opened = Path.open
            patch.setattr(Path, "open", lambda self, *words: Broken(opened(self, *words)))
        elif where == "fsync":
            patch.setattr(files.os, "fsync", broken)
        else:
            patch.setattr(Path, "replace", broken)
        with pytest.raises(OSError, match=os.strerror(code)):
            atomic_write(path, b"new content", before)
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]
    atomic_write(path, b"new", before)
    assert (path.read_bytes(), before.read_bytes()) == (b"new", b"old")


def test_an_input_error_of_the_disk_is_one_sentence(tmp_path, monkeypatch, capsys):
    """EIO while the state is saved: what was saved before stays, and the run goes on once the disk is well."""
    from benchmark import cli  # noqa: PLC0415
    from benchmark.engine import checkpoint  # noqa: PLC0415

    state = stopped_halfway(tmp_path)
    before = state.read_bytes()
    words = ["run", "--views", "2", "--out", str(tmp_path), *[f"--set={k}={v}" for k, v in SHORT.items()]]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "SECONDS_BETWEEN_SAVES", 0.0)
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        patch.setattr(sys, "argv", ["bench", *words])
        assert cli.guarded() == 6
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"bench: the disk failed writing .*state\.safetensors \(Input/output error\)", said)
    assert state.read_bytes() == before
    assert benchmark.run(settings=SHORT, views=2, out=tmp_path).status == "done"


def test_two_that_write_one_file_and_keep_the_one_before(tmp_path):
    """At no moment is the file missing, and neither writer fails."""
    path, before = tmp_path / "file", tmp_path / "before"
    atomic_write(path, b"first")
    missing, over = [], threading.Event()

    def look() -> None:
        while not over.is_set():
            missing.extend([None] * (not path.exists()))

    watcher = threading.Thread(target=look)
    watcher.start()
    with ThreadPoolExecutor(2) as pool:
        written = [pool.submit(atomic_write, path, b"x" * 100, before) for _ in range(200)]
        assert [future.exception() for future in written] == [None] * 200
    over.set()
    watcher.join()
    assert missing == []
    assert sorted(tmp_path.iterdir()) == [before, path]


def test_a_file_system_without_second_names_is_used_as_it_is(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    path, before = tmp_path / "file", tmp_path / "before"
    for content in (b"1", b"2", b"3"):
        atomic_write(path, content, before)
    assert (path.read_bytes(), before.read_bytes()) == (b"3", b"2")
    assert sorted(tmp_path.iterdir()) == [before, path]


def test_a_damaged_state_falls_back_to_the_one_before(unbroken, tmp_path):
    state = stopped_halfway(tmp_path)
    older = state.with_name("state-before.safetensors")
    assert older.exists()
    state.write_bytes(state.read_bytes()[:-1] + b"?")
    lines = []

    class Listening(Display):
        def say(self, text: str) -> None:
            lines.append(text)

    record = benchmark.run(settings=SHORT, views=2, out=tmp_path, display=Listening(quiet=True))
    assert any(re.match(r"resuming in session [12], after \d+ steps", line) for line in lines), lines
    assert record.comparable() == unbroken("fea").comparable()
    assert record.provenance.attempts == 2
    assert not [*tmp_path.glob("work/*/*.safetensors")]


def test_two_damaged_states_start_over(unbroken, tmp_path):
    state = stopped_halfway(tmp_path)
    for path in (state, state.with_name("state-before.safetensors")):
        path.write_bytes(b"nothing")
    record = benchmark.run(settings=SHORT, views=2, out=tmp_path)
    assert record.comparable() == unbroken("fea").comparable()
    assert len([*tmp_path.glob("work/*/*.damaged")]) == 2


def test_state_that_is_deleted_under_a_run_is_written_again(unbroken, tmp_path):
    """Somebody tidies up while it runs: the folder of its state is gone after session 1."""

    class Tidying(Display):
        def say(self, text: str) -> None:
            if text.startswith("session 1:"):
                shutil.rmtree(tmp_path / "work")

    record = benchmark.run(settings=SHORT, views=2, out=tmp_path, display=Tidying(quiet=True))
    assert record.comparable() == unbroken("fea").comparable()


def test_of_four_that_start_at_once_one_trains(tmp_path):
    words = [*BENCH, "run", "--views", "2", "--threads", "1", "--out", str(tmp_path / "out"), "--budget", "paper"]
    started = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [process.communicate(timeout=300)[1] for process in started]
    codes = sorted(process.returncode for process in started)
    assert codes == [0, 7, 7, 7], errors
    assert all(
        "another process is working on this run" in e for p, e in zip(started, errors, strict=True) if p.returncode
    )


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a\0b", "é" * 10, "a/b", "x" * 300, "", "-", "con:1", "a\nb"])
@pytest.mark.parametrize(
    "words", [("run", "--method"), ("run", "--protocol"), ("run", "--backbone"), ("run", "--params"),
              ("sweep", "--suite"), ("sweep", "--methods", "kmeans", "--name"), ("fetch",), ("show",)],
    ids=" ".join,
)  # fmt: skip
def test_odd_names_are_one_sentence_and_write_nothing(tmp_path, monkeypatch, capsys, words, name):
    from benchmark import cli  # noqa: PLC0415

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", *words, name])
    code = cli.guarded()
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err.startswith("bench: ")
    assert said.err.count("\n") == 1
    assert [*tmp_path.rglob("*.json*")] == []


def calls_in(path: Path) -> list[tuple[str, ast.Call]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def sources() -> list[Path]:
    folders = ("benchmark", "methods", "protocols", "docs")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def unsafe(name: str, call: ast.Call) -> bool:
    """Whether a call could run what a file says."""
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name in ("eval", "exec", "compile", "__import__", "os.system", "os.popen"):
        return True
    if name != "pickle.UnpicklingError" and name.startswith(
        ("pickle.", "dill.", "joblib.", "cloudpickle.", "marshal.", "shelve.")
    ):
        return True
    if name == "torch.load":
        return options.get("weights_only") != "True"
    if name in ("np.load", "numpy.load"):
        return options.get("allow_pickle", "False") != "False"
    if name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all"):
        return not (name == "yaml.load" and [ast.unparse(a) for a in call.args[1:]] == ["_Loader"])
    return options.get("shell", "False") != "False"


def test_no_file_can_run_code():
    """No pickle, no unsafe YAML, no weights_only=False, no shell, anywhere in the project."""
    assert len(sources()) > 60
    found = [
        f"{path.relative_to(ROOT)}: {name}" for path in sources() for name, call in calls_in(path) if unsafe(name, call)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "pickle.load(f)",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "np.load(f, allow_pickle=True)",
        "yaml.load(text, yaml.Loader)",
        "yaml.unsafe_load(text)",
        "subprocess.run(text, shell=True)",
        "eval(text)",
    ],
)
def test_the_search_for_unsafe_calls_finds_them(text):
    call = ast.parse(text).body[0].value
    assert unsafe(ast.unparse(call.func), call)


def test_the_one_unpickler_knows_arrays_alone():
    """CIFAR's archive is a pickle: the class that reads it looks names up in a list of its own."""
    named = [
        (path, node)
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and any("Unpickler" in ast.unparse(base) for base in node.bases)
    ]
    assert [path.name for path, _ in named] == ["pickled.py"]
    assert any(isinstance(part, ast.FunctionDef) and part.name == "find_class" for part in named[0][1].body)
    used = {(path.name, word) for path in sources() for word in re.findall(r"\bpickle\.(\w+)", path.read_text())}
    assert used == {("pickled.py", "Unpickler"), *((name, "UnpicklingError") for name in ("pickled.py", "weights.py"))}


def test_records_logs_and_plans_name_nobody(bench, tmp_path):
    """No host, no user, no value of the environment that is not asked for."""
    home = Path.home()
    words = ("sweep", "--methods", "kmeans", "--budget", "quick", "--views", "2", "--name", "x", "--threads", "1")
    done = bench(*words, SECRET_TOKEN="s3cr3t-value", USER="somebody-special", LOGNAME="somebody-special")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "results" / "runs").rglob("*.json")
    texts = [path.read_text(), (tmp_path / "results/sweeps/x/plan.jsonl").read_text(), done.stderr, done.stdout]
    texts += [log.read_text() for log in (tmp_path / "results" / "sweeps").rglob("*.log")]
    for text in texts:
        assert "s3cr3t-value" not in text
        assert "somebody-special" not in text
        assert socket.gethostname() not in text
    assert str(home) not in texts[0]
