"""Commands for authors: bad input and broken methods end in one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands import DIGITS, QUICK
from records import save

from benchmark import cli


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("bank --protocol digits-t2", 2, "digits-t2 needs no bank"),
        ("bank --protocol digits-t2 --plan", 2, "digits-t2 needs no bank"),
        ("bank --protocol cifar10-t2", 3, "`bench fetch vit-b16-dino` downloads them"),
        ("bank --protocol cifar10-t2 --plan --weights no.pth", 3, "no weight file at no.pth"),
        ("bank --protocol cifar10-t2 --verify", 2, "leave --protocol out"),
        ("bank --unused 3", 2, "--unused with --prune"),
        ("bank --plan", 2, "--plan goes with --protocol"),
        ("speed --budget long", 2, "unknown budget 'long'"),
        ("speed --protocol digits-t2", 2, "not worth predicting"),
        ("fetch cifar1", 2, "unknown dataset or backbone 'cifar1', did you mean 'cifar10'?"),
        ("fetch cifar10 --source ftp://x", 2, "must begin with http:// or https://"),
        ("fetch cifar10 --source http://[x", 3, "could not be fetched"),
        ("fetch digits", 2, "nothing to fetch"),
        ("fetch digits-vit", 2, "give its file with --weights"),
        ("run --protocol cifar10-t2 --backbone digits-vit", 2, "takes pictures of 1 channels"),
        ("run --backbone vit-b16-dino.yaml", 2, "the suite has a backbone 'vit-b16-dino', rename yours"),
        ("run --backbone own.yaml --weights own.yaml --protocol cifar10-t2", 3, "own.yaml is not a readable .pth file"),
        ("speed --backbone own.yaml", 2, "backbone 'own': timm has no architecture 'vit_enormous'"),
        ("speed --backbone resnet.yaml", 2, "backbone 'resnet'"),
        ("speed --backbone sizes.yaml", 2, "backbone 'sizes' cannot be built"),
        ("speed --backbone zero.yaml", 2, "std.0"),
        ("run --threads 99999999", 2, "--threads: 99999999: this machine has"),
        ("run --threads 20000", 2, "give at most"),
        ("run --set omega=!!timestamp_x", 2, "the value cannot be read"),
        ("run --set omega=!!bool_x", 2, "the value cannot be read"),
        (f"run --set omega={'[' * 3000}", 2, "the value cannot be read"),
        (f"run --set omega={'9' * 5000}", 2, "the value cannot be read"),
        ("run --set omega=*a", 2, "the value cannot be read"),
        ("run --device hpu", 2, "--device: 'hpu' is not usable here"),
        ("run --device nonsense", 2, "--device: 'nonsense' is not usable here"),
        ("run --protocol many.yaml", 2, "many.yaml: "),
        ("run --protocol date.yaml", 2, "date.yaml: broken YAML: a value in it cannot be read"),
        ("publish nothing", 2, "there are no records in results"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_other_commands_tell_bad_input_in_one_sentence(tmp_path, monkeypatch, capsys, words, code, said):
    """In this process, to be quick; nothing is written where the command was called."""
    own = yaml.safe_load((DIGITS.parent / "backbones.yaml").read_text())["vit-s16-dino"] | {"download": None}
    files = {
        "own": own | {"architecture": "vit_enormous"},
        "vit-b16-dino": own,
        "resnet": own | {"architecture": "resnet18"},
        "sizes": own | {"vit": {"legs": 4}},
        "zero": own | {"std": [0, 1, 1]},
    }
    for name, content in files.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "many.yaml").write_text("".join(f"key{k}: {k}\n" for k in range(60_000)))
    (tmp_path / "date.yaml").write_text("name: !!timestamp x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CNCD_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["bench", *(word.replace("_x", " x") for word in words.split())])
    assert cli.guarded() == code
    printed = capsys.readouterr().err
    assert said in printed
    assert len(printed.splitlines()) <= 3
    assert "Traceback" not in printed


def test_a_mistake_in_a_method_is_told_with_file_and_line(tmp_path, monkeypatch, capsys):
    """A typo in `losses`, in `end`, in `predict`, in a file beside it, and one that Python finds before it runs."""
    (tmp_path / "helper.py").write_text("def help_me(x):\n    return x.nothing\n")
    for number, (body, said) in enumerate(
        [
            (
                "def losses(self, batch):\n        return {'x': self.blok(batch.a).sum()}",
                "line 4, in losses: AttributeError",
            ),
            ("def end(self, s):\n        len(5)\n    def losses(self, b): return {}", "line 4, in end: TypeError"),
            (
                "def losses(self, b): return {}\n    def predict(self, t):\n        return t.cls @ t.cls",
                "in predict: RuntimeError",
            ),
            (
                "def losses(self, b): return {}\n    def end(self, s): help_me(s)",
                "helper.py, line 2, in help_me: Attribute",
            ),
            ("def losses(self, b) return {}", "line 3: cannot be imported: SyntaxError"),
        ]
    ):
        path = tmp_path / f"mine{number}.py"
        path.write_text(
            f"from helper import help_me; from methods.contract import Method\nclass Mine(Method):\n    {body}\n"
        )
        words = ["bench", "run", "--method", f"{path}:Mine", "--views", "2", "--out", str(tmp_path / "out"), *QUICK]
        monkeypatch.setattr(sys, "argv", words)
        assert cli.guarded() == 2
        printed = capsys.readouterr().err.splitlines()[-1]
        assert said in printed, printed
        assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("torch.zeros(n, dtype=torch.bool)", "whole numbers, not bool"),
        ("torch.zeros(n, dtype=torch.complex64)", "whole numbers, not complex64"),
        ("torch.zeros(n)", "whole numbers, not float32"),
        ("[0] * n", "a tensor, not list"),
        ("None", "a tensor, not NoneType"),
        ("torch.zeros(n, dtype=torch.long).numpy()", "a tensor, not ndarray"),
        ("torch.tensor(0)", "whole numbers, not int64 of shape ()"),
        ("torch.zeros(n, dtype=torch.long, device='meta')", "whole numbers, not meta"),
        ("torch.zeros(n, dtype=torch.long).to_sparse()", "whole numbers, not int64"),
        ("torch.full((n,), -1)", "for each image, not -1"),
    ],
)
def test_predictions_that_are_no_rows_are_told(tmp_path, monkeypatch, capsys, rows, said):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom methods.contract import Method\nclass Mine(Method):\n"
        "    def losses(self, batch): return {}\n"
        f"    def predict(self, tokens):\n        n = len(tokens)\n        return {rows}\n"
    )
    words = ["bench", "run", "--method", f"{tmp_path / 'mine.py'}:Mine", "--views", "2", "--out", str(tmp_path), *QUICK]
    monkeypatch.setattr(sys, "argv", words)
    assert cli.guarded() == 2
    assert said in capsys.readouterr().err


def test_publish_moves_what_anybody_could_make_again(tmp_path, monkeypatch, capsys):
    """Complete, of a clean commit in HEAD's history, with registered data and weights; else it says what is missing."""
    root = tmp_path / "checkout"
    results = root / "results"

    def git(*words: str) -> str:
        named = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(named, check=True, capture_output=True, text=True).stdout.strip()

    root.mkdir()
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    head = git("rev-parse", "HEAD")

    def publish(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["bench", "publish", "--results", str(results), *words])
        code = cli.guarded()
        printed = capsys.readouterr()
        return code, printed.err if code else printed.out

    save(results, "fea", "digits-t2", 0, folder="runs", commit=head)
    save(results, "gm", "digits-t2", 0, folder="runs", commit=head)
    for method, options, said in (
        ("frost", {"commit": head, "dirty": True}, "uncommitted changes"),
        ("simgcd", {"commit": "b" * 40}, "is not in the history of HEAD"),
        ("autonovel", {"commit": None}, "run from a checkout"),
        ("kmeans", {"commit": head, "status": "partial"}, "it is not finished"),
        ("mine", {"commit": head}, "put it into methods/ first"),
    ):
        save(results, method, "digits-t2", 0, folder="runs", **options)
        code, printed = publish(f"digits-t2/{method}")
        assert (code, said in printed) == (2, True), printed
    save(results, "fea", "cifar10-t2", 0, folder="runs", commit=head, images=((30, 30), (9, 9)))
    save(results, "fea", "cifar10-t2", 1, folder="runs", commit=head, changed={"backbone": "small"})
    assert "is not the complete cifar10" in publish("cifar10-t2/fea/seed0")[1]
    save(
        results,
        "gm",
        "cifar10-t2",
        0,
        folder="runs",
        commit=head,
        changed={"shared.images": 700},
        images=((700,) * 2, (1000,) * 2),
    )
    assert "is not those 700 images per class of cifar10" in publish("cifar10-t2/gm/seed0")[1]
    monkeypatch.setattr("benchmark.publish.is_registered", lambda *_: False)
    assert "weights are not those the suite knows for backbone 'small'" in publish("cifar10-t2/fea/seed1")[1]
    monkeypatch.setattr("benchmark.publish.is_registered", lambda *_: True)
    code, printed = publish("digits-t2/fea", "digits-t2/frost")
    assert code == 2  # all or none
    assert [*(results / "published").rglob("*.json")] == []
    code, printed = publish("digits-t2/fea", "digits-t2/gm")
    assert code == 0
    moved = [*map(Path, printed.splitlines())]
    assert [path.parent.name for path in moved] == ["fea", "gm"]
    assert all(path.is_file() and "published" in path.parts for path in moved)
    save(results, "frost", "cifar10-t2", 0, folder="runs", commit=head, changed={"shared.images": 1000})
    assert publish("cifar10-t2/frost")[0] == 0  # a part that is registered
    assert not [*(results / "runs" / "digits-t2" / "fea").rglob("*.json")]
    assert publish("digits-t2/fea")[0] == 2  # no own run of that name is left
