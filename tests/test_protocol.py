"""Protocols: the paper's seven, the embedded one and the judge, and what is refused."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchmark.engine.request import ask
from benchmark.errors import UsageError
from benchmark.protocol.catalogue import load_backbones, load_datasets
from benchmark.protocol.overrides import by_part, parse_setting, parse_views
from benchmark.protocol.protocols import Protocol, load_protocol, protocol_names
from benchmark.protocol.reading import read_yaml

PAPER = {
    "cifar10-t1": (10, [5, 5]),
    "cifar10-t2": (10, [6, 2, 2]),
    "cifar100-t2": (100, [80, 10, 10]),
    "cifar100-t5": (100, [50, *[10] * 5]),
    "tiny-t2": (200, [180, 10, 10]),
    "tiny-t5": (200, [100, *[20] * 5]),
    "tiny-t10": (200, [100, *[10] * 10]),
    "digits-t2": (10, [6, 2, 2]),
}


def test_the_eight_protocols_and_the_judge():
    assert [*protocol_names()] == sorted([*PAPER, "cifar100-holdout-t2"])
    for name, (classes, sizes) in PAPER.items():
        protocol = load_protocol(name)
        assert load_datasets()[protocol.dataset].classes == classes
        assert [len(c) for c in protocol.classes] == sizes
        assert [c for session in protocol.classes for c in session] == list(range(classes))
        assert (protocol.K, protocol.selection, protocol.class_order) == ("known", "last", "natural")
        assert protocol.backbone in load_backbones()
        paper, quick = protocol.budgets["paper"], protocol.budgets["quick"]
        assert (paper.base_epochs, paper.novel_epochs) == (10, 200)
        assert (quick.base_epochs, quick.novel_epochs) == (3, 20)


def test_learning_rates_and_batches_of_the_paper():
    for name in PAPER.keys() - {"digits-t2"}:
        paper = load_protocol(name).budgets["paper"]
        assert (paper.batch, paper.base_lr, paper.lr) == (128, 0.1, 0.02 if name.startswith("tiny") else 0.1)
    assert load_protocol("digits-t2").budgets["paper"].batch == 64


def test_the_judge_is_cifar100_t5_on_fewer_classes():
    """Whatever decides how methods train is the same, but the backbone, the views and the images."""
    judge, real, other = (load_protocol(name) for name in ("cifar100-holdout-t2", "cifar100-t5", "cifar100-t2"))
    assert [len(classes) for classes in judge.classes] == [30, 10, 10]
    labels = {label for classes in judge.classes for label in classes}
    assert labels == {*real.classes[0]}  # none that is novel there
    assert labels <= {*other.classes[0]}
    assert (judge.budgets, judge.shared, judge.params) == (real.budgets, real.shared, real.params)
    assert judge.augmentation == real.augmentation
    assert (judge.backbone, judge.views) == ("vit-s14-dinov2-112", 2)


def test_medium_is_the_paper_with_a_quarter_of_the_epochs():
    for name in {*PAPER} - {"digits-t2"}:
        budgets = load_protocol(name).budgets
        assert budgets["medium"] == budgets["paper"].model_copy(update={"novel_epochs": 50})


def test_values_for_a_backbone_come_before_those_for_all(tmp_path):
    params = {"fea": {"n_p": 7, "omega": 3.0}, "fea@vit-s14-dinov2-112": {"omega": 4.0}}
    protocol = load_protocol(str(own(tmp_path, params=params)))
    assert protocol.params_of("fea", "digits-vit") == {"n_p": 7, "omega": 3.0}
    assert protocol.params_of("fea", "vit-s14-dinov2-112") == {"n_p": 7, "omega": 4.0}
    assert protocol.params_of("gm", "vit-s14-dinov2-112") == {}


def test_values_for_a_backbone_are_the_reference_there(tmp_path):
    """They are what runs with that backbone take, and no change to the method."""
    asked = ask("fea", str(own(tmp_path, params={"fea@digits-vit": {"omega": 4.0}})))
    assert asked.question.params["omega"] == 4.0
    assert "omega" not in asked.changed
    changed = ask("fea", str(own(tmp_path, params={"fea@vit-b16-dino": {"omega": 4.0}}))).question.params
    assert changed["omega"] == 2.0


@pytest.mark.parametrize(
    ("method", "theirs", "ours"),
    [("gaussian", {"shrinkage": 0.1}, {"shrinkage": None}), ("fea", {"inference": "gaussian"}, {"inference": "head"})],
)
def test_a_later_knob_set_back_to_its_default_is_a_change(tmp_path, method, theirs, ours):
    """The question leaves such a knob out; what was changed, and the command, do not."""
    path = str(own(tmp_path, params={method: theirs}))
    asked = ask(method, path, settings=ours)
    assert asked.changed.items() >= ours.items()
    assert not ours.keys() & ask(method, path).changed.keys()
    assert asked.question.key == ask(method).question.model_copy(update={"protocol": asked.question.protocol}).key


def test_values_for_an_unknown_backbone_are_refused(tmp_path):
    with pytest.raises(UsageError, match="'fea@digits-vat': unknown backbone, did you mean 'digits-vit'"):
        load_protocol(str(own(tmp_path, params={"fea@digits-vat": {"omega": 4.0}})))


def own(tmp_path: Path, **changes) -> Path:
    document = read_yaml(Path(__file__).parent.parent / "protocols" / "digits-t2.yaml") | {"name": "own"} | changes
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in document.items() if v is not None}))
    return path


def test_own_protocol_with_listed_classes(tmp_path):
    path = own(tmp_path, sessions=[[9, 1], [3], [0, 2]])
    assert load_protocol(str(path)).classes == ((9, 1), (3,), (0, 2))


def test_class_order_by_seed_depends_on_the_protocol_alone(tmp_path):
    one = load_protocol(str(own(tmp_path, class_order="seed:1"))).classes
    assert one == load_protocol(str(own(tmp_path, class_order="seed:1"))).classes
    assert one != load_protocol(str(own(tmp_path, class_order="seed:2"))).classes
    assert sorted(c for session in one for c in session) == list(range(10))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sessions": [[0, 1, 2], [2, 3]]}, "class 2 is in more than one place"),
        ({"sessions": [[0, 1], [11]]}, "digits has no class 11"),
        ({"sessions": [6, 6]}, "12 classes asked for, digits has 10"),
        ({"sessions": [6, [7]]}, "all of them as numbers of classes, or all as lists"),
        ({"sessions": [6]}, "sessions: [6]: Tuple should have at least 2 items"),
        ({"sesions": [6, 2]}, "unknown key 'sesions' (value [6, 2]), did you mean 'sessions'?"),
        ({"dataset": "digit"}, "dataset: 'digit': unknown dataset, did you mean 'digits'?"),
        ({"class_order": "random"}, "class_order: 'random':"),
        ({"views": 1}, "views: 1:"),
        ({"K": "estimated"}, "K: 'estimated':"),
        ({"name": "other"}, "must equal the file's name 'own'"),
        ({"title": None}, "key 'title' is missing"),
        ({"shared": {"tauc": 1}}, "unknown key 'shared.tauc' (value 1), did you mean 'tau_c'?"),
        (
            {"budgets": {"paper": {"base_epochs": 1, "novel_epoch": 2, "base_lr": 1, "lr": 1}}},
            "unknown key 'budgets.paper.novel_epoch' (value 2), did you mean 'novel_epochs'?",
        ),
        ({"budgets": {}}, "budget 'paper' is missing"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_faulty_protocols_are_refused_in_one_sentence(tmp_path, changes, sentence):
    with pytest.raises(UsageError) as error:
        load_protocol(str(own(tmp_path, **changes)))
    assert sentence in str(error.value)
    assert "own.yaml" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: [", "broken YAML"),
        ("a: 1\na: 2", "key 'a' is given twice"),
        ("a: &x [1]\nb: *x", "aliases"),
        ("!!python/object/apply:os.system ['true']", "broken YAML"),
        ("just words", "expected a mapping"),
        ("", "expected a mapping"),
        ("a: 2024-99-99", "broken YAML"),
        ("[" * 5000, "broken YAML"),
    ],
    ids=lambda value: value[:20],
)
def test_faulty_yaml_is_refused_in_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        load_protocol(str(path))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@given(st.text(max_size=40))
def test_any_name_is_a_protocol_or_one_sentence(name):
    if name not in protocol_names():
        with pytest.raises(UsageError):
            load_protocol(name)


def test_protocols_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_protocol("digits-t2").title = "other"  # type: ignore[misc]
    assert Protocol.model_config["extra"] == "forbid"


def test_settings_go_where_they_belong():
    settings = dict(map(parse_setting, ["omega=1", "budget.lr=2e-2", "shared.tau_c=1", "css=false"]))
    request = ask("fea", settings=settings)
    assert (request.params.omega, request.params.css) == (1.0, False)
    assert (request.budget.lr, request.shared.tau_c) == (0.02, 1.0)
    assert request.changed == {"omega": 1.0, "css": False, "budget.lr": 0.02, "shared.tau_c": 1.0}
    assert by_part({"a": 1}) == {"params": {"a": 1}, "budget": {}, "shared": {}}


def test_setting_a_value_to_its_default_is_no_change():
    assert ask("fea", settings={"omega": 2}).question == ask("fea").question
    assert ask("fea", settings={"omega": 2}).changed == {}


def test_key_depends_on_the_question_and_on_nothing_else(tmp_path, monkeypatch):
    key = ask("fea").question.key
    monkeypatch.chdir(tmp_path)
    assert ask("fea").question.key == key
    others = [
        ask("kmeans"),
        ask("fea", seed=1),
        ask("fea", budget="quick"),
        ask("fea", views=4),
        ask("fea", views="live"),
        ask("fea", settings={"omega": 1}),
        ask("fea", settings={"shared.tau_c": 0.2}),
    ]
    assert len({key, *(other.question.key for other in others)}) == 1 + len(others)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"settings": {"omga": 1}}, "fea: unknown key 'omga' (value 1), did you mean 'omega'?"),
        ({"settings": {"budget.lr": -1}}, "budget: lr: -1:"),
        ({"settings": {"fd": "cosin"}}, "fea: fd: 'cosin':"),
        ({"budget": "papr"}, "unknown budget 'papr' of digits-t2, did you mean 'paper'?"),
        ({"views": 1}, "--views: 1:"),
        ({"views": "lively"}, "--views: 'lively':"),
        ({"params": "fea-litteral"}, "did you mean 'fea-literal'?"),
        ({"method": "kmeans", "params": "fea-literal"}, "holds parameters of 'fea', not of 'kmeans'"),
        ({"backbone": "digits-vti"}, "did you mean 'digits-vit'?"),
        ({"seed": -1}, "--seed: -1:"),
        ({"method": "nowhere.py:X"}, "there is no file nowhere.py"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_faulty_requests_are_refused_in_one_sentence(options, sentence):
    with pytest.raises(UsageError) as error:
        ask(**options)
    assert sentence in str(error.value)


def test_views_option():
    assert (parse_views("4"), parse_views("live")) == (4, "live")
