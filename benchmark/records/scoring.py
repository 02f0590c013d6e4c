"""Assignment and metrics: pure functions of counts, no model in sight.

Counts of session t are a matrix: a row for every class met so far, in order of arrival; a column for every output row
of the classifier. Base rows mean their class; which class a later row means is settled once, at the end of the session
that created it, and never again. So a class that is later predicted on another row counts as forgotten.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

Counts = npt.NDArray[np.int64]


def assign(counts: npt.ArrayLike) -> list[int]:
    """The class of each new row: best one-to-one match of a K x K matrix (class x row).

    Rows without a single image get the classes that are left over. Rows are sorted by what is on them before solving,
    so that which of several best matches is taken does not depend on how the rows are numbered.
    """
    matrix = np.asarray(counts).T
    order = np.lexsort(matrix.T[::-1])
    _, classes = linear_sum_assignment(matrix[order], maximize=True)
    found = np.empty(len(matrix), dtype=np.int64)
    found[order] = classes
    return [int(label) for label in found]


def row_classes(assignments: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    """The class each output row stands for, from the assignment each session fixed for its own rows."""
    offsets = np.cumsum([0, *map(len, assignments)])
    return np.concatenate(
        [offset + np.asarray(own, dtype=np.int64) for offset, own in zip(offsets, assignments, strict=False)]
    )


def session_accuracies(counts: Counts, assignments: Sequence[Sequence[int]]) -> list[float]:
    """a_{t,0} ... a_{t,t} in percent: share of each session's test images predicted on their own class."""
    classes = row_classes(assignments)
    right = np.zeros(len(counts), dtype=np.int64)
    right[classes] = counts[classes, np.arange(len(classes))]
    ends = np.cumsum([0, *map(len, assignments)])
    return [
        100.0 * float(right[start:end].sum()) / max(1, int(counts[start:end].sum())) for start, end in pairwise(ends)
    ]


@dataclass(frozen=True)
class Metrics:
    """Figures in percent. Forgetting and discovery exist from the first discovery session on."""

    accuracy: list[list[float]]
    overall: list[float]
    average_accuracy: float
    average_forgetting: float | None
    average_discovery: float | None


@dataclass(frozen=True)
class Metric:
    """One of the three figures that people compare, and which way is better."""

    name: str
    title: str
    short: str
    higher_is_better: bool


METRICS = (
    Metric("average_accuracy", "Average accuracy", "accuracy", True),
    Metric("average_forgetting", "Average forgetting (AvF)", "AvF", False),
    Metric("average_discovery", "Average discovery (AvD)", "AvD", True),
)


def summarise(accuracy: Sequence[Sequence[float]], images: Sequence[float]) -> Metrics:
    """All metrics from the lower-triangular matrix a[t][j] and the number of test images (or classes) of each session.

    Overall accuracy counts images alike; average accuracy includes session 0; forgetting compares with the best earlier
    session in which the class existed and is not clipped at zero (methods.md 7.4 shows that the paper does the same).
    """
    overall = [float(np.dot(row, images[: len(row)]) / np.sum(images[: len(row)])) for row in accuracy]
    last = len(accuracy) - 1
    forgetting = discovery = None
    if last > 0:
        best = [max(accuracy[t][j] for t in range(j, last)) for j in range(last)]
        forgetting = float(np.mean([best[j] - accuracy[last][j] for j in range(last)]))
        discovery = float(np.mean(accuracy[last][1:]))
    return Metrics([list(row) for row in accuracy], overall, float(np.mean(overall)), forgetting, discovery)


def score(counts: Sequence[Counts], assignments: Sequence[Sequence[int]]) -> Metrics:
    """Metrics of a run from the counts of every session and the assignment each session fixed."""
    accuracy = [session_accuracies(matrix, assignments[: t + 1]) for t, matrix in enumerate(counts)]
    return summarise(accuracy, images_per_session(counts[-1], [len(own) for own in assignments]))


def images_per_session(counts: Counts, sizes: Sequence[int]) -> list[float]:
    """Test images of each session's classes."""
    ends = np.cumsum([0, *sizes])
    return [float(counts[start:end].sum()) for start, end in pairwise(ends)]


def new_block(counts: Counts, known: int, new: int) -> Counts:
    """The K x K part of a matrix: images of a session's classes on the rows that session created."""
    return np.asarray(counts)[known : known + new, known : known + new]


def oracle_assignments(counts: Counts, sizes: Sequence[int]) -> list[list[int]]:
    """Assignments re-solved on one session's counts: an oracle that hides clusters which changed their meaning."""
    starts = np.cumsum([0, *sizes])
    solved = [assign(new_block(counts, int(start), size)) for start, size in zip(starts[:-1], sizes, strict=True)]
    return [list(range(sizes[0])), *solved[1:]]


def oracle_score(counts: Sequence[Counts], sizes: Sequence[int]) -> Metrics:
    """Metrics with the assignment re-solved after every session; its gap to `score` is what re-solving would hide."""
    accuracy = [
        session_accuracies(matrix, oracle_assignments(matrix, sizes[: t + 1])) for t, matrix in enumerate(counts)
    ]
    return summarise(accuracy, images_per_session(counts[-1], sizes))


def clustering(counts: Counts, known: int, new: int) -> Counts:
    """A session's classes against its new rows, with one more column for images that landed on any old row."""
    own = np.asarray(counts)[known : known + new]
    return np.column_stack([own[:, known : known + new], own[:, :known].sum(axis=1)])


def mutual_information(table: Counts) -> float:
    """Normalised mutual information (arithmetic mean) of a contingency table, in [0, 1]."""
    joint = np.asarray(table, dtype=float) / max(1, np.sum(table))
    rows, columns = joint.sum(axis=1), joint.sum(axis=0)
    entropy = [-float(np.sum(p[p > 0] * np.log(p[p > 0]))) for p in (rows, columns)]
    filled = joint > 0
    shared = float(np.sum(joint[filled] * np.log(joint[filled] / np.outer(rows, columns)[filled])))
    return 1.0 if sum(entropy) == 0 else max(0.0, 2 * shared / sum(entropy))


def rand_index(table: Counts) -> float:
    """Adjusted Rand index of a contingency table: 1 for the same grouping, 0 expected by chance."""
    pairs = [float(np.sum(x * (x - 1) / 2)) for x in map(np.asarray, (table, np.sum(table, 1), np.sum(table, 0)))]
    total = float(np.sum(table))
    expected = pairs[1] * pairs[2] / max(1.0, total * (total - 1) / 2)
    ceiling = (pairs[1] + pairs[2]) / 2
    return 1.0 if ceiling == expected else (pairs[0] - expected) / (ceiling - expected)
