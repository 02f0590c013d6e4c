"""The picture of docs/readings.md: how long each term's gradient is, epoch by epoch, for three ways to run FEA."""

from pathlib import Path

from benchmark.records.reading import read_record
from benchmark.records.record import RunRecord

HERE = Path(__file__).resolve().parent
WATCHED = HERE.parent / "results" / "readings" / "watched"
PICTURE = HERE / "readings-pulls.png"
TERMS = ("replay", "distil", "contrast", "label", "guide", "css", "bap")
TITLES = {
    "1-letter": "FEA to the letter",
    "2-letter-clipped": "to the letter, clipped",
    "3-chosen": "as chosen, clipped",
}
COLOURS = {term: f"C{number}" for number, term in enumerate(TERMS)}


def watched() -> dict[str, RunRecord]:
    """Runs of docs/watched_fea.py by the name of their file; their method is not of the suite, so they lie apart."""
    return {path.stem: read_record(path) for path in sorted(WATCHED.glob("*.json"))}


def curve(record: RunRecord, figure: str) -> list[float]:
    """A figure by epoch, session after session."""
    curves = (session.phases[0].diagnostics[figure] for session in record.sessions[1:])
    return [float("nan") if value is None else value for values in curves for value in values]


def draw(records: dict[str, RunRecord]) -> None:
    """A column for each run: gradients on the block, gradients on the rows of known classes, and what comes of it."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - takes a second, and only a picture needs it

    figure, axes = plt.subplots(
        3, len(records), figsize=(5 * len(records), 8), sharex=True, sharey="row", squeeze=False
    )
    for column, (name, record) in enumerate(records.items()):
        figures = record.sessions[1].phases[0].diagnostics
        for row, prefix in enumerate(("block_", "known_")):
            for key in figures:
                values = curve(record, key)
                if key.startswith(prefix) and max(v for v in values if v == v) > 0:  # noqa: PLR0124 - not a number
                    axes[row][column].semilogy(values, label=key.removeprefix(prefix), color=COLOURS[key.split("_")[1]])
            axes[row][column].legend(fontsize=7, ncols=2)
        axes[2][column].plot(curve(record, "share_on_new_rows"), label="share on new rows", color="tab:green")
        axes[2][column].plot(curve(record, "distance_to_teacher"), label="features moved by", color="tab:red")
        axes[2][column].legend(fontsize=7)
        axes[2][column].set_xlabel("epoch, session 1 then session 2")
        axes[0][column].set_title(TITLES[name])
    for axis, text in zip(
        axes[:, 0], ("gradient on the block", "gradient on known rows", "what comes of it"), strict=True
    ):
        axis.set_ylabel(text)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=90)
    plt.close(figure)
