"""docs/readings.py: the rule by which settings are chosen, on records whose figures are known."""

import pytest
import readings as page
import readings_rule as rule
from records import make_record

from benchmark.records.results import SparseCounts

COMMON = {"shared.trunk": "bfloat16", "budget.clip": 1.0}


def setting(levels: dict[int, float], share: float = 95.0, method: str = "fea", **knobs):
    """A setting by seed: the accuracy of all classes, and the share of a session's images on its new rows, in %."""
    runs = {}
    for seed, level in levels.items():
        accuracy = [[level] * (t + 1) for t in range(3)]
        changed = COMMON | ({"lambda_fd": 10.0} if method == "fea" else {}) | knobs
        made = make_record(method, rule.JUDGE, seed, accuracy, budget="medium", changed=changed, probe=accuracy)
        sessions = [shared_out(session, share) if t else session for t, session in enumerate(made.sessions)]
        runs[seed] = made.model_copy(update={"sessions": tuple(sessions)})
    return rule.Setting(method, rule.knobs_of(next(iter(runs.values()))), runs, set())


def shared_out(session, share: float):
    """Of each class's 400 training images this many stay on their row, the others are on row 0."""
    counts = session.train_counts
    dealt = [
        (row, place, count)
        for row, images in zip(counts.true, counts.images, strict=True)
        for place, count in ((0, images - round(images * share / 100)), (row, round(images * share / 100)))
        if count
    ]
    true, row, images = map(list, zip(*dealt, strict=True))
    return session.model_copy(update={"train_counts": SparseCounts(true=true, row=row, images=images)})


LOW, HIGH = {0: 80.0, 1: 81.0, 2: 80.0}, {0: 82.0, 1: 83.0, 2: 82.0}


def test_the_figures_of_a_setting_are_those_of_its_records():
    made = setting(LOW, share=95.0)
    assert made.values("average accuracy") == pytest.approx(LOW)
    assert made.values("on new rows") == pytest.approx(dict.fromkeys(LOW, 95.0))


def test_the_default_stays_unless_it_is_worse_beyond_chance():
    default, noisy = setting(LOW), setting({0: 84.0, 1: 79.0, 2: 83.0}, lambda_fd=3.0)
    better = setting(HIGH, lambda_fd=1.0)
    assert rule.chosen([default, noisy]) is default
    assert rule.chosen([default, better]) is better
    assert rule.chosen([default, setting({0: 79.0, 1: 79.0, 2: 79.0}, epsilon=0.3)]) is default


def test_of_equals_one_that_discovers_is_taken():
    """But never one that is worse beyond chance."""
    idle = setting({0: 80.0, 1: 82.0, 2: 80.0}, share=80.0)
    assert rule.chosen([idle, equal := setting(LOW, lambda_fd=3.0)]) is equal
    high = setting(HIGH, share=80.0)
    assert rule.chosen([high, setting(LOW, lambda_fd=3.0)]) is high
    assert rule.chosen([idle, setting(LOW, share=90.0, lambda_fd=3.0)]) is idle


def test_one_seed_that_does_not_discover_is_enough():
    runs = setting(LOW).runs | {2: setting(LOW, share=89.0).runs[2]}
    assert rule.discovers(setting(LOW))
    assert not rule.discovers(rule.Setting("fea", setting(LOW).knobs, runs, set()))


def test_who_can_be_chosen():
    """Three seeds, the common rate and clipping, the method's own head, and some image on a new row."""
    standing, more = setting(LOW), setting(LOW | {3: 90.0}, epsilon=0.3)
    others = [
        setting({0: 80.0, 1: 81.0}, epsilon=0.3),
        setting(LOW, **{"budget.lr": 0.03}),
        setting(LOW, **{"budget.clip": None}),
        setting(LOW, inference="gaussian"),
        setting(HIGH, share=0.0, epsilon=0.5),
    ]
    assert rule.candidates([standing, more, *others]) == [standing, more]
    assert rule.chosen([standing, more]) is standing  # a fourth seed of one alone counts for nothing


def test_the_table_names_what_is_chosen_and_why():
    default, rival = setting(LOW, share=85.0), setting({0: 80.0, 1: 80.0, 2: 80.0}, lambda_fd=3.0)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.choices([default, rival]).splitlines()]
    assert lines[2][:3] == ["FEA", "lambda_fd 3", "80.0 ± 0.0"]
    assert lines[2][3].startswith("-0.3 [")
    assert lines[2][4:] == ["yes", "95.0 ± 0.0", "yes", "**chosen**"]
    assert lines[3][1:] == ["default", "80.3 ± 0.6", "", "yes", "85.0 ± 0.0", "no", ""]
    idle = setting(HIGH, share=0.0, epsilon=0.5)
    assert "left out (step 1)" in page.choices([default, rival, idle]).splitlines()[3]


def test_what_is_chosen_stands_beside_the_floors():
    """FEA at 80, 81 and 80 by head and probe; the floors at 78 and 83."""
    plain = dict.fromkeys(LOW, 78.0), dict.fromkeys(LOW, 83.0)
    beside = [setting(levels, method=method) for method, levels in zip(("kmeans", "gaussian"), plain, strict=True)]
    ours = setting({0: 84.0, 1: 84.0, 2: 84.0}, inference="gaussian")
    lines = [
        [c.strip() for c in line.split("|")[1:-1]] for line in page.floors([setting(LOW), ours, *beside]).splitlines()
    ]
    assert lines[2][:2] == ["FEA, inference gaussian", "84.0 ± 0.0"]
    assert lines[2][3].startswith("+1.0 [")
    assert lines[3][0] == "FEA, default"
    assert [cell.partition(" ")[0] for cell in lines[3][1:]] == ["80.3", "+2.3", "-2.7", "80.3", "-2.7"]
    assert page.floors([setting(LOW)]) == "Not run yet."


@pytest.mark.parametrize("method", ["fea", "simgcd", "gm", "frost", "autonovel"])
def test_what_runs_take_on_this_backbone_is_what_the_rule_chooses(method):
    """Of the committed records, losing settings included."""
    rows = rule.candidates([row for row in rule.settings() if row.method == method])
    assert rule.name_of(rule.chosen(rows)) == "chosen"
