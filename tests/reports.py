"""What the tests of the report share."""

import csv
import io
from pathlib import Path

import pytest
from records import fill, save

from benchmark.report import compose, write


@pytest.fixture(scope="session")
def full(tmp_path_factory) -> Path:
    """A folder of synthetic records that covers every table and figure of the paper, with its report.

    Three cells are worked out by hand below: they get accuracies of their own.
    """
    folder = tmp_path_factory.mktemp("full")
    fill(folder)
    for seed, shift in enumerate((0, 1, -1)):
        worked = [[90 + shift], [80 + shift, 60 + shift], [70 + shift, 50 + shift, 40 + shift]]
        save(folder, "fea", "cifar10-t2", seed, worked)
        save(folder, "frost", "cifar100-t2", seed, [[83], [82, 60], [81, 70, 64]])
    write(compose(folder), folder)
    return folder


def lines(folder: Path, table: str, **wanted: str) -> list[dict[str, str]]:
    rows = csv.DictReader(io.StringIO((folder / "tables" / f"{table}.csv").read_text()))
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def line(folder: Path, table: str, **wanted: str) -> dict[str, str]:
    (found,) = lines(folder, table, **wanted)
    return found
