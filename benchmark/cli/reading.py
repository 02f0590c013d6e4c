"""Commands that read records: list, show, report, compare, plot."""

from pathlib import Path
from typing import Annotated

import typer

from benchmark.cli.app import JsonFlag, app, print_json
from benchmark.errors import RegressionError, UsageError

KINDS = ("methods", "protocols", "suites", "backbones", "datasets", "runs")


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help=", ".join(KINDS))],
    protocol: Annotated[str | None, typer.Option(help="Runs of this protocol only.")] = None,
    method: Annotated[str | None, typer.Option(help="Runs of this method only.")] = None,
    seed: Annotated[int | None, typer.Option(help="Runs with this seed only.")] = None,
    status: Annotated[str | None, typer.Option(help="done, partial or diverged runs only.")] = None,
    group: Annotated[str | None, typer.Option(help="Runs whose group contains this text only.")] = None,
    results: Annotated[Path, typer.Option(help="Folder that holds published/ and runs/.")] = Path("results"),
    as_json: JsonFlag = False,
) -> None:
    """List what there is."""
    from benchmark.protocol.reading import suggest  # noqa: PLC0415

    if kind not in KINDS:
        raise UsageError(f"cannot list '{kind}'{suggest(kind, KINDS)}")
    given = {"protocol": protocol, "method": method, "seed": seed, "status": status, "group": group}
    wanted = {key: str(value) for key, value in given.items() if value is not None}
    if kind == "runs":
        list_runs(results, wanted, as_json=as_json)
        return
    if wanted:
        raise UsageError(f"--{next(iter(wanted))} goes with `bench list runs`")
    from benchmark.listing import listing  # noqa: PLC0415

    rows = listing(kind)
    if as_json:
        print_json({"schema": 1, kind: rows})
        return
    from tabulate import tabulate  # noqa: PLC0415

    typer.echo(tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True))


def list_runs(results: Path, wanted: dict[str, str], *, as_json: bool) -> None:
    """The runs below a folder; files that are no records are named on stderr."""
    from benchmark.protocol.reading import suggest  # noqa: PLC0415
    from benchmark.report import single  # noqa: PLC0415

    known = ("done", "partial", "diverged")
    if wanted.get("status", "done") not in known:
        raise UsageError(f"no run has the status '{wanted['status']}'{suggest(wanted['status'], known)}")
    found = single.listed(results, wanted)
    for line in (*found.refused, *found.repeated):
        typer.echo(f"bench: {line}", err=True)
    if as_json:
        print_json({"schema": 1, "runs": [*map(single.row, found.runs)]})
    else:
        typer.echo(single.run_list(found.runs))


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="Name, file or key of a run; a part will do if no other run shares it.")],
    results: Annotated[Path, typer.Option(help="Folder that holds published/ and runs/.")] = Path("results"),
    as_json: JsonFlag = False,
) -> None:
    """Show one run: its figures, accuracy by session, assignment, command and provenance."""
    from benchmark.report import single  # noqa: PLC0415

    found = single.chosen(results, run)
    if as_json:
        print_json({"schema": 1, **single.document(found)})
    else:
        typer.echo(single.run_text(found))


@app.command()
def report(
    results: Annotated[Path, typer.Option(help="Folder that holds published/ and runs/.")] = Path("results"),
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables/, figures/ and index.html; the default is RESULTS/report.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Published records only, written to RESULTS: what is committed.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 4 with a diff if what is committed is not up to date.")
    ] = False,
    protocol: Annotated[list[str] | None, typer.Option(help="Runs of this protocol only; repeatable.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Runs of this method only; repeatable.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Build every table and figure, and one page with all of them, from published records and your own (marked).

    With --protocol or --method, tables of those runs alone are printed; files are written only with --out.
    """
    from benchmark import report as reporting  # noqa: PLC0415

    committed = published or check
    if protocol or method:
        if committed:
            raise UsageError("--published and --check are about all records: leave --protocol and --method out")
        some = reporting.compose(results, protocols=protocol or [], methods=method or [])
        files = [] if out is None else [path.as_posix() for path in reporting.write(some, out)]
        print_json({"schema": 1, **some.document(), "files": files}) if as_json else typer.echo(some.text)
        return
    place = out or (results if committed else results / "report")
    built = reporting.compose(results, own=not committed)
    for line in (*built.refused, *built.repeated):
        typer.echo(f"bench: {line}", err=True)
    complaints = reporting.stale(built, place) if check else []
    files = [] if check else [path.as_posix() for path in reporting.write(built, place)]
    if as_json:
        print_json({"schema": 1, **built.document(), "files": files, "stale": complaints})
    elif check:
        answer = (
            "\n".join(complaints) if complaints else f"{place} follows from the {len(built.runs)} published records"
        )
        typer.echo(answer)
    else:
        typer.echo(built.text)
        typer.echo(f"wrote {len(files)} files; all on one page: {(place / reporting.PAGE).as_posix()}")
    if complaints:
        again = "run `bench report --published` and commit it"
        raise RegressionError(f"{place} does not follow from the records in {results / 'published'}: {again}")


@app.command()
def compare(
    first: Annotated[str, typer.Argument(help="A method, or fea:omega=1 for one with that changed.")],
    second: Annotated[str, typer.Argument(help="Another.")],
    protocol: Annotated[str | None, typer.Option(help="On this protocol only.")] = None,
    group: Annotated[str | None, typer.Option(help="Runs whose group contains this text only.")] = None,
    results: Annotated[Path, typer.Option(help="Folder that holds published/ and runs/.")] = Path("results"),
    as_json: JsonFlag = False,
) -> None:
    """Compare two methods, paired by seed: differences with 95 % intervals, in all and session by session."""
    from benchmark.report import reading  # noqa: PLC0415

    found = reading.compared(results, first, second, protocol, group)
    if as_json:
        print_json({"schema": 1, "first": first, "second": second, "comparisons": [one.document() for one in found]})
    else:
        typer.echo("\n\n".join(one.text(first, second) for one in found))


@app.command()
def plot(
    protocol: Annotated[str, typer.Option(help="Name of a protocol.")] = "digits-t2",
    methods: Annotated[str | None, typer.Option(help="Methods, divided by commas; none: all.")] = None,
    metric: Annotated[str, typer.Option(help="overall, known or novel: accuracy by session.")] = "overall",
    group: Annotated[str | None, typer.Option(help="Runs whose group contains this text only.")] = None,
    results: Annotated[Path, typer.Option(help="Folder that holds published/ and runs/.")] = Path("results"),
    out: Annotated[
        Path | None, typer.Option(help="File to write (.png, .svg or .pdf); none: all three, in the current folder.")
    ] = None,
) -> None:
    """Draw one figure, as wide as a column of a paper."""
    from benchmark.files import atomic_write, make_folder  # noqa: PLC0415
    from benchmark.report import reading  # noqa: PLC0415

    kinds = ("png", "svg", "pdf")
    if out is not None and out.suffix[1:] not in kinds:
        raise UsageError(f"--out: {out}: must end in .png, .svg or .pdf")
    wanted = [part.strip() for part in methods.split(",")] if methods else []
    name = f"{protocol}-{metric}" if out is None else out.stem
    picture = reading.curve_picture(results, wanted, protocol, metric, group, name)
    from benchmark.report.drawing import render  # noqa: PLC0415 - the drawing libraries take a second to load

    folder = Path() if out is None else make_folder(out.parent)
    for kind, content in render(picture, kinds if out is None else (out.suffix[1:],)).items():
        atomic_write(folder / f"{name}.{kind}", content)
        typer.echo((folder / f"{name}.{kind}").as_posix())
