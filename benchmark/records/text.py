"""A finished run in words and a table, for a terminal."""

from tabulate import tabulate

from benchmark.records.record import RunRecord, stored_text


def record_text(record: RunRecord) -> str:
    """Accuracy of every session's classes after every session, and the three figures of the paper."""
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
