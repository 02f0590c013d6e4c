"""Metrics with known answers, and what must not change them."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from benchmark.records import scoring


def test_worked_example():
    metrics = scoring.summarise([[90], [80, 60], [70, 50, 40]], [6, 2, 2])
    assert metrics.overall == pytest.approx([90, 75, 60])
    assert metrics.average_accuracy == pytest.approx(75)
    assert metrics.average_forgetting == pytest.approx(15)
    assert metrics.average_discovery == pytest.approx(45)


def test_frost_dagger_of_the_paper():
    """Session 0 counts, overall accuracy weighs classes, forgetting is not clipped: only so are all three met."""
    metrics = scoring.summarise([[59.8], [55.2, 27.6], [42.5, 34.8, 31.2]], [180, 10, 10])
    assert round(metrics.average_accuracy, 2) == 51.70
    assert round(metrics.average_forgetting, 2) == 5.05
    assert round(metrics.average_discovery, 2) == 33.00


def test_forgetting_compares_with_the_best_earlier_session():
    metrics = scoring.summarise([[50], [80, 10], [60, 10, 10]], [1, 1, 1])
    assert metrics.average_forgetting == pytest.approx(((80 - 60) + (10 - 10)) / 2)


def test_first_session_alone_has_no_forgetting_and_no_discovery():
    metrics = scoring.summarise([[90]], [6])
    assert (metrics.average_accuracy, metrics.average_forgetting, metrics.average_discovery) == (90, None, None)


def test_assignment_is_the_best_match_and_empty_rows_get_what_is_left():
    # classes down, rows across: class 0 is on row 2, class 2 on row 0, row 1 is empty
    assert scoring.assign([[0, 0, 9], [1, 0, 2], [7, 0, 1]]) == [2, 1, 0]


def test_counts_to_metrics_by_hand():
    """Two base classes, then one session of two whose rows came out swapped; later one of them moves to a base row."""
    first = np.array([[8, 2], [0, 10]])
    second = np.array([[7, 2, 1, 0], [0, 10, 0, 0], [1, 0, 0, 9], [0, 0, 6, 4]])
    swapped = scoring.assign(scoring.new_block(second, 2, 2))
    assert swapped == [1, 0]
    metrics = scoring.score([first, second], [[0, 1], swapped])
    assert metrics.accuracy == [[90.0], [85.0, 75.0]]
    assert metrics.overall == [90.0, 80.0]
    assert metrics.average_discovery == 75.0
    assert metrics.average_forgetting == 5.0


def test_assignment_stays_fixed_while_the_oracle_re_solves():
    """A cluster that changes its meaning is forgotten; re-solving would hide it."""
    base = np.array([[5, 0], [0, 5]])
    one = np.zeros((4, 4), dtype=int)
    one[:2, :2], one[2, 2], one[3, 3] = base, 5, 5
    two = np.zeros((5, 5), dtype=int)
    two[:2, :2], two[2, 3], two[3, 2], two[4, 4] = base, 5, 5, 5
    fixed = scoring.score([base, one, two], [[0, 1], [0, 1], [0]])
    oracle = scoring.oracle_score([base, one, two], [2, 2, 1])
    assert fixed.accuracy[2] == [100, 0, 100]
    assert oracle.accuracy[2] == [100, 100, 100]
    assert (fixed.average_forgetting, oracle.average_forgetting) == (50, 0)


def test_images_on_old_rows_are_errors_whatever_the_assignment():
    counts = np.array([[9, 1, 0], [0, 10, 0], [10, 0, 0]])
    assert scoring.score([counts[:2, :2], counts], [[0, 1], [0]]).average_discovery == 0


matrices = st.integers(2, 5).flatmap(
    lambda k: st.lists(st.lists(st.integers(0, 30), min_size=k, max_size=k), min_size=k, max_size=k)
)


@given(matrices, st.randoms())
def test_assignment_is_optimal(matrix, random):
    """No other one-to-one match has more images."""
    size = len(matrix)
    best = sum(matrix[label][row] for row, label in enumerate(scoring.assign(matrix)))
    for _ in range(10):
        other = random.sample(range(size), size)
        assert best >= sum(matrix[label][row] for row, label in enumerate(other))


@given(st.integers(0, 2**32 - 1), st.permutations(range(3)), st.permutations(range(2)))
def test_renaming_clusters_changes_no_score(seed, naming, later_naming):
    """Rows of a session under other numbers, in every session from then on: nothing moves."""
    random = np.random.default_rng(seed)
    sizes = [4, 3, 2]
    counts = [random.integers(0, 6, (n, n)) for n in np.cumsum(sizes)]
    order = np.concatenate([np.arange(4), 4 + np.array(naming), 7 + np.array(later_naming)])
    renamed = [matrix[:, order[: len(matrix)]] for matrix in counts]
    for matrix in (scoring.new_block(counts[1], 4, 3), scoring.new_block(counts[2], 7, 2)):
        assume(len({tuple(column) for column in matrix.T}) == len(matrix))  # equal rows cannot be told apart

    def metrics(sessions):
        later = [
            scoring.assign(scoring.new_block(sessions[1], 4, 3)),
            scoring.assign(scoring.new_block(sessions[2], 7, 2)),
        ]
        return scoring.score(sessions, [[0, 1, 2, 3], *later])

    assert metrics(counts) == metrics(renamed)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=2, max_size=60))
def test_clustering_quality_agrees_with_scikit_learn(pairs):
    truth, found = zip(*pairs, strict=True)
    table = np.zeros((4, 5), dtype=int)
    np.add.at(table, (truth, found), 1)
    assert scoring.mutual_information(table) == pytest.approx(normalized_mutual_info_score(truth, found), abs=1e-9)
    assert scoring.rand_index(table) == pytest.approx(adjusted_rand_score(truth, found), abs=1e-9)


def test_clustering_table_counts_images_on_old_rows():
    counts = np.array([[3, 0, 0, 0], [0, 3, 0, 0], [1, 1, 4, 0], [0, 0, 0, 6]])
    assert scoring.clustering(counts, 2, 2).tolist() == [[4, 0, 2], [0, 6, 0]]
