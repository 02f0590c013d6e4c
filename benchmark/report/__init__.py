"""What is shown: records in; tables, figures and a page out, as pure functions of the records.

No torch, no method code, no network. May import: records, protocol.
"""

import dataclasses
import difflib
import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from benchmark.errors import UsageError
from benchmark.files import atomic_write, make_folder
from benchmark.protocol.protocols import protocol_names
from benchmark.protocol.reading import suggest
from benchmark.report.figures import Picture, pictures
from benchmark.report.frames import cell_frame, comparisons, probes, run_frame
from benchmark.report.names import Names
from benchmark.report.own_tables import OwnProtocol
from benchmark.report.page import page, pictures_of, without_pictures
from benchmark.report.paper import load_paper
from benchmark.report.runs import Found, Run, require_records
from benchmark.report.table import Table, to_csv, to_latex, to_markdown, to_text
from benchmark.report.tables import build_tables

FORMATS = {"md": to_markdown, "csv": to_csv, "tex": to_latex}
INPUTS = "figures/inputs.json"
PAGE = "index.html"
KINDS = ("png", "svg")
MANY, WORKERS = 10, 4
DIFF_LINES = 40
"""Of a file that does not follow from the records, at most."""


@dataclass(frozen=True)
class Report:
    """All that follows from the records, figures not yet drawn."""

    runs: list[Run]
    refused: list[str]
    repeated: list[str]
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

    def page(self, svgs: dict[str, bytes]) -> str:
        shown = [(picture, svgs.get(picture.name, b"")) for picture in self.pictures]
        return page(self.cells, self.runs, self.tables, self.names, shown, self.refused)

    def document(self) -> dict[str, Any]:
        tables = {table.name: json.loads(table.written().to_json(orient="records")) for table in self.tables}
        return {
            "records": len(self.runs),
            "own": sum(run.own for run in self.runs),
            "refused": self.refused,
            "repeated": self.repeated,
            "tables": tables,
        }


def compose(results: Path, *, own: bool = True, protocols: Sequence[str] = (), methods: Sequence[str] = ()) -> Report:
    """Read the published records of a folder, and the user's own if wanted; work out what is to be said of them.

    With names of protocols or methods, of their runs alone.
    """
    found = require_records(results, own=own)
    if protocols or methods:
        found = narrowed(found, protocols, methods)
    if not any(run.status != "partial" for run in found.runs):
        raise UsageError(f"there is no finished run in {results}: make one with `bench run`")
    paper = load_paper()
    names = Names(paper)
    frame = run_frame(found.runs)
    cells = cell_frame(frame, paper)
    tables = build_tables(cells, comparisons(frame), probes(found.runs), own_protocols(found.runs), paper)
    return Report(found.runs, found.refused, found.repeated, cells, tables, pictures(found.runs, names), names)


def narrowed(found: Found, protocols: Sequence[str], methods: Sequence[str]) -> Found:
    """Runs of some protocols and methods; names that no run has are refused."""
    for wanted, known in ((protocols, {run.protocol for run in found.runs}), (methods, {r.base for r in found.runs})):
        odd = [name for name in wanted if name not in known]
        if odd:
            raise UsageError(f"there is no run of '{odd[0]}'{suggest(odd[0], known)}")
    kept = [r for r in found.runs if (not protocols or r.protocol in protocols) and (not methods or r.base in methods)]
    return dataclasses.replace(found, runs=kept)


def own_protocols(runs: list[Run]) -> list[OwnProtocol]:
    """Of all runs, what is not the suite's; where the same name stands for several, the first."""
    own = {run.protocol: OwnProtocol(run.protocol, run.dataset, run.planned) for run in reversed(runs)}
    return [protocol for name, protocol in sorted(own.items()) if name not in protocol_names()]


def write(report: Report, out: Path) -> list[Path]:
    """All files of the report; pictures of an earlier one that are no longer made are removed."""
    rendered = dict(zip([picture.name for picture in report.pictures], render_all(report.pictures), strict=True))
    contents: dict[str, bytes] = {name: text.encode() for name, text in report.table_files().items()}
    for name, kinds in rendered.items():
        contents |= {f"figures/{name}.{kind}": content for kind, content in kinds.items()}
    contents[PAGE] = report.page({name: kinds["svg"] for name, kinds in rendered.items()}).encode()
    for name in read_inputs(out).keys() - rendered.keys():
        for kind in KINDS:
            (out / "figures" / f"{name}.{kind}").unlink(missing_ok=True)
    digests = {
        picture.name: {"input": picture.digest} | {kind: sha256(rendered[picture.name][kind]) for kind in KINDS}
        for picture in report.pictures
    }
    contents[INPUTS] = (json.dumps(digests, indent=1) + "\n").encode()
    for name, content in contents.items():
        make_folder((out / name).parent)
        atomic_write(out / name, content)
    return [out / name for name in contents]


def render_all(pictures: list[Picture]) -> list[dict[str, bytes]]:
    """Each picture's files; many are drawn by several processes, which takes most of a report's time."""
    from benchmark.report.drawing import render  # noqa: PLC0415 - only who draws waits for the libraries to load

    if len(pictures) < MANY:
        return [*map(render, pictures)]
    with ProcessPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        return [*pool.map(render, pictures)]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_inputs(out: Path) -> dict[str, Any]:
    """Digests of the pictures of an earlier report: of the numbers they were drawn from, and of their files."""
    try:
        inputs = json.loads((out / INPUTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    entries = inputs.items() if isinstance(inputs, dict) else ()
    return {name: digests for name, digests in entries if Path(name).name == name and isinstance(digests, dict)}


def stale(report: Report, out: Path) -> list[str]:
    """What in `out` does not follow from the records, a diff or a sentence each; nothing if all does.

    Tables and page are compared byte for byte. Pictures differ with the version of matplotlib, so their numbers are
    compared, and their files, and what the page shows, with the digests that were written when they were drawn.
    """
    inputs, complaints = read_inputs(out), []
    for name, text in report.table_files().items():
        complaints += difference(name, read_bytes(out / name), text.encode())
    for picture in report.pictures:
        written = inputs.get(picture.name, {})
        if written.get("input") != picture.digest:
            complaints.append(f"figures/{picture.name} was not drawn from these records")
        for kind in KINDS:
            found = read_bytes(out / "figures" / f"{picture.name}.{kind}")
            if found is None or sha256(found) != written.get(kind):
                complaints.append(f"figures/{picture.name}.{kind} is missing, or not what was drawn")
    page = read_bytes(out / PAGE)
    shown = [sha256(content) for content in pictures_of(page or b"")]
    if page is not None and shown != [inputs.get(picture.name, {}).get("svg") for picture in report.pictures]:
        complaints.append(f"{PAGE} shows other pictures than figures/")
    complaints += difference(
        PAGE, None if page is None else without_pictures(page), without_pictures(report.page({}).encode())
    )
    made = {*report.table_files(), INPUTS} | {f"figures/{p.name}.{kind}" for p in report.pictures for kind in KINDS}
    there = [path for folder in ("tables", "figures") for path in (out / folder).glob("*")]
    foreign = sorted({path.relative_to(out).as_posix() for path in there} - made)
    return complaints + [f"{name} does not belong to the report" for name in foreign]


def read_bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def difference(name: str, found: bytes | None, expected: bytes) -> list[str]:
    if found is None:
        return [f"{name} is missing"]
    if found == expected:
        return []
    before, after = (content.decode(errors="replace").splitlines(keepends=True) for content in (found, expected))
    lines = difflib.unified_diff(before, after, f"{name} as it is", f"{name} as it should be", n=0)
    return ["\n".join(repr(line)[1:-1][:200] for line in islice(lines, DIFF_LINES))]
