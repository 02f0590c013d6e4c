"""Cheats end at chance or are refused: on the embedded digits, and on images in files that pass through store and bank.

Each method of tests/cheats tries one way to hidden labels. Its guesses are compared with the labels; by chance they
agree as often as a coin would, within four standard errors. docs/trust.md has the list and says what is not prevented.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pictures import write_backbone, write_folders
from safetensors.numpy import load_file

from benchmark import cli
from benchmark.data import datasets as data
from benchmark.data import pixels
from benchmark.data.datasets import Dataset, open_dataset
from benchmark.protocol.catalogue import load_datasets
from benchmark.protocol.protocols import load_protocol
from benchmark.records.scoring import assign

CHEATS = Path(__file__).parent / "cheats"
GUESSERS = {
    "blind": "Blind",
    "ids": "Ids",
    "clean_order": "CleanOrder",
    "batch_order": "BatchOrder",
    "view_noise": "ViewNoise",
    "counts": "Counts",
    "attributes": "Attributes",
    "cache_files": "CacheFiles",
}
"""Cheats that are let run: their guesses must be worth nothing."""
REFUSED = {
    "place_of_test_image": ("PlaceOfTestImage", "a prediction must depend on its own image alone"),
    "neighbours": ("Neighbours", "a prediction must depend on its own image alone"),
    "batch_statistics": ("BatchStatistics", "a prediction must depend on its own image alone"),
    "keeps_in_class": ("KeepsInClass", "keeps a tensor in 'KeepsInClass.seen[0]'"),
    "other_sessions": ("OtherSessions", "which is neither of this session nor in its memory"),
    "keeps_session": ("KeepsSession", "keeps a tensor in 'before.ids', outside its parameters and buffers"),
    "stray_tensor": ("StrayTensor", "keeps a tensor in 'cache['means'][0]', outside its parameters and buffers"),
    "stray_value": ("StrayValue", "the method's 'history' is"),
    "disguised_ids": ("DisguisedIds", "the method's ids must be a plain torch.Tensor, not Spy"),
    "memo_in_class": ("MemoInClass", "the method's 'MemoInClass.memo' is"),
    "stash_in_block": ("StashInBlock", "keeps a tensor in 'block.block.stash[0].cls'"),
    "stash_in_slot": ("StashInSlot", "keeps a tensor in 'stash()"),
    "reads_in_begin": ("ReadsInBegin", "reads images in begin or of a session that is over"),
    "freezes_block": ("FreezesBlock", "requires_grad' is False now and would be True in a resumed run"),
    "late_import": ("LateImport", "hidden_helper.py was imported while the method ran"),
}
ORDERED = ("ids", "clean_order", "batch_order")
"""Cheats that live on images lying class by class."""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    """Options of a run on 600 drawn images in files, and a small backbone."""
    root = tmp_path_factory.mktemp("files")
    description, weights = write_backbone(root)
    write_folders(root / "cifar10", train=40, test=20)
    return [
        *("--protocol", "cifar10-t2", "--data-dir", str(root / "cifar10")),
        *("--backbone", str(description), "--weights", str(weights)),
    ]


def cheat(name: str, cls: str, out: Path, options: list[str], monkeypatch) -> int:
    """The real command, in this process."""
    short = ("budget.base_epochs=1", "budget.novel_epochs=1", "budget.batch=16")
    words = ["run", "--method", f"{CHEATS / name}.py:{cls}", "--views", "2", "--keep", "--out", str(out), *options]
    words += [word for setting in short for word in ("--set", setting)]
    monkeypatch.delitem(sys.modules, "hidden_helper", raising=False)  # of a run before
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    return cli.guarded()


def dataset_of(options: list[str]) -> Dataset:
    return (
        open_dataset(load_datasets()["cifar10"], Path(options[3]))
        if options
        else open_dataset(load_datasets()["digits"])
    )


def agreements(out: Path, options: list[str]) -> list[tuple[float, float]]:
    """For each discovery session: share of right guesses under the best names, and what chance may reach."""
    (path,) = out.glob("kept/*/*/*/weights.safetensors")
    kept = load_file(path)
    labels = dataset_of(options).train.labels[kept["ids"]]
    found = []
    for classes in load_protocol("cifar10-t2" if options else "digits-t2").classes[1:]:
        here = np.isin(labels, classes)
        counts = np.zeros((len(classes), len(classes)), dtype=int)
        np.add.at(counts, (np.searchsorted(classes, labels[here]), kept["guessed"][here]), 1)
        right = sum(counts[c, k] for k, c in enumerate(assign(counts)))
        # classes are not equally large: naming all images after the largest is no knowledge either
        chance = counts.sum(axis=1).max() / counts.sum()
        found.append((right / counts.sum(), chance + 4 * math.sqrt(0.25 / counts.sum())))
    assert len(found) == 2
    return found


@pytest.mark.parametrize("where", ["digits", "files"])
@pytest.mark.parametrize("name", GUESSERS)
def test_guesses_are_worth_nothing(name, where, files, tmp_path, monkeypatch, capsys):
    options = files if where == "files" else []
    assert cheat(name, GUESSERS[name], tmp_path, options, monkeypatch) == 0, capsys.readouterr().err
    for agreed, chance in agreements(tmp_path, options):
        assert agreed <= chance


@pytest.mark.parametrize("where", ["digits", "files"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_method_may_not_do_is_refused_in_a_sentence(name, where, files, tmp_path, monkeypatch, capsys):
    cls, said = REFUSED[name]
    assert cheat(name, cls, tmp_path, files if where == "files" else [], monkeypatch) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("bench: ")
    assert said in message


@pytest.mark.parametrize("where", ["digits", "files"])
@pytest.mark.parametrize("name", ["keeps_test_images:KeepsTestImages", "keeps_in_params:KeepsInParams"])
def test_nothing_flows_back_from_an_evaluation(name, where, files, tmp_path, monkeypatch, capsys):
    options = files if where == "files" else []
    assert cheat(*name.split(":"), tmp_path, options, monkeypatch) == 0, capsys.readouterr().err
    (path,) = tmp_path.glob("kept/*/*/*/weights.safetensors")
    assert load_file(path)["seen"].shape[0] == 0


@pytest.mark.parametrize("where", ["digits", "files"])
@pytest.mark.parametrize("name", ORDERED)
def test_planting_the_old_order_turns_them_red(name, where, files, tmp_path, monkeypatch, capsys):
    """Images by class, then by digest, as they once lay: these cheats then know nearly every label."""
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    for module in (data, pixels):
        by_label = lambda digests, labels: sorted(range(len(digests)), key=lambda k: (labels[k], digests[k]))  # noqa: E731
        monkeypatch.setattr(module, "pixel_order", by_label)
    options = files if where == "files" else []
    assert cheat(name, GUESSERS[name], tmp_path / "out", options, monkeypatch) == 0, capsys.readouterr().err
    for agreed, chance in agreements(tmp_path / "out", options):
        assert agreed > 0.8 > chance


def test_planting_files_by_class_turns_the_reader_of_the_cache_red(files, tmp_path, monkeypatch, capsys):
    """One file of tokens a class, as it once was: the file that an image's tokens lie in is its label."""
    from benchmark.tokens import bank  # noqa: PLC0415

    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bank, "SHARD", 40)
    for module in (data, pixels):
        by_label = lambda digests, labels: sorted(range(len(digests)), key=lambda k: (labels[k], digests[k]))  # noqa: E731
        monkeypatch.setattr(module, "pixel_order", by_label)
    assert cheat("cache_files", "CacheFiles", tmp_path / "out", files, monkeypatch) == 0, capsys.readouterr().err
    assert all(agreed == 1.0 for agreed, _ in agreements(tmp_path / "out", files))


def test_the_digest_of_a_method_covers_what_it_imports_and_nothing_else(tmp_path, monkeypatch):
    """Files beside it and in packages, also those imported inside functions; not what the caller has imported."""
    from methods import load_own  # noqa: PLC0415

    (tmp_path / "pack").mkdir()
    for name, text in {
        "mine.py": "from methods.contract import Method\nimport helper\nfrom pack.inner import x\nclass Mine(Method):\n"
        "    def losses(self, batch):\n        import late\n        return {}\n",
        "helper.py": "import second\n",
        "second.py": "",
        "late.py": "",
        "other.py": "",
        "pack/__init__.py": "",
        "pack/inner.py": "from . import beside\nx = 1\n",
        "pack/beside.py": "",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    import other  # noqa: PLC0415

    expected = {"mine.py", "helper.py", "second.py", "late.py", "pack/__init__.py", "pack/inner.py", "pack/beside.py"}
    first = load_own(tmp_path / "mine.py", "Mine")
    assert {*first.modules} == expected
    assert sys.modules["other"] is other  # the caller's modules are left alone
    assert load_own(tmp_path / "mine.py", "Mine").digest == first.digest
    (tmp_path / "other.py").write_text("y = 2\n")
    assert load_own(tmp_path / "mine.py", "Mine").digest == first.digest
    for name in expected:
        before = (tmp_path / name).read_text()
        (tmp_path / name).write_text(f"\n# a comment\n{before}\n\n# another\n")
        assert load_own(tmp_path / "mine.py", "Mine").digest == first.digest, name
        (tmp_path / name).write_text(f"{before}\nedited = 1\n")
        assert load_own(tmp_path / "mine.py", "Mine").digest != first.digest, name
        (tmp_path / name).write_text(before)


def test_one_cheat_in_a_process_of_its_own(files, tmp_path):
    """The helper beside a method is found."""
    words = [sys.executable, "-m", "benchmark.cli", "run", "--method", f"{CHEATS / 'ids.py'}:Ids", "--json", *files]
    words += ["--views", "2", "--keep", "--set", "budget.base_epochs=1", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(agreed <= chance for agreed, chance in agreements(tmp_path, files))
    assert json.loads(done.stdout)["metrics"]["average_discovery"] < 100
