"""The `bench` command: parses, calls, prints. Data goes to stdout, everything else to stderr.

Heavy imports wait inside the commands, so that `bench --help` answers at once.
"""

import errno
import json
import os
import shlex
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmark.errors import (
    BenchError,
    DataError,
    InterruptedRunError,
    MissingError,
    RegressionError,
    ResourceError,
    UsageError,
    ran_out,
)
from benchmark.processes import die_with_sweep

if TYPE_CHECKING:
    from benchmark.progress import Stop
    from benchmark.record import RunRecord

EXIT_CODES = (
    "Exit codes: 0 ok, 1 unexpected error, 2 usage or invalid configuration, 3 data or weights missing or corrupt, "
    "4 regression, 5 diverged, 6 disk or memory, 7 locked by another process, 8 part of a sweep failed, "
    "75 interrupted and resumable, 130 interrupted."
)

AT_ONCE = "interrupted at once; a state that was saved before is still there, the same command resumes"

app = typer.Typer(
    name="bench",
    help="Continual novel class discovery: run methods, build reports.",
    epilog=EXIT_CODES,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
OfflineFlag = Annotated[
    bool, typer.Option("--offline", help="Fetch nothing: say what is missing instead; also $CNCD_OFFLINE=1.")
]


def print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415

        typer.echo(version("cncd-bench"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def run(
    method: Annotated[
        str, typer.Option(help="Name of a method, or your own as path/to/mine.py:Mine (runs that file).")
    ] = "fea",
    protocol: Annotated[str, typer.Option(help="Name of a protocol, or a YAML file.")] = "digits-t2",
    seed: Annotated[int, typer.Option(help="Seed of training; splits and class order do not depend on it.")] = 0,
    backbone: Annotated[str | None, typer.Option(help="Another backbone of `bench list backbones`.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights of the backbone (safetensors or .pth).")] = None,
    budget: Annotated[str, typer.Option(help="How long to train: paper, medium or quick.")] = "paper",
    views: Annotated[str | None, typer.Option(help="Augmented views an image (2 or more), or live.")] = None,
    params: Annotated[str | None, typer.Option(help="Named parameter set, or a YAML file.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="omega=1 (method), budget.lr=0.02, shared.tau_c=1; repeatable."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; the default is torch's.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the dataset, or its parent; else $CNCD_DATA, else the cache.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of records and unfinished state.")] = Path("results"),
    offline: OfflineFlag = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Also write predictions (npz) and weights (safetensors).")
    ] = False,
    as_json: JsonFlag = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print diagnostics too, and tracebacks.")] = False,
) -> None:
    """Train and score one method on one protocol; the same command again resumes or answers from the record."""
    import benchmark  # noqa: PLC0415
    from benchmark.progress import Display  # noqa: PLC0415
    from benchmark.record import record_path  # noqa: PLC0415
    from benchmark.request import parse_setting  # noqa: PLC0415

    began = time.monotonic()
    stop = listening()
    record = benchmark.run(
        method,
        protocol,
        seed,
        backbone=backbone,
        weights=weights,
        budget=budget,
        views=views,
        params=params,
        settings=dict(map(parse_setting, settings or [])),
        device=device,
        threads=threads,
        data_dir=data_dir,
        out=out,
        offline=offline,
        keep=keep,
        display=Display(),
        stop=stop,
    )
    path = record_path(out, record.question)
    seconds = round(time.monotonic() - began, 2)
    if as_json:
        print_json({"schema": 1, "record": str(path), "metrics": vars(record.metrics()), "seconds": seconds})
        return
    typer.echo(metric_table(record))
    if verbose:
        typer.echo(json.dumps(record.diagnostics(), indent=2))
    typer.echo(f"record: {path}")


def listening() -> "Stop":
    """What signals ask for.

    SIGTERM, SIGUSR1 and the first Ctrl-C end the run at the next step, state saved; a second Ctrl-C ends it now.
    """
    from benchmark.progress import Stop  # noqa: PLC0415

    stop = Stop()

    def handle(number: int, _frame: object) -> None:
        if stop.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.signal = number

    for number in (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGUSR1", signal.SIGTERM)):
        signal.signal(number, handle)
    return stop


def metric_table(record: "RunRecord") -> str:
    """Accuracy of every session's classes after every session, and the three figures of the paper."""
    from tabulate import tabulate  # noqa: PLC0415

    from benchmark.record import stored_text  # noqa: PLC0415

    metrics = record.metrics()
    sizes = [f"C{j} ({size} classes)" for j, size in enumerate(record.sizes)]
    rows = [
        [
            f"session {t}",
            *(f"{value:.2f}" for value in row),
            *[""] * (len(sizes) - len(row)),
            f"{metrics.overall[t]:.2f}",
        ]
        for t, row in enumerate(metrics.accuracy)
    ]
    question = record.question
    heading = f"{question.method} on {question.protocol['name']}, seed {question.seed}, {record.group}: accuracy in %"
    table = tabulate(
        rows, headers=["after", *sizes, "overall"], tablefmt="simple", disable_numparse=True, stralign="right"
    )
    summary = [
        ("average accuracy", metrics.average_accuracy),
        ("average forgetting (AvF)", metrics.average_forgetting),
        ("average discovery (AvD)", metrics.average_discovery),
    ]
    figures = tabulate(
        [
            *([name, "-" if value is None else f"{value:.2f}"] for name, value in summary),
            ["stored per class", stored_text([record.stored_per_class])],
            ["extra weights", f"{record.stored.parameters:,}"],
        ],
        tablefmt="plain",
        disable_numparse=True,
    )
    return f"{heading}\n\n{table}\n\n{figures}\n"


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
    from benchmark.protocol import suggest  # noqa: PLC0415

    if kind not in KINDS:
        raise UsageError(f"cannot list '{kind}'{suggest(kind, KINDS)}")
    given = {"protocol": protocol, "method": method, "seed": seed, "status": status, "group": group}
    wanted = {key: str(value) for key, value in given.items() if value is not None}
    if kind == "runs":
        list_runs(results, wanted, as_json=as_json)
        return
    if wanted:
        raise UsageError(f"--{next(iter(wanted))} goes with `bench list runs`")
    rows = listing(kind)
    if as_json:
        print_json({"schema": 1, kind: rows})
        return
    from tabulate import tabulate  # noqa: PLC0415

    typer.echo(tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True))


def list_runs(results: Path, wanted: dict[str, str], *, as_json: bool) -> None:
    """The runs below a folder; files that are no records are named on stderr."""
    from benchmark.protocol import suggest  # noqa: PLC0415
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


def listing(kind: str) -> list[dict[str, Any]]:
    """Rows of `bench list`: what a reader of a terminal wants to know, each with a name."""
    if kind == "methods":
        import methods  # noqa: PLC0415

        return [{"name": entry.name, "title": entry.title} for entry in methods.entries().values()]
    if kind == "suites":
        from benchmark.sweep.suites import load_suite, suite_names  # noqa: PLC0415

        return [{"name": suite.name, "title": suite.title} for suite in map(load_suite, suite_names())]
    from benchmark.protocol import load_backbones, load_protocol, protocol_names  # noqa: PLC0415

    if kind == "protocols":
        protocols = map(load_protocol, protocol_names())
        return [
            {
                "name": p.name,
                "title": p.title,
                "dataset": p.data.name,
                "classes": "+".join(str(len(c)) for c in p.classes),
                "backbone": p.backbone,
            }
            for p in protocols
        ]
    if kind == "backbones":
        return [
            {"name": b.name, "architecture": b.architecture, "image_size": b.image_size, "trained_on": b.trained_on}
            for b in load_backbones().values()
        ]
    from benchmark.protocol import load_datasets  # noqa: PLC0415

    return [{"name": d.name, "title": d.title, "classes": d.classes} for d in load_datasets().values()]


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
        told = "\n".join(complaints) if complaints else f"{place} follows from the {len(built.runs)} published records"
        typer.echo(told)
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


new_app = typer.Typer(help="Write a file to begin with: a protocol, a backbone or a method of your own.")
app.add_typer(new_app, name="new", rich_help_panel=None)
OutOption = Annotated[Path | None, typer.Option(help="The file to write; none that is there is overwritten.")]


@new_app.command("protocol")
def new_protocol(
    data: Annotated[Path, typer.Option(help="Folder of train/<class>/* and test/<class>/*, or of <class>/*.")],
    sessions: Annotated[str, typer.Option(help="Classes of every session, the labelled ones first: 6+2+2.")],
    backbone: Annotated[str, typer.Option(help="A backbone of `bench list backbones`.")] = "vit-s14-dinov2-112",
    out: OutOption = None,
) -> None:
    """Write a protocol for a folder of your own images."""
    from benchmark import scaffold  # noqa: PLC0415

    path, found = scaffold.new_protocol(data, sessions, backbone, out)
    typer.echo(found, err=True)
    typer.echo(f"wrote {path}: bench run --protocol {path}")


@new_app.command("backbone")
def new_backbone(
    timm: Annotated[
        str, typer.Option(help="Name of a vision transformer of timm, such as vit_small_patch16_224.dino.")
    ],
    weights: Annotated[Path | None, typer.Option(help="Its weights (safetensors or .pth).")] = None,
    image_size: Annotated[int | None, typer.Option(min=4, help="Pixels a side, if not as it was trained.")] = None,
    out: OutOption = None,
) -> None:
    """Write a backbone file, with all that timm knows of it."""
    from benchmark import scaffold  # noqa: PLC0415

    path = scaffold.new_backbone(timm, weights, image_size, out)
    typer.echo(f"wrote {path}: bench run --backbone {path} --weights {weights or 'FILE'} --protocol ...")


@new_app.command("method")
def new_method(
    name: Annotated[str, typer.Argument(help="What to call it.")],
    out: OutOption = None,
) -> None:
    """Write a method that runs as it is, to be changed."""
    from benchmark import scaffold  # noqa: PLC0415

    path, cls = scaffold.new_method(name, out)
    typer.echo(f"wrote {path}: bench try {path}:{cls}, then bench run --method {path}:{cls}")


@app.command("try")
def try_method(
    method: Annotated[str, typer.Argument(help="Your own method as path/to/mine.py:Mine (runs that file), or a name.")],
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for bench run.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Try whether a method keeps the contract, in under a minute; what does not hold is explained (exit code 2)."""
    from benchmark import trial  # noqa: PLC0415
    from benchmark.progress import Display  # noqa: PLC0415
    from benchmark.request import parse_setting  # noqa: PLC0415

    verdict = trial.attempt(method, dict(map(parse_setting, settings or [])), Display())
    if as_json:
        print_json({"schema": 1, **verdict.document()})
    else:
        typer.echo(verdict.text())
    if verdict.failed:
        raise UsageError(f"{method} fails {len(verdict.failed)} of {len(verdict.findings)} checks")


@app.command()
def reproduce(
    run: Annotated[str, typer.Argument(help="Name, file or key of a run; a part will do if no other run shares it.")],
    results: Annotated[Path, typer.Option(help="Folder that holds published/ and runs/.")] = Path("results"),
    offline: OfflineFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a recorded run again and compare: the same bits on such a machine, else within the spread of its seeds."""
    from benchmark import reproduce as remaking  # noqa: PLC0415
    from benchmark.progress import Display  # noqa: PLC0415

    stop = listening()
    result = remaking.reproduce(results, run, offline=offline, display=Display(), stop=stop)
    if as_json:
        print_json({"schema": 1, **result.document(), "complaint": result.complaint})
    else:
        typer.echo(result.text())
    if result.complaint:
        raise RegressionError(f"{result.run} was not reproduced: {result.complaint}")


@app.command()
def publish(
    runs: Annotated[list[str], typer.Argument(help="Own runs by name, file or key; a part will do if it is unique.")],
    results: Annotated[Path, typer.Option(help="Folder that holds published/ and runs/.")] = Path("results"),
    as_json: JsonFlag = False,
) -> None:
    """Move own records to the published ones, if anybody could make them again; else say what is missing."""
    from benchmark import publish as publishing  # noqa: PLC0415

    moved = publishing.publish(results, runs)
    if as_json:
        print_json({"schema": 1, "published": [path.as_posix() for path in moved]})
        return
    for path in moved:
        typer.echo(path.as_posix())
    typer.echo("now run `bench report --published`, and commit results/", err=True)


@app.command()
def sweep(
    suite: Annotated[
        str | None, typer.Option(help="A suite of `bench list suites`, or a YAML file; or give methods and protocols.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, divided by commas; of a suite, only these.")] = None,
    protocols: Annotated[str | None, typer.Option(help="Protocols, likewise.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, such as 0-2 or 0,3,7.")] = None,
    params: Annotated[str | None, typer.Option(help="Parameter sets, divided by commas.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE,...", help="As for bench run; several values make several runs."),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="How long to train: paper, medium or quick.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Another backbone than the protocols'.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights of the backbone.")] = None,
    views: Annotated[str | None, typer.Option(help="Augmented views an image (2 or more), or live.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the datasets.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of records, plan and logs.")] = Path("results"),
    name: Annotated[str | None, typer.Option(help="What to call the sweep; else it gets a name.")] = None,
    engine: Annotated[str, typer.Option(help="local: this machine; slurm: submit jobs.")] = "local",
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at once; on Slurm, tasks of an array at once.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of a run; else its share of the cores.")
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores of a machine; tokens are made with all.")] = None,
    runs_per_job: Annotated[int, typer.Option(min=1, help="Slurm: runs of one job.")] = 1,
    minutes: Annotated[int | None, typer.Option(min=5, help="Slurm: time limit of a job.")] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option(help="Slurm: another option for sbatch, such as --partition=gpu; repeatable.")
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Begin nothing more once a step has failed.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Only steps that failed before.")] = False,
    offline: OfflineFlag = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Only say how a sweep stands.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Many runs from one plan; what is done is left out, so the same command again goes on or tries again."""
    from benchmark.sweep import command, slurm  # noqa: PLC0415
    from benchmark.sweep.display import SweepDisplay  # noqa: PLC0415
    from benchmark.sweep.status import chosen_sweep, plan_text, read_status  # noqa: PLC0415
    from benchmark.sweep.suites import Common  # noqa: PLC0415

    def parts(text: str | None) -> list[str]:
        return [part.strip() for part in text.split(",")] if text else []

    if engine not in ("local", "slurm"):
        raise UsageError(f"--engine: '{engine}': must be local or slurm")
    common = Common(budget, backbone, weights, views, data_dir)
    choice = command.Choice(suite, parts(methods), parts(protocols), seeds, parts(params), settings or [], common, name)
    if status:
        which = name if name or choice.is_empty else choice.title(choice.blocks())
        found = read_status(chosen_sweep(out, which))
        hint = slurm.queued(found.folder)
        if as_json:
            print_json({"schema": 1, **found.document(), "queue": hint})
        else:
            typer.echo("\n".join([found.text(), *([""] if hint else []), *(f"in the queue: {line}" for line in hint)]))
        return
    from benchmark.fetch import is_offline  # noqa: PLC0415

    stop = listening()
    on_slurm = engine == "slurm"
    if device != "auto" and not on_slurm:
        from benchmark.setting import pick_device  # noqa: PLC0415 - imports torch

        pick_device(device)
    machine = (
        command.Machine.of_cluster(threads, cores, device)
        if on_slurm
        else command.Machine.here(jobs, threads, cores, device)
    )
    plan = command.planned(choice, out, machine)
    if dry_run:
        told = {"runs": plan.runs, "done": plan.done, "steps": [vars(step) for step in plan.steps]}
        told |= {"bytes": plan.bytes, "missing": plan.missing}
        print_json({"schema": 1, **told}) if as_json else typer.echo(plan_text(plan, machine.jobs))
        return
    if plan.missing and is_offline(offline):
        raise MissingError(
            f"{', '.join(plan.missing)} must be fetched first: leave --offline out, or use `bench fetch`"
        )
    plan = command.brought_here(plan, lambda: command.planned(choice, out, machine), stop)
    path = plan.write()
    if retry_failed:
        plan = command.only_failed(plan)
    typer.echo(f"{plan.runs} runs, {plan.done} done, {len(plan.of('run'))} to do; plan: {path}", err=True)
    if on_slurm:
        cluster = slurm.Cluster(jobs or 0, runs_per_job, minutes, tuple(sbatch or ()), device.startswith("cuda"))
        lines = command.submitted(plan, cluster) if plan.steps else []
        where = f"bench sweep --status --name {plan.name} --out {shlex.quote(str(out))}"
        typer.echo("\n".join([*lines, f"how it stands: {where}"]))
        return
    pool = command.carried_out(plan, machine, fail_fast=fail_fast, display=SweepDisplay(), stop=stop)
    found = read_status(plan.folder)
    print_json({"schema": 1, **found.document()}) if as_json else typer.echo(found.text())
    command.raise_for(pool, plan)
    command.raise_for_diverged(pool, plan)


@app.command()
def step(
    plan: Annotated[Path, typer.Argument(help="The plan.jsonl of a sweep.")],
    names: Annotated[list[str] | None, typer.Argument(help="Steps by name; none: all, or those of a task.")] = None,
    kind: Annotated[str | None, typer.Option(help="Steps of this kind only: fetch, bank, base or run.")] = None,
    task: Annotated[int | None, typer.Option(min=0, help="The number of this task, of an array of tasks.")] = None,
    per_task: Annotated[int, typer.Option(min=1, help="Steps of a task.")] = 1,
    skip: Annotated[int, typer.Option(min=0, help="Steps that other arrays have.")] = 0,
) -> None:
    """Carry out steps of a plan, one after the other: what jobs of a cluster call. What is done is not done again."""
    from benchmark.protocol import suggest  # noqa: PLC0415
    from benchmark.sweep import command  # noqa: PLC0415
    from benchmark.sweep.plan import KINDS  # noqa: PLC0415

    chosen = next((known for known in KINDS if known == kind), None)
    if kind is not None and chosen is None:
        raise UsageError(f"--kind: unknown kind '{kind}'{suggest(kind, KINDS)}")
    steps, known = command.chosen_steps(plan, names or [], chosen, task, per_task, skip)
    code = command.carry(plan, steps, known, listening(), lambda text: typer.echo(text, err=True))
    if code:
        raise typer.Exit(code)


@app.command()
def base(
    protocol: Annotated[str, typer.Option(help="Name of a protocol, or a YAML file.")] = "digits-t2",
    seed: Annotated[int, typer.Option(help="Seed of training.")] = 0,
    backbone: Annotated[str | None, typer.Option(help="Another backbone than the protocol's.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights of the backbone.")] = None,
    budget: Annotated[str, typer.Option(help="How long to train: paper, medium or quick.")] = "paper",
    views: Annotated[str | None, typer.Option(help="Augmented views an image, or live.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for bench run.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; the default is torch's.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the dataset, or its parent.")] = None,
    offline: OfflineFlag = False,
) -> None:
    """Train the base session that all methods share; runs then find it. The same command again resumes."""
    from benchmark.base_session import trained_beforehand  # noqa: PLC0415
    from benchmark.fetch import Fetching, is_offline  # noqa: PLC0415
    from benchmark.progress import Display  # noqa: PLC0415
    from benchmark.request import Lookups, ask, parse_setting  # noqa: PLC0415

    stop = listening()
    request = ask(
        "kmeans",  # nothing of a method plays a part
        protocol,
        seed,
        backbone=backbone,
        weights=weights,
        budget=budget,
        views=views,
        settings=dict(map(parse_setting, settings or [])),
        data_dir=data_dir,
        lookups=Lookups(None if is_offline(offline) else Fetching(stop)),
    )
    typer.echo(trained_beforehand(request, device, threads, Display(), stop))


@app.command()
def check(
    method: Annotated[list[str] | None, typer.Option(help="Only this method; repeatable.")] = None,
    golden: Annotated[Path | None, typer.Option(help="Another file of golden figures than the suite's own.")] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Write the golden figures anew, with five seeds, and show what moved.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train all methods briefly on the small protocol and compare with golden figures (exit code 4 if they moved)."""
    from benchmark import check as gate  # noqa: PLC0415

    result = gate.check(golden or gate.golden_path(), method or [], update=update, stop=listening())
    if as_json:
        print_json({"schema": 1, **result.document()})
    else:
        typer.echo(result.text())
    if update:
        typer.echo(f"wrote {result.golden}", err=True)
    elif result.complaint:
        raise RegressionError(f"{result.complaint}; if that is meant: bench check --update")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A dataset or a backbone of `bench list`.")],
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder to put a dataset into; else $CNCD_DATA, else the cache.")
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(help="Use this address instead: http(s)://..., or hub:owner/name@REVISION/file; repeatable."),
    ] = None,
    accept_digest: Annotated[
        bool, typer.Option("--accept-digest", help="Take a file whose digest nobody has registered.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds a server may be silent.")] = 30.0,
) -> None:
    """Download a dataset or a backbone's weights, checked; the same command again continues or finds it there."""
    from benchmark.fetch import Wish  # noqa: PLC0415
    from benchmark.fetch import fetch as carry  # noqa: PLC0415
    from benchmark.progress import Display  # noqa: PLC0415

    stop = listening()
    with Display() as display:
        place = carry(name, data_dir, Wish(tuple(source or ()), timeout, accept_digest), display, stop)
    typer.echo(str(place))


@app.command()
def bank(
    protocol: Annotated[str | None, typer.Option(help="Build the tokens of this protocol; none: list banks.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Another backbone than the protocol's.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights of the backbone.")] = None,
    views: Annotated[str | None, typer.Option(help="Augmented views an image, or live.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for bench run.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the dataset, or its parent.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; the default is torch's.")] = None,
    offline: OfflineFlag = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what it would take on disk.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read all files of all banks, check digests.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Remove damaged files and what dead builders left.")] = False,
    unused: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="With --prune: banks unused for so many days, too.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Build the tokens a protocol needs, or look after those that are there."""
    from benchmark import bank_command  # noqa: PLC0415
    from benchmark.fetch import Fetching, is_offline  # noqa: PLC0415
    from benchmark.protocol import load_backbone, load_protocol  # noqa: PLC0415
    from benchmark.request import Lookups, ask, parse_setting  # noqa: PLC0415

    stop = listening()
    if protocol is not None and (verify or prune):
        raise UsageError("--verify and --prune look after all banks: leave --protocol out")
    if (plan and protocol is None) or (unused is not None and not prune):
        raise UsageError("--plan goes with --protocol, and --unused with --prune")
    if protocol is None:
        result = bank_command.look_after(verify=verify, prune=prune, unused=unused)
    else:
        try:
            request = ask(
                "fea",
                protocol,
                backbone=backbone,
                weights=weights,
                views=views,
                settings=dict(map(parse_setting, settings or [])),
                data_dir=data_dir,
                lookups=Lookups(None if plan or is_offline(offline) else Fetching(stop)),
            )
            result = bank_command.plan_request(request) if plan else bank_command.build(request, device, threads, stop)
        except MissingError:
            if not plan:
                raise
            chosen, changes = load_protocol(protocol, data_dir), dict(map(parse_setting, settings or []))
            result = bank_command.plan_complete(chosen, load_backbone(backbone or chosen.backbone), views, changes)
    if as_json:
        print_json({"schema": 1, **result.document})
    else:
        typer.echo(result.text)
    if result.complaint:
        raise DataError(result.complaint)


@app.command()
def speed(
    backbone: Annotated[str, typer.Option(help="A backbone of `bench list`; its weights are random.")] = "vit-b16-dino",
    batch: Annotated[int, typer.Option(min=2, help="Images a step.")] = 64,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; the default is torch's.")] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(help="Predict the cost of this protocol too; repeatable."),
    ] = None,
    budget: Annotated[str, typer.Option(help="Budget of the prediction.")] = "paper",
    as_json: JsonFlag = False,
) -> None:
    """Measure what caching tokens gains on this machine, side by side with the usual way; no data needed."""
    from benchmark import speed as stopwatch  # noqa: PLC0415
    from benchmark.protocol import load_backbone, load_protocol  # noqa: PLC0415
    from benchmark.setting import pick_device  # noqa: PLC0415

    spec = load_backbone(backbone)
    protocols = [
        stopwatch.predictable(load_protocol(name), budget)
        for name in ("cifar10-t2", "cifar100-t5", "tiny-t10", *(protocol or ()))
    ]
    told = stopwatch.measure(spec, batch, pick_device(device), threads, lambda line: typer.echo(line, err=True))
    predictions = [stopwatch.predict(told, one, budget) for one in protocols]
    if as_json:
        print_json({"schema": 1, **stopwatch.document(told, predictions)})
    else:
        typer.echo(stopwatch.text(told, predictions))


def print_json(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, allow_nan=False))


def main() -> None:
    """Run the command; every expected failure becomes one sentence and its documented exit code."""
    die_with_sweep()
    sys.exit(guarded())


def guarded() -> int:
    try:
        words = sys.argv[1:]
        result = app([*words, "--help"] if words in ([], ["new"]) else words, standalone_mode=False)
    except Exception as error:  # noqa: BLE001 - the one place where everything that went wrong becomes a sentence
        if "--verbose" in sys.argv:
            traceback.print_exc()
        return code_of(error)
    except KeyboardInterrupt:
        return fail(AT_ONCE, 130)
    if result == 130:  # the library of the command line has taken Ctrl-C for an answer
        return fail(AT_ONCE, 130)
    return result if isinstance(result, int) else 0


def code_of(error: Exception) -> int:
    """Say in one sentence what went wrong; the exit code that goes with it."""
    match error:
        case InterruptedRunError():
            return fail(str(error), 130 if error.signal == signal.SIGINT else error.code)
        case BenchError():
            return fail(str(error), error.code)
        case typer.TyperException():  # wrong options, found while parsing
            return fail(f"{error.format_message().rstrip('.')} (see bench --help)", UsageError.code)
        case typer.Exit():
            return error.exit_code
        case typer.Abort():
            return fail("interrupted", 130)
        case UnicodeError():
            return fail(f"a name or a text cannot be read: {error.reason if hasattr(error, 'reason') else error}", 2)
        case OSError():
            return fail_for_resource(error)
        case MemoryError() | RuntimeError() if isinstance(error, MemoryError) or ran_out(str(error)):
            return fail("out of memory: try a smaller batch (--set budget.batch=32) or fewer views", ResourceError.code)
    hint = "--verbose shows where; " if sys.argv[1:2] == ["run"] else ""
    return fail(f"unexpected {type(error).__name__}: {error} ({hint}please report it if it is ours)", 1)


def fail_for_resource(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader went away; say nothing more
        return 0
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        where = error.filename or "a file"
        return fail(f"no space left writing {where}: free some, then the same command resumes", ResourceError.code)
    if error.errno == errno.EIO:
        told = f"the disk failed writing {error.filename or 'a file'} ({error.strerror})"
        return fail(f"{told}: what was saved before is kept, the same command resumes", ResourceError.code)
    return fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), UsageError.code)


def fail(sentence: str, code: int) -> int:
    typer.echo(f"bench: {' '.join(sentence.split())}", err=True)
    return code


if __name__ == "__main__":
    main()
