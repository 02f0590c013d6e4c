"""The files of a report: written, checked, escaped."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from records import fading, make_record, save
from reports import full  # noqa: F401 - fixtures

from benchmark.digests import sealed
from benchmark.errors import BenchError, UsageError
from benchmark.records.reading import read_record
from benchmark.records.record import PUBLISHED, record_path, stored_text
from benchmark.report import INPUTS, PAGE, compose, drawing, stale, write
from benchmark.report.figures import slug
from benchmark.report.names import Names
from benchmark.report.paper import load_paper
from benchmark.report.runs import read_runs, thinned
from benchmark.report.table import escape, guarded, markdown, number, signed, to_latex, to_markdown

FIXTURES = Path(__file__).parent / "fixtures"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_report_twice_gives_the_same_bytes(tmp_path):
    records = tmp_path / "records"
    for method in ("fea", "gm"):
        save(records, method, "digits-t2", 0)
    for place in ("one", "two"):
        write(compose(records), tmp_path / place)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_the_order_of_files_does_not_matter(tmp_path):
    """Records read in another order, by another folder's name, give the same report but for where files are."""
    for name in ("a", "b"):
        for method in ("fea", "gm"):
            record = make_record(method, "digits-t2", 0)
            path = tmp_path / name / PUBLISHED / ("x" if (name == "a") == (method == "fea") else "y") / f"{method}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            record.save(tmp_path / "scratch")
            path.write_bytes(record.path(tmp_path / "scratch").read_bytes())
    one, two = (compose(tmp_path / name).table_files() for name in ("a", "b"))
    assert one == two


def test_check_finds_what_does_not_follow(tmp_path):
    for method in ("fea", "gm"):
        save(tmp_path, method, "digits-t2", 0)
    report = compose(tmp_path)
    write(report, tmp_path)
    assert stale(report, tmp_path) == []

    def spoiled(name: str, change) -> list[str]:
        path = tmp_path / name
        before = path.read_bytes()
        change(path)
        complaints = stale(report, tmp_path)
        path.write_bytes(before)
        return complaints

    def replace(old: str, new: str):
        def change(path: Path) -> None:
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new, 1))

        return change

    (diff,) = spoiled("tables/own.md", replace("budget paper", "budget of mine"))
    assert diff.startswith("--- tables/own.md as it is")
    assert "\n-" in diff
    assert "\n+" in diff
    assert spoiled("tables/comparisons.csv", Path.unlink) == ["tables/comparisons.csv is missing"]
    assert len(spoiled("tables/own.csv", lambda path: path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n")))) == 1
    assert len(spoiled("tables/own.md", lambda path: path.write_bytes(path.read_bytes().rstrip(b"\n")))) == 1
    assert len(spoiled(PAGE, replace('"seed":0', '"seed":9'))) == 1
    assert len(spoiled(PAGE, replace("<title>", "<title>My "))) == 1
    assert spoiled(PAGE, Path.unlink) == ["index.html is missing"]
    for kind in ("svg", "png"):
        name = f"figures/accuracy-reference.{kind}"
        for change in (Path.unlink, lambda path: path.write_bytes(b"junk")):
            assert spoiled(name, change) == [f"{name} is missing, or not what was drawn"]
    assert spoiled(INPUTS, replace('"input": "', '"input": "0')) == [
        f"figures/{report.pictures[0].name} was not drawn from these records"
    ]
    other = replace('src="data:image/svg+xml;base64,', 'src="data:image/svg+xml;base64,AAAA')
    assert spoiled(PAGE, other) == ["index.html shows other pictures than figures/"]
    (tmp_path / "tables" / "old.md").write_text("")
    assert stale(report, tmp_path) == ["tables/old.md does not belong to the report"]
    (tmp_path / "tables" / "old.md").unlink()
    save(tmp_path, "gm", "digits-t2", 1, fading(3, 50, 2))
    later = stale(compose(tmp_path), tmp_path)
    assert "figures/accuracy-reference was not drawn from these records" in later
    (tmp_path / INPUTS).write_text("5")
    write(report, tmp_path)
    assert stale(report, tmp_path) == []


def test_pictures_of_another_matplotlib_are_no_complaint(tmp_path):
    """They are whole, drawn from these numbers, and the page shows them: the same after other bytes were drawn."""
    for method in ("fea", "gm"):
        save(tmp_path, method, "digits-t2", 0)
    report = compose(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "render", lambda picture: {"png": b"other", "svg": picture.name.encode()})
        write(report, tmp_path)
    assert stale(report, tmp_path) == []


def test_pictures_have_names_of_their_own():
    names = [
        slug(f"budget {text}") for text in ("paper", "reference", "quick, shared.x=1", "quick, shared.x=-1", "paper, é")
    ]
    assert len({*names}) == len(names)
    assert names[0] == "reference"
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)


def test_pictures_that_are_no_longer_made_are_removed_and_nothing_else(tmp_path):
    for method in ("fea", "gm"):
        save(tmp_path, method, "digits-t2", 0)
    save(tmp_path, "fea", "cifar10-t2", 0)
    write(compose(tmp_path), tmp_path)
    (tmp_path / "figures" / "mine.png").write_bytes(b"mine")
    assert (tmp_path / "figures" / "known-reference-cifar10-t2.png").exists()
    next((tmp_path / PUBLISHED / "cifar10-t2").rglob("*.json")).unlink()
    write(compose(tmp_path), tmp_path)
    assert not (tmp_path / "figures" / "known-reference-cifar10-t2.png").exists()
    assert (tmp_path / "figures" / "mine.png").exists()


def test_foreign_records_are_refused_by_name_and_the_rest_is_reported(tmp_path):
    good = save(tmp_path, "fea", "digits-t2", 0)
    path = record_path(tmp_path, good.question, PUBLISHED)
    document = json.loads(path.read_text())
    first, *others = document["sessions"]
    counts = first["counts"]
    question = document["question"]

    def plant(name: str, *, seal: bool = True, **changes) -> None:
        planted = document | changes
        (path.parent / name).write_text(json.dumps(sealed(planted) if seal else planted))

    def with_counts(**changes) -> list:
        return [{**first, "counts": counts | changes}, *others]

    (path.parent / "broken.json").write_text("{")
    (path.parent / "copy.json").write_text(path.read_text())
    plant("class.json", sessions=[{**first, "classes": [9, *first["classes"][1:]]}, *others])
    plant("counts.json", sessions=with_counts(true=[0], row=[99], images=[5]))
    (path.parent / "deep.json").write_text("[" * 100_000)
    plant("edited.json", seal=False, sessions=others)
    plant("empty.json", sessions=with_counts(true=[0], row=[0], images=[5]))
    plant("future.json", schema=99)
    plant("huge.json", sessions=[{**first, "classes": [*range(6000)]}, *others])
    (path.parent / "long.json").write_text(path.read_text().replace('"seed": 0', f'"seed": {"9" * 5000}'))
    plant("nameless.json", question={**question, "protocol": {"classes": []}})
    (path.parent / "nan.json").write_text(path.read_text().replace('"seed": 0', '"seed": NaN'))
    plant("none.json", sessions=[])
    plant("short.json", sessions=document["sessions"][:1])
    plant("tampered.json", question={**question, "seed": 7})
    plant("twice.json", sessions=with_counts(**{key: [*counts[key], counts[key][0]] for key in counts}))
    plant("uneven.json", sessions=with_counts(images=counts["images"][1:]))
    with (path.parent / "vast.json").open("wb") as file:
        file.truncate(99_000_000)
    (path.parent / "folder.json").mkdir()
    os.mkfifo(path.parent / "pipe.json")
    (path.parent / "device.json").symlink_to("/dev/zero")
    found = read_runs(tmp_path)
    assert len(found.runs) == 1
    reasons = {Path(re.search(r"\S+\.json", line).group()).name: line for line in found.refused}
    planted = {entry.name for entry in path.parent.iterdir()} - {"copy.json"}  # the first in order is read
    assert {*reasons} == planted
    for name, said in {
        path.name: "second record",
        "tampered.json": "its key does not match its question",
        "empty.json": "without test images",
        "twice.json": "twice",
        "edited.json": "damaged or was edited",
        "uneven.json": "differ in length",
        "vast.json": "too large",
        "future.json": "its schema is 99",
    }.items():
        assert said in reasons[name]
    with pytest.raises(BenchError):
        read_record(path.parent / "broken.json")


def test_a_record_of_schema_1_is_refused_in_one_sentence():
    with pytest.raises(UsageError, match="its schema is 1, this version reads 2; run it again"):
        read_record(FIXTURES / "record-schema1.json")


def test_text_is_escaped_for_its_format(tmp_path):
    save(tmp_path, "a_b", "digits-t2", 0, changed={"note": "50% & |x| <b>\\*"})
    report = compose(tmp_path)
    changed = next(table for table in report.tables if table.name == "changed")
    assert r"a\_b" in to_latex(changed)
    assert r"50\% \& \textbar{}x\textbar{}" in to_latex(changed)
    assert r"50% &amp; \|x\| &lt;b&gt;" in to_markdown(changed)
    assert escape("C:\\x^2 ~ #1_{a} ± −") == (
        r"C:\textbackslash{}x\textasciicircum{}2 \textasciitilde{} \#1\_\{a\} $\pm$ $-$"
    )
    assert markdown("[x](y) `z` $a$ ~~b~~") == r"\[x\](y) \`z\` \$a\$ \~\~b\~\~"
    assert escape("é中") == "é?"


def test_no_text_of_a_record_commands_a_terminal(tmp_path):
    save(tmp_path, "fea", "digits-t2", 0, status="diverged", reason="\x1b]0;owned\x07\nnext")
    (run,) = read_runs(tmp_path).runs
    assert run.reason == "]0;owned  next"


@pytest.mark.parametrize("text", ["=1+1", "+x", "-x", "@x", "\t=x", " =x"])
def test_no_cell_is_a_formula(text):
    assert guarded(text).startswith("'")
    assert guarded(f"a{text}") == f"a{text}"


def test_numbers_are_printed_without_surprises():
    assert (number(-0.001), number(12.345678), signed(-0.001), signed(0.2), signed(-3.0)) == (
        "0.00", "12.35", "0.00", "+0.20", "-3.00",
    )  # fmt: skip


def test_what_is_stored_is_told_as_it_was_counted():
    assert stored_text([(20, 0), (9.8, 0), (18.5, 0)]) == "9.8 to 20 images"
    assert stored_text([(0, 0), (0, 0)]) == "nothing"
    assert stored_text([(20, 97), (20, 97)]) == "20 images + 97 numbers"


def test_long_curves_are_thinned_to_their_end():
    kept = thinned({"a": [float(k) for k in range(200)], "b": [None, 1.0], "c": []})
    assert kept["a"][-1] == (200, 199.0)
    assert len(kept["a"]) == 50
    assert kept["b"] == [(2, 1.0)]
    assert kept["c"] == []


def test_report_imports_no_torch(tmp_path):
    save(tmp_path, "fea", "digits-t2", 0)
    script = (
        "import sys; from pathlib import Path; from benchmark.report import compose, write\n"
        f"write(compose(Path({str(tmp_path)!r})), Path({str(tmp_path)!r}))\n"
        "sys.exit(int('torch' in sys.modules or 'methods' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_record_command_names_every_change():
    changed = {"omega": 1.0, "views": "live", "budget.lr": 0.02, "fd": "none", "flag": "no"}
    record = make_record("mine", "digits-t2", 3, changed=changed)
    assert record.changed == changed
    assert record.command == (
        "bench run --method mine.py:CLASS --protocol digits-t2 --seed 3 --budget paper --views live "
        "--set budget.lr=0.02 --set fd=none --set 'flag=\"no\"' --set omega=1.0 --threads 2"
    )


def test_a_pasted_command_does_no_harm():
    evil = {"x": "$(touch /tmp/owned); `id`", "y;z": 1, "backbone": "2; rm -r ."}
    words = shlex.split(make_record("mine", "digits-t2", 0, changed=evil).command)
    assert words[:3] == ["bench", "run", "--method"]
    assert words[words.index("--backbone") + 1] == "2; rm -r ."
    assert "y;z=1" in words
    assert "--weights" in words  # of a backbone that the suite does not know


def test_a_page_cannot_be_broken_out_of(tmp_path):
    """Whatever a record says stays text: in the data no angle bracket survives, in captions they are escaped."""
    evil = "</script><script>alert(1)</script><!--"
    save(tmp_path, "fea", "digits-t2", 0, changed={"backbone": evil})
    save(tmp_path, "gm", "digits-t2", 0, changed={"backbone": evil})
    write(compose(tmp_path), tmp_path)
    page = (tmp_path / PAGE).read_text()
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert page.count("<script") == 2
    block = re.search(r'id="data">(.*?)</script>', page).group(1)
    assert "<" not in block
    assert evil in json.loads(block)["runs"][0]["group"]


def test_names_follow_the_paper():
    names = Names(load_paper())
    assert names.ordered(["zeta", "kmeans", "fea (own)", "fea", "alpha", "gm"]) == [
        *("gm", "fea", "fea (own)", "kmeans", "alpha", "zeta"),
    ]
    assert [*map(names.label, ["simgcd", "kmeans (own)", "alpha"])] == ["SimGCD*", "k-means (floor) (own)", "alpha"]


@pytest.mark.latex
def test_latex_tables_compile(full, tmp_path):
    """With booktabs alone, whatever a record says."""
    save(tmp_path, "a_b", "digits-t2", 0, changed={"note": '50% & $x^2$ #1 {a} ~ \\end "q" <|> ± é_%'})
    tables = [*compose(full).tables, *compose(tmp_path).tables]
    body = "\n".join(to_latex(table) + r"\clearpage" for table in tables)
    source = tmp_path / "all.tex"
    packages = r"\usepackage[utf8]{inputenc}\usepackage[T1]{fontenc}\usepackage{booktabs}"
    source.write_text(rf"\documentclass{{article}}{packages}\begin{{document}}{body}\end{{document}}")
    done = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", source.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "all.pdf").stat().st_size > 10_000
