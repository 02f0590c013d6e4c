"""What all commands share: the application, options that many take, JSON on stdout, signals."""

import json
import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from benchmark.display import Stop

EXIT_CODES = (
    "Exit codes: 0 ok, 1 unexpected error, 2 usage or invalid configuration, 3 data or weights missing or corrupt, "
    "4 regression, 5 diverged, 6 disk or memory, 7 locked by another process, 8 part of a sweep failed, "
    "75 interrupted and resumable, 130 interrupted."
)

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


def listening() -> "Stop":
    """What signals ask for.

    SIGTERM, SIGUSR1 and the first Ctrl-C end the run at the next step, state saved; a second Ctrl-C ends it now.
    """
    from benchmark.display import Stop  # noqa: PLC0415

    stop = Stop()

    def handle(number: int, _frame: object) -> None:
        if stop.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.signal = number

    for number in (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGUSR1", signal.SIGTERM)):
        signal.signal(number, handle)
    return stop


def print_json(document: dict[str, Any]) -> None:
    typer.echo(json.dumps(document, allow_nan=False))
