"""The probe: known answers, and what records say of it."""

import pytest
import torch
from records import make_record

from benchmark.engine.probe import Probe
from benchmark.engine.request import ask


def test_known_answers():
    """Two base classes, then one new row; images on known rows teach nothing, and old means stay."""
    torch.manual_seed(0)
    probe = Probe(2)
    base, rows = torch.randn(200, 2), torch.arange(200) % 2
    base[rows == 1] += 10
    probe.learn(base, rows, 2)
    before = probe.mean.clone()
    probe.learn(torch.tensor([[0.0, 10.0], [0.0, 12.0], [99.0, 99.0]]), torch.tensor([2, 2, 0]), 2)
    assert torch.equal(probe.mean[:2], before)
    torch.testing.assert_close(probe.mean[2], torch.tensor([0.0, 11.0]) @ probe.whitening)
    assert probe.mean[3].isinf().all()  # no image was put on that row: nothing is near it
    points = torch.tensor([[0.1, 0.0], [9.0, 10.0], [0.0, 9.0], [99.0, 99.0]])
    assert probe.predict(points).tolist() == [0, 1, 2, 1]


def test_it_is_the_discriminant_of_the_gaussian_floor(short_run):
    """In session 0 both know the same: the labels, and the same features."""
    record = short_run(method="gaussian")
    assert record.sessions[0].probe == record.sessions[0].counts


@pytest.mark.parametrize("method", ["gm", "kmeans"])
def test_every_run_is_probed(short_run, method):
    record = short_run(method=method)
    metrics = record.probe_metrics()
    assert metrics is not None
    assert len(metrics.overall) == len(record.sessions)
    for session in record.sessions:
        size = session.counts.size
        assert (session.probe.dense(size).sum(axis=1) == session.counts.dense(size).sum(axis=1)).all()


def test_features_that_cannot_be_read_are_no_reason_to_stop():
    probe = Probe(3)
    good = torch.randn(4, 3)
    odd = [good[:, :2], good.long(), good[0], (good, good), good.mul(torch.inf), None]
    assert torch.equal(probe.features(lambda _: good.half(), None), good.half().float())
    assert [probe.features(lambda _, h=h: h, None) for h in odd] == [None] * len(odd)
    assert probe.features(None, None) is None  # a method without a block


def test_from_the_first_unreadable_session_on_there_is_no_probe(short_run, monkeypatch):
    """Also when features can be read again: means of a session are missing for good."""
    read, calls = Probe.features, []

    def sometimes(self, block, tokens):
        calls.append(len(self.mean))
        return None if len(self.mean) == 6 and not self.blind else read(self, block, tokens)

    monkeypatch.setattr(Probe, "features", sometimes)
    record = short_run(method="kmeans")
    assert [session.probe is None for session in record.sessions] == [False, True, True]
    assert record.probe_metrics() is None
    assert record.status == "done"


def test_a_record_from_before_the_probe_agrees_with_one_that_has_it(short_run):
    new = short_run(method="kmeans")
    sessions = tuple(session.model_copy(update={"probe": None}) for session in new.sessions)
    old = new.model_copy(update={"sessions": sessions})
    assert old.probe_metrics() is None
    assert old.agrees_with(new)
    assert new.agrees_with(old)
    other = sessions[0].model_copy(update={"train_assignment": sessions[0].train_assignment[::-1]})
    assert not old.model_copy(update={"sessions": (other, *sessions[1:])}).agrees_with(new)


@pytest.mark.parametrize("method", ["fea", "frost"])
def test_inference_changes_predictions_and_no_training(short_run, method):
    head, means = short_run(method=method), short_run(method=method, settings={"inference": "gaussian"})
    assert "inference" not in head.question.params  # its key is that of runs from before the knob
    for one, two in zip(head.sessions[1:], means.sessions[1:], strict=True):
        assert [phase.terms for phase in one.phases] == [phase.terms for phase in two.phases]
        assert one.counts != two.counts
    assert head.sessions[0].probe == means.sessions[0].counts
    assert means.stored.numbers > head.stored.numbers  # one covariance more


def test_the_parameter_set_of_fea_gaussian_is_that_knob():
    assert ask("fea", params="fea-gaussian").changed == {"inference": "gaussian"}


@pytest.mark.parametrize(
    ("method", "settings"),
    [("fea", {"inference": "gaussian"}), ("gaussian", {"shrinkage": 0.5}), ("kmeans", {"shared.trunk": "bfloat16"})],
)
def test_what_a_record_tells_asks_the_same_question_again(method, settings):
    """Knobs and constants that are left out at their defaults survive the way through a record's settings."""
    record = make_record(method, "digits-t2", 0, changed=settings)
    assert record.settings == settings
    assert ask(method, settings=record.settings).question.key == ask(method, settings=settings).question.key
    assert ask(method, settings=settings).question.key != ask(method).question.key
