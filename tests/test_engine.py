"""The only optimiser, against one written by hand."""

import math

import pytest
import torch
from torch import nn

from benchmark.display import Display, Stop
from benchmark.engine.checkpoint import Checkpoint, Progress, State
from benchmark.engine.training import TrainingPlan, fit, learning_rate
from benchmark.errors import UsageError
from benchmark.protocol.models import Shared
from methods.contract import Phase


class Toy(nn.Module):
    """A weight and a bias pulled towards the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 3.0]]))
        self.bias = nn.Parameter(torch.tensor([0.3, -0.7]))

    def diagnose(self, batch):
        return {"size": self.weight.abs().sum(), "odd": torch.tensor(math.nan)}

    def losses(self, batch):
        return {"a": (self.weight * batch).sum(), "b": (self.bias**2).sum() * 3}


class Batches:
    steps, from_disk = 2, False

    def batch(self, epoch: int, step: int) -> torch.Tensor:
        return torch.full((2, 2), 1.0 + epoch + 10 * step)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_descent_equals_sgd_written_by_hand(tmp_path, clip):
    """Momentum, cosine by epoch to its floor, weight decay on matrices and not on biases, clipping of the whole."""
    shared = Shared(weight_decay=0.1, momentum=0.8, lr_floor=0.01)
    toy, epochs, lr = Toy(), 3, 0.05
    weight, bias = toy.weight.detach().clone().double(), toy.bias.detach().clone().double()
    progress = Progress(terms=[{}], diagnostics=[{}])
    plan = TrainingPlan("toy", 1, 0, epochs, lr, clip, shared)
    state = State(progress, {}, Checkpoint(tmp_path / "state", {"toy": 1}))
    fit(toy, Batches(), plan, seed=0, state=state, stop=Stop(), display=Display(quiet=True))

    pull_w, pull_b = torch.zeros_like(weight), torch.zeros_like(bias)
    logged = []
    for epoch in range(epochs):
        rate = lr * (0.01 + 0.99 * (1 + math.cos(math.pi * epoch / epochs)) / 2)
        terms = []
        for step in range(2):
            batch = Batches().batch(epoch, step).double()
            terms.append(float((weight * batch).sum()))
            grad_w, grad_b = batch.clone(), 6 * bias
            norm = math.sqrt(float(grad_w.square().sum() + grad_b.square().sum()))
            scale = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
            pull_w = 0.8 * pull_w + scale * grad_w + 0.1 * weight
            pull_b = 0.8 * pull_b + scale * grad_b
            weight, bias = weight - rate * pull_w, bias - rate * pull_b
        logged.append(sum(terms) / 2)
    assert torch.allclose(toy.weight.double(), weight, atol=1e-5)
    assert torch.allclose(toy.bias.double(), bias, atol=1e-5)
    assert progress.terms[0]["a"] == pytest.approx(logged, rel=1e-3)
    assert progress.diagnostics[0]["size"][-1] == pytest.approx(float(weight.abs().sum()), rel=1e-3)
    assert progress.diagnostics[0]["odd"] == [None] * epochs
    assert (progress.step, progress.optimiser_steps) == (6, 6)


def test_cosine_ends_near_its_floor():
    assert learning_rate(0.1, 1e-3, 0, 200) == pytest.approx(0.1)
    assert learning_rate(0.1, 1e-3, 100, 200) == pytest.approx(0.1 * (1 + 1e-3) / 2)
    assert 1e-4 < learning_rate(0.1, 1e-3, 199, 200) < 1.1e-4


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def losses(self, batch): return None", "must be a dictionary of terms, not NoneType"),
        ("def losses(self, batch): return {'x': 1.0}", "term 'x' must be a tensor with a single number"),
        (
            "def losses(self, batch): return {'x': self.block(batch.a)}",
            "term 'x' must be a tensor with a single number",
        ),
        ("def losses(self, batch): return {'x': torch.ones(())}", "depends on a trained parameter"),
        ("def other(self): pass", "class 'Mine' lacks losses"),
        ("def losses(self, batch): return {}\n    class Params(BaseModel): a: int = 1", "subclass of Method.Params"),
        ("def losses(self, batch): return {}\n    class Params(Method.Params): a: int", "give the knob 'a' a default"),
        (
            "def losses(self, batch): return {}\n    def phases(self): return (Phase('a'), Phase('b'))",
            "shares of the method's phases must add up to 1",
        ),
        (
            "def losses(self, batch): return {}\n    def predict(self, tokens): return torch.full((len(tokens),), 99)",
            "must predict a row from 0 to 5",
        ),
        (
            "def losses(self, batch): return {'x': self.block(batch.a).sum()}\n"
            "    def diagnose(self, batch): return {'x': torch.ones(3)}",
            "diagnose must return single numbers",
        ),
        (
            "def losses(self, batch): return {}\n    def memory(self): return torch.tensor([3]), torch.tensor([0])",
            "images that are not of session 0",
        ),
        (  # an image of session 0 that was not kept when it ended, taken up later
            "def losses(self, batch): return {}\n    def begin(self, *_): self.late = True; super().begin(*_)\n"
            "    def memory(self): return (torch.tensor([2]), torch.tensor([0])) if hasattr(self, 'late')"
            " else super().memory()",
            "images that are not of session 1",
        ),
        (
            "def losses(self, batch): return {}\n    def memory(self): return torch.tensor([2]), torch.tensor([7])",
            "a row that exists",
        ),
        (
            "def losses(self, batch): return {}\n    def end(self, s): list(s.recall(torch.tensor([1300])))",
            "asks for image 1300, which is neither of this session nor in its memory",
        ),
        (
            "def losses(self, batch): return {}\n    def end(self, s): self.before = s",
            "keeps a tensor in 'before.ids', outside its parameters and buffers",
        ),
    ],
)
def test_mistakes_of_an_own_method_are_told_in_one_sentence(short_run, tmp_path, body, said):
    head = "import torch\nfrom pydantic import BaseModel\nfrom methods.contract import Method, Phase\n"
    (tmp_path / "mine.py").write_text(f"{head}class Mine(Method):\n    {body}\n")
    with pytest.raises(UsageError, match=said):
        short_run(method=f"{tmp_path / 'mine.py'}:Mine")


@pytest.mark.parametrize("method", ["frost", "autonovel", "gm"])
def test_a_knob_that_does_not_fit_the_backbone_is_told(short_run, tmp_path, method):
    with pytest.raises(UsageError, match=f"{method}: topk is 97, but features have 96 dimensions"):
        short_run(method=method, settings={"topk": 97})
    assert not list(tmp_path.rglob("*.json"))


def test_default_phase_takes_a_whole_batch_of_the_session():
    assert Phase() == Phase(share=1.0, novel=1.0, memory=0.0, pool="session")
