"""Commands for authors and maintainers: new, try, reproduce, publish, check, speed."""

import functools
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmark.cli.app import JsonFlag, OfflineFlag, app, listening, print_json
from benchmark.errors import RegressionError, UsageError

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
    from benchmark.display import Display  # noqa: PLC0415
    from benchmark.protocol.overrides import parse_setting  # noqa: PLC0415

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
    weights: Annotated[Path | None, typer.Option(help="Where the same weights are here, if not fetched.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the same images are here, if not fetched.")] = None,
    offline: OfflineFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a recorded run again and compare: the same bits on such a machine, else within the spread of its seeds."""
    from benchmark import reproduce as remaking  # noqa: PLC0415
    from benchmark.display import Display  # noqa: PLC0415

    stop = listening()
    files = {"weights": weights, "data_dir": data_dir}
    result = remaking.reproduce(results, run, **files, offline=offline, display=Display(), stop=stop)
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
    tricks: Annotated[bool, typer.Option("--tricks", help="What each trick of the step gains, instead.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure what caching tokens gains on this machine, side by side with the usual way; no data needed."""
    from benchmark import prediction  # noqa: PLC0415
    from benchmark import speed as stopwatch  # noqa: PLC0415
    from benchmark.engine.world import pick_device  # noqa: PLC0415
    from benchmark.protocol.catalogue import load_backbone  # noqa: PLC0415
    from benchmark.protocol.protocols import load_protocol  # noqa: PLC0415

    spec = load_backbone(backbone)
    protocols = [
        prediction.predictable(load_protocol(name), budget)
        for name in ("cifar10-t2", "cifar100-t5", "tiny-t10", *(protocol or ()))
    ]
    where, say = pick_device(device), functools.partial(typer.echo, err=True)
    if tricks:
        from benchmark.tricks import price, prices_text  # noqa: PLC0415

        prices = price(spec, batch, where, threads, say)
        if as_json:
            print_json({"schema": 1, **asdict(prices)})
        else:
            typer.echo(prices_text(prices))
        return
    measured = stopwatch.measure(spec, batch, where, threads, say)
    predictions = [prediction.predict(measured, one, budget) for one in protocols]
    if as_json:
        print_json({"schema": 1, **prediction.document(measured, predictions)})
    else:
        typer.echo(prediction.text(measured, predictions))
