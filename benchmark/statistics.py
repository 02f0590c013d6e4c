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
