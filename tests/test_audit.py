"""Forged records are refused by name and reason, though every file is whole and sealed; the rest is reported."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records import make_record, save

from benchmark.digests import SEAL, sealed
from benchmark.records.audit import refuted
from benchmark.records.question import Question
from benchmark.records.reading import read_record
from benchmark.records.record import PUBLISHED, RunRecord, compact, record_path
from benchmark.report import compose

Document = dict[str, Any]


def perfect_counts(document: Document) -> None:
    """Every test image right, in a copy of somebody's record; nothing else was thought of."""
    for t, session in enumerate(document["sessions"]):
        known = sum(len(s["classes"]) for s in document["sessions"][: t + 1])
        session["counts"] = {"true": [*range(known)], "row": [*range(known)], "images": [100] * known}


def long_training(document: Document) -> None:
    """Twenty thousand epochs, called a reference run."""
    for session in document["sessions"][1:]:
        session["phases"][0]["epochs"] = 20_000


def one_test_image(document: Document) -> None:
    for session in document["sessions"]:
        session["counts"]["images"] = [1] * len(session["counts"]["images"])


def lucky_assignment(document: Document) -> None:
    document["sessions"][1]["assignment"] = [1, 0]


def invented_method(document: Document) -> None:
    document["question"]["method"] = "wonder"


def renamed_base_rows(document: Document) -> None:
    document["sessions"][0]["assignment"] = [1, 0, 2, 3, 4, 5]


def other_data(document: Document) -> None:
    document["question"]["data"]["digest"] = "e" * 64


def more_steps(document: Document) -> None:
    for session in document["sessions"][1:]:
        session["phases"][0]["steps"] *= 50


def other_classes(document: Document) -> None:
    classes = [[5, 1, 2, 3, 4, 0], [6, 7], [8, 9]]
    document["question"]["protocol"]["classes"] = classes
    document["sessions"][0]["classes"] = classes[0]


def unknown_parameter(document: Document) -> None:
    document["question"]["params"]["magic"] = 7


def later_knob_as_it_always_was(document: Document) -> None:
    document["question"]["params"]["inference"] = "head"


def other_images_of_the_probe(document: Document) -> None:
    document["sessions"][1]["probe"] = {"true": [0], "row": [0], "images": [60]}


def other_version(document: Document) -> None:
    document["question"]["method_version"] = 99


def images_that_come_and_go(document: Document) -> None:
    document["question"]["data"]["test"] = [8, 9]
    document["sessions"][2]["counts"]["images"][0] -= 1


def training_images_of_old_classes(document: Document) -> None:
    document["sessions"][1]["train_counts"]["true"][0] = 0


def impossible_budget(document: Document) -> None:
    document["question"]["budget"]["lr"] = -1


def fewer_curves(document: Document) -> None:
    document["sessions"][1]["phases"][0]["terms"]["label"].pop()


def other_kind_of_parameter(document: Document) -> None:
    document["question"]["params"]["omega"] = "much"


def other_network(document: Document) -> None:
    document["question"]["backbone"]["projector"] = "x"


def defaults_of_its_own(document: Document) -> None:
    document["own"]["defaults"] = document["question"]["params"]


def part_of_what_is_always_whole(document: Document) -> None:
    document["question"]["shared"]["images"] = 20


FORGERIES: dict[Callable[[Document], None], str] = {
    perfect_counts: "a class has 100 test images, its data has 60",
    long_training: "session 1 has other epochs than its budget (200)",
    one_test_image: "test images, its data has 60",
    lucky_assignment: "the assignment of session 1 is not the best match of its counts",
    invented_method: "the suite has no method 'wonder'",
    renamed_base_rows: "its base rows are renamed",
    other_data: "its data digest is not that of scikit-learn's hand-written digits",
    more_steps: "steps per epoch, which its images do not make",
    other_classes: "its classes, data or rules are not those of protocol digits-t2",
    unknown_parameter: "its parameters are not those of 'fea'",
    later_knob_as_it_always_was: "its parameters are not those of 'fea'",
    other_images_of_the_probe: "the probe has other test images than the method",
    other_version: "the suite's 'fea' has no version 99",
    training_images_of_old_classes: "training images of session 1 are of classes that came before",
    impossible_budget: "its budget cannot be",
    fewer_curves: "curves that do not cover its epochs",
    other_kind_of_parameter: "its parameter 'omega' is of another kind",
    other_network: "its network is not that of backbone 'digits-vit'",
    part_of_what_is_always_whole: "with a committed split cannot be asked for",
    defaults_of_its_own: "default parameters of its own for a method of the suite",
}


def forged(record: RunRecord, forge: Callable[[Document], None]) -> Document:
    """The record as somebody changed it, with key and seal made anew."""
    document = copy.deepcopy(record.document())
    forge(document)
    document["key"] = Question.model_validate(document["question"]).key
    return sealed(document)


def write(out: Path, document: Document, name: str) -> Path:
    path = out / PUBLISHED / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(compact(document))
    return path


def test_an_honest_record_is_not_refuted():
    for method in ("fea", "gm", "kmeans"):
        for protocol in ("digits-t2", "cifar10-t1", "tiny-t10"):
            assert refuted(make_record(method, protocol, 0)) is None
    assert refuted(make_record("mine", "digits-t2", 0)) is None
    assert refuted(make_record("fea", "cifar10-t2", 0, images=((30, 40), (9, 9)))) is None
    assert refuted(make_record("fea", "digits-t2", 0, budget="quick", changed={"budget.novel_epochs": 7})) is None


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_a_forgery_is_refused_by_name_and_reason(forge, tmp_path):
    record = save(tmp_path, "fea", "digits-t2", 0)
    save(tmp_path, "gm", "digits-t2", 0)
    path = write(tmp_path, forged(record, forge), forge.__name__)
    report = compose(tmp_path)
    assert len(report.runs) == 2  # the rest is reported
    (said,) = report.refused
    assert path.name in said
    assert FORGERIES[forge] in said


def test_a_part_of_a_dataset_is_smaller_than_all_of_it():
    """The registered part of CIFAR-10 passes; one of more images than there are does not."""
    part = {"shared.images": 1000}
    assert refuted(make_record("fea", "cifar10-t1", 0, changed=part)) is None
    reason = refuted(
        make_record("fea", "cifar10-t1", 0, changed={"shared.images": 50_000}, images=((50_000,) * 2, (1000,) * 2))
    )
    assert reason == "it asks for 50000 training images per class of CIFAR-10, which has 5000"
    unknown = make_record("fea", "cifar10-t1", 0, changed={"shared.images": 700}, images=((700, 700), (1000, 1000)))
    assert refuted(unknown) is None
    assert "--data-dir" not in unknown.command  # anybody can take it from the complete dataset
    assert "--set shared.images=700" in unknown.command


def test_images_cannot_come_and_go():
    """A part of CIFAR-10 with 8 or 9 test images per class; after the last session a class has one less than before."""
    record = make_record("fea", "cifar10-t2", 0, images=((30, 30), (9, 9)))
    document = forged(record, images_that_come_and_go)
    reason = refuted(RunRecord.model_validate({key: value for key, value in document.items() if key != SEAL}))
    assert reason == "after session 2 classes have other numbers of test images than before"


def test_what_was_changed_is_worked_out_and_not_believed(tmp_path):
    """Twenty thousand epochs in budget and curves alike: a group of its own, whatever it calls itself."""

    def forge(document: Document) -> None:
        document["changed"], document["budget_name"] = {}, "paper"

    record = make_record("fea", "digits-t2", 0, changed={"budget.novel_epochs": 20_000, "omega": 3.0})
    assert record.changed == {"budget.novel_epochs": 20_000, "omega": 3.0}
    assert "budget.novel_epochs=20000" in record.group
    path = write(tmp_path, forged(record, forge), "claims")
    with pytest.raises(Exception, match="Extra inputs are not permitted"):
        read_record(path)


def test_an_edited_record_without_its_seal_is_refused(tmp_path):
    record = save(tmp_path, "fea", "digits-t2", 0)
    path = record_path(tmp_path, record.question, PUBLISHED)
    document = json.loads(path.read_text())
    perfect_counts(document)
    for session in document["sessions"]:
        session["counts"]["images"] = [60] * len(session["counts"]["true"])
    path.write_text(compact(document))
    save(tmp_path, "gm", "digits-t2", 0)
    (said,) = compose(tmp_path).refused
    assert "damaged or was edited" in said


def test_defaults_of_the_package_are_those_of_the_code():
    """protocols/methods.yaml is what reports go by: they import no method."""
    import methods  # noqa: PLC0415
    from benchmark.records.reference import suite_methods  # noqa: PLC0415

    assert suite_methods().keys() == methods.entries().keys()
    for name, versions in suite_methods().items():
        cls = methods.load(name).cls
        assert versions[cls.version].params == cls.Params().model_dump(mode="json")
        assert versions[cls.version].params | versions[cls.version].later == dict(cls.Params())


@pytest.mark.parametrize(("method", "changed"), [("fea", {"inference": "gaussian"}), ("gaussian", {"shrinkage": 0.5})])
def test_a_knob_that_came_later_may_be_set(tmp_path, method, changed):
    record = save(tmp_path, method, "digits-t2", 0, changed=changed)
    assert refuted(record) is None
    assert record.changed == changed
