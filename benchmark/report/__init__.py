"""The report: tables, figures and a page as pure functions of the records. No torch, no method code, no network."""

import difflib
import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from benchmark.errors import UsageError
from benchmark.files import atomic_write, make_folder
from benchmark.report.figures import Picture, pictures, render
from benchmark.report.frames import cell_frame, comparisons, run_frame
from benchmark.report.page import page, without_pictures
from benchmark.report.paper import load_paper
from benchmark.report.runs import Run, read_runs
from benchmark.report.tables import Names, Table, build_tables, to_csv, to_latex, to_markdown, to_text

FORMATS = {"md": to_markdown, "csv": to_csv, "tex": to_latex}
INPUTS = "figures/inputs.json"
PAGE = "index.html"
DIFF_LINES = 40
"""Of a file that does not follow from the records, at most."""


@dataclass(frozen=True)
class Report:
    """All that follows from the records, figures not yet drawn."""

    runs: list[Run]
    refused: list[str]
    cells: Any
    tables: list[Table]
    pictures: list[Picture]
    names: Names

    @property
    def text(self) -> str:
        """For a terminal; the comparisons are many and stand in their file."""
        return "\n".join(to_text(table) for table in self.tables if table.sections and table.name != "comparisons")

    def table_files(self) -> dict[str, str]:
        return {
            f"tables/{table.name}.{suffix}": write(table) for table in self.tables for suffix, write in FORMATS.items()
        }

    def input_digests(self) -> str:
        return json.dumps({picture.name: picture.digest for picture in self.pictures}, indent=1) + "\n"

    def page(self, drawn: dict[str, bytes]) -> str:
        shown = [(picture, drawn.get(picture.name, b"")) for picture in self.pictures]
        return page(self.cells, self.runs, self.names, shown, self.refused)

    def document(self) -> dict[str, Any]:
        tables = {table.name: json.loads(table.frame.to_json(orient="records")) for table in self.tables}
        return {"records": len(self.runs), "refused": self.refused, "tables": tables}


def compose(results: Path) -> Report:
    """Read every record below `results` and work out what is to be said of them."""
    if not (results / "runs").is_dir():
        raise UsageError(f"there are no records in {results / 'runs'}: make one with `bench run`")
    runs, refused = read_runs(results)
    if not any(run.status != "partial" for run in runs):
        raise UsageError(f"there is no finished run in {results / 'runs'}: make one with `bench run`")
    paper = load_paper()
    names = Names(paper)
    frame = run_frame(runs)
    cells = cell_frame(frame, paper)
    return Report(runs, refused, cells, build_tables(cells, comparisons(frame), paper), pictures(runs, names), names)


def write(report: Report, out: Path) -> list[Path]:
    """All files of the report; pictures of an earlier one that are no longer made are removed."""
    rendered = {picture.name: render(picture) for picture in report.pictures}
    contents: dict[str, bytes] = {name: text.encode() for name, text in report.table_files().items()}
    for name, kinds in rendered.items():
        contents |= {f"figures/{name}.{kind}": content for kind, content in kinds.items()}
    contents[PAGE] = report.page({name: kinds["svg"] for name, kinds in rendered.items()}).encode()
    for name in earlier_pictures(out) - rendered.keys():
        for kind in ("png", "svg"):
            (out / "figures" / f"{name}.{kind}").unlink(missing_ok=True)
    contents[INPUTS] = report.input_digests().encode()
    for name, content in contents.items():
        make_folder((out / name).parent)
        atomic_write(out / name, content)
    return [out / name for name in contents]


def earlier_pictures(out: Path) -> set[str]:
    try:
        names = json.loads((out / INPUTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    return {name for name in names if isinstance(name, str) and Path(name).name == name}


def stale(report: Report, out: Path) -> list[str]:
    """A diff for every file in `out` that does not follow from the records; nothing if all do."""
    expected = report.table_files() | {INPUTS: report.input_digests(), PAGE: without_pictures(report.page({}))}
    complaints = []
    for name, text in expected.items():
        try:
            found = (out / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            complaints.append(f"{name} is missing")
            continue
        found = without_pictures(found) if name == PAGE else found
        if found != text:
            lines = difflib.unified_diff(
                found.splitlines(), text.splitlines(), f"{name} as it is", f"{name} as it should be", n=0, lineterm=""
            )
            complaints.append("\n".join(line[:200] for line in islice(lines, DIFF_LINES)))
    for picture in report.pictures:
        absent = [kind for kind in ("png", "svg") if not (out / "figures" / f"{picture.name}.{kind}").is_file()]
        complaints += [f"figures/{picture.name}.{kind} is missing" for kind in absent]
    return complaints
