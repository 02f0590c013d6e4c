"""What a few seeds can say: means, and how far they may be off."""

import math
from collections.abc import Sequence
from statistics import mean, stdev

CONFIDENCE = 0.95


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's interval of the mean; none for fewer than two values, of which nobody can say how they vary."""
    from scipy.stats import t  # noqa: PLC0415 - a second of import time

    if len(values) < 2:
        return None
    reach = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return mean(values) - reach, mean(values) + reach


def with_interval(differences: Sequence[float], decimals: int = 1) -> str:
    """A mean difference with Student's interval, `+2.5 [+1.2, +3.8]`; without one where there is a single value."""
    interval = t_interval(differences)
    text = shown(mean(differences), decimals, signed=True)
    if interval is None:
        return text
    low, high = (shown(end, decimals, signed=True) for end in interval)
    return f"{text} [{low}, {high}]"


def shown(value: float, decimals: int = 1, *, signed: bool = False) -> str:
    """A figure as pages print it.

    First rounded to nine decimals: means of counts often lie exactly between two figures, and which of them is printed
    would then depend on the order in which a version of numpy sums. What is printed as zero has no sign.
    """
    text = f"{round(float(value), 9):{'+' if signed else ''}.{decimals}f}"
    return text if float(text) else text.lstrip("+-")
