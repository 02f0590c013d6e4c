"""Commands that train, and what they need before: run, base, fetch, bank."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmark.cli.app import JsonFlag, OfflineFlag, app, listening, print_json
from benchmark.errors import DataError, MissingError, UsageError


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
    from benchmark.display import Display  # noqa: PLC0415
    from benchmark.protocol.overrides import parse_setting  # noqa: PLC0415
    from benchmark.records.record import record_path  # noqa: PLC0415
    from benchmark.records.text import record_text  # noqa: PLC0415

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
    typer.echo(record_text(record))
    if verbose:
        typer.echo(json.dumps(record.diagnostics(), indent=2))
    typer.echo(f"record: {path}")


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
    from benchmark.data.fetch import Fetching, is_offline  # noqa: PLC0415
    from benchmark.display import Display  # noqa: PLC0415
    from benchmark.engine.base_session import trained_beforehand  # noqa: PLC0415
    from benchmark.engine.request import Lookups, ask  # noqa: PLC0415
    from benchmark.protocol.overrides import parse_setting  # noqa: PLC0415

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
    from benchmark.data.fetch import FetchOptions  # noqa: PLC0415
    from benchmark.data.fetch import fetch as download  # noqa: PLC0415
    from benchmark.display import Display  # noqa: PLC0415

    stop = listening()
    with Display() as display:
        place = download(name, data_dir, FetchOptions(tuple(source or ()), timeout, accept_digest), display, stop)
    typer.echo(str(place))


@app.command()
def bank(
    protocol: Annotated[str | None, typer.Option(help="Build the tokens of this protocol; none: list banks.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Another backbone than the protocol's.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights of the backbone.")] = None,
    views: Annotated[str | None, typer.Option(help="Augmented views an image, or live.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="shared.* alone: tokens depend on no other."),
    ] = None,
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
    from benchmark.data.fetch import Fetching, is_offline  # noqa: PLC0415
    from benchmark.engine.request import Lookups, ask_tokens  # noqa: PLC0415
    from benchmark.engine.world import pick_device  # noqa: PLC0415
    from benchmark.protocol.catalogue import load_backbone  # noqa: PLC0415
    from benchmark.protocol.overrides import parse_setting  # noqa: PLC0415
    from benchmark.protocol.protocols import load_protocol  # noqa: PLC0415
    from benchmark.tokens import bank_command  # noqa: PLC0415

    stop = listening()
    if protocol is not None and (verify or prune):
        raise UsageError("--verify and --prune look after all banks: leave --protocol out")
    if (plan and protocol is None) or (unused is not None and not prune):
        raise UsageError("--plan goes with --protocol, and --unused with --prune")
    if protocol is None:
        result = bank_command.look_after(verify=verify, prune=prune, unused=unused)
    else:
        try:
            wanted = ask_tokens(
                protocol,
                backbone=backbone,
                weights=weights,
                views=views,
                settings=dict(map(parse_setting, settings or [])),
                data_dir=data_dir,
                lookups=Lookups(None if plan or is_offline(offline) else Fetching(stop)),
            )
            if plan:
                result = bank_command.plan_here(wanted)
            else:
                result = bank_command.build(wanted, pick_device(device), threads, stop)
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
