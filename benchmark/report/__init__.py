"""The report: tables as pure functions of the records. No torch, no method code, no network."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.errors import UsageError
from benchmark.files import atomic_write, make_folder
from benchmark.report.frames import METRICS, cells, long_frame, read_all
from benchmark.report.tables import to_csv, to_latex, to_markdown


@dataclass(frozen=True)
class Built:
    """What a report is made of."""

    text: str
    records: int
    refused: list[str]
    files: list[str]
    tables: dict[str, list[dict[str, Any]]]


def build(results: Path, out: Path) -> Built:
    """Read every record below `results`, write the tables below `out`, and return them as text too."""
    if not (results / "runs").is_dir():
        raise UsageError(f"there are no records in {results / 'runs'}: make one with `bench run`")
    records, refused = read_all(results)
    frame = long_frame(records)
    if frame.empty:
        raise UsageError(f"there is no finished run in {results / 'runs'}: make one with `bench run`")
    folder = make_folder(out / "tables")
    files, texts, tables = [], [], {}
    for metric in METRICS:
        table = cells(frame, metric.name)
        texts.append(to_markdown(table, metric))
        for suffix, text in (("md", texts[-1]), ("csv", to_csv(table)), ("tex", to_latex(table, metric))):
            path = folder / f"{metric.name}.{suffix}"
            atomic_write(path, text.encode())
            files.append(str(path))
        tables[metric.name] = json.loads(table.to_json(orient="records"))
    return Built("\n".join(texts), len(records), refused, files, tables)
