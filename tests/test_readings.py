"""docs/readings.py: the rule by which settings are chosen, on records whose figures are known."""

import importlib.util
from pathlib import Path

import pytest
from records import make_record

SCRIPT = Path(__file__).parent.parent / "docs" / "readings.py"
SPEC = importlib.util.spec_from_file_location("readings_page", SCRIPT)
page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(page)

COMMON = {"shared.trunk": "bfloat16", "budget.clip": 1.0}


def setting(levels: dict[int, float], share: float = 95.0, method: str = "fea", **knobs):
    """A setting whose accuracy is the same for all classes, by seed; `share` of its images are on new rows."""
    runs = {
        seed: make_record(
            method, page.JUDGE, seed, [[level] * (t + 1) for t in range(3)], budget="medium", changed=COMMON | knobs
        )
        for seed, level in levels.items()
    }
    made = page.Setting(method, page.knobs_of(next(iter(runs.values()))), runs, set())
    made.values = {
        "average accuracy": levels,
        "on new rows": dict.fromkeys(levels, share),
    }.__getitem__
    return made


@pytest.fixture(autouse=True)
def _plain_settings(monkeypatch):
    """Settings with figures of our own: shares on new rows need counts of a whole run."""

    class Told(page.Setting):
        __setattr__ = object.__setattr__

        @property
        def average(self):
            return page.mean(self.values("average accuracy").values())

    monkeypatch.setattr(page, "Setting", Told)


def test_the_default_stays_unless_it_is_worse_beyond_chance():
    default = setting({0: 80.0, 1: 81.0, 2: 80.0})
    noisy = setting({0: 84.0, 1: 79.5, 2: 83.0}, lambda_fd=3.0)
    better = setting({0: 82.0, 1: 83.1, 2: 82.0}, lambda_fd=1.0)
    assert page.chosen([default, noisy]) is default
    assert page.chosen([default, better]) is better
    assert page.chosen([default, setting({0: 79.0, 1: 79.0, 2: 79.0}, epsilon=0.3)]) is default


def test_a_setting_that_does_not_discover_is_taken_only_where_none_does():
    """However good its average: most of its images stay on old rows."""
    high = {0: 90.0, 1: 90.5, 2: 90.0}
    idle, valid = setting(high, share=50.0), setting({0: 80.0, 1: 81.0, 2: 80.0}, lambda_fd=3.0)
    assert page.chosen([idle, valid]) is valid
    assert page.chosen([idle, setting({0: 80.0, 1: 81.0, 2: 80.0}, share=90.0, lambda_fd=3.0)]) is idle


def test_who_can_be_chosen():
    """Three seeds, the common rate and clipping, and the method's own head."""
    three = {0: 80.0, 1: 81.0, 2: 80.0}
    standing = setting(three)
    others = [
        setting({0: 80.0, 1: 81.0}, epsilon=0.3),
        setting(three, **{"budget.lr": 0.03}),
        setting(three, **{"budget.clip": None}),
        setting(three, inference="gaussian"),
    ]
    assert page.candidates([standing, *others]) == [standing]


def test_the_table_names_what_is_chosen_and_why():
    default = setting({0: 80.0, 1: 81.0, 2: 80.0}, share=85.0)
    valid = setting({0: 80.5, 1: 80.0, 2: 81.0}, lambda_fd=3.0)
    lines = page.choices([default, valid]).splitlines()[2:]
    assert [cell.strip() for cell in lines[0].split("|")[1:-1]] == [
        "FEA", "lambda_fd 3", "80.5 ± 0.5", "95.0 ± 0.0", "yes", "", "**chosen**",
    ]  # fmt: skip
    assert lines[1].split("|")[2].strip() == "default"
    assert "| no " in lines[1]
