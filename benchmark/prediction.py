"""What a protocol costs, from what `bench speed` measured: the usual way and ours."""

from dataclasses import asdict, dataclass
from typing import Any

from tabulate import tabulate

from benchmark.errors import UsageError
from benchmark.protocol.protocols import Protocol
from benchmark.protocol.reading import suggest
from benchmark.speed import Speed


@dataclass(frozen=True)
class Prediction:
    """What a whole run of a protocol would cost both ways, in seconds."""

    protocol: str
    budget: str
    views: int
    usual: float
    bank: float
    training: float

    @property
    def ratio(self) -> float:
        return self.usual / (self.bank + self.training)

    @property
    def later_ratio(self) -> float:
        """For every run after the first, which finds the bank built."""
        return self.usual / self.training


def predictable(protocol: Protocol, budget: str) -> Protocol:
    """The protocol, if a prediction can be made for it."""
    if budget not in protocol.budgets:
        raise UsageError(f"unknown budget '{budget}' of {protocol.name}{suggest(budget, protocol.budgets)}")
    if protocol.data.layout == "embedded":
        raise UsageError(f"the cost of {protocol.name} is not worth predicting: it runs in a minute")
    if protocol.data.train is None:
        raise UsageError(f"the cost of {protocol.name} cannot be predicted: nobody says how many images it has")
    return protocol


def predict(speed: Speed, protocol: Protocol, budget_name: str) -> Prediction:
    """From measured times: images a run sends through the network, and steps it makes on tokens.

    Two views an image and step in discovery sessions, one in the base session, as FEA trains. Teachers, heads and
    evaluation are left out of both ways.
    """
    data, budget = protocol.data, protocol.budgets[budget_name]
    train, test = data.most("train"), data.most("test")
    views = 8 if protocol.views == "live" else protocol.views
    sizes = [len(classes) for classes in protocol.classes]
    images = train * (sizes[0] * budget.base_epochs + 2 * sum(sizes[1:]) * budget.novel_epochs)
    banked = sum(sizes) * (train * (1 + views) + test)
    return Prediction(
        protocol.name,
        budget_name,
        views,
        usual=images * speed.usual_step / speed.batch,
        bank=banked / speed.trunk_images_per_second,
        training=images * speed.our_step / speed.batch,
    )


def document(speed: Speed, predictions: list[Prediction]) -> dict[str, Any]:
    predicted = [asdict(p) | {"ratio": p.ratio, "later_ratio": p.later_ratio} for p in predictions]
    return {**asdict(speed), "predicted_seconds": predicted}


def text(speed: Speed, predictions: list[Prediction]) -> str:
    """For people."""
    steps = [
        ["usual: whole network, last block trained", f"{speed.usual_step * 1e3:,.1f} ms", f"{speed.step_ratio:,.0f}"],
        ["tokens from the bank, plain block", f"{speed.plain_step * 1e3:,.1f} ms", f"{speed.plain_ratio:,.1f}"],
        ["tokens from the bank, class token alone", f"{speed.our_step * 1e3:,.1f} ms", "1"],
        ["roofline of the last", f"{speed.roofline_step * 1e3:,.1f} ms", f"1/{speed.step_over_roofline:.2f}"],
    ]
    rounded = ["trunk in bfloat16", "no units for it here", ""]
    if speed.trunk_bfloat16_images_per_second is not None:
        rate = f"{speed.trunk_bfloat16_images_per_second:,.1f} images/s"
        rounded = ["trunk in bfloat16", rate, f"{speed.trunk_bfloat16_ratio:.1f} times float32"]
    machine = [
        ["trunk", f"{speed.trunk_images_per_second:,.1f} images/s", f"{speed.trunk_fraction_of_peak:.0%} of peak"],
        rounded,
        *(
            [f"{what}, without oneDNN", f"{ratio:.2f} times the time", ""]
            for what, ratio in (
                ("our step", speed.without_onednn_step_ratio),
                ("trunk", speed.without_onednn_trunk_ratio),
            )
            if ratio is not None
        ),
        ["matrix products (peak)", f"{speed.peak_flops / 1e9:,.0f} GFLOP/s", ""],
        ["reading memory", f"{speed.read_bytes_per_second / 1e9:,.1f} GB/s", ""],
    ]
    cost = [
        [
            f"{p.protocol}, {p.budget}",
            f"{p.usual / 3600:,.1f} h",
            f"{p.bank / 3600:,.2f} h",
            f"{p.training / 3600:,.2f} h",
            f"{p.ratio:,.0f} / {p.later_ratio:,.0f}",
        ]
        for p in predictions
    ]
    heading = f"{speed.backbone}, {speed.batch} images a step, {speed.device}, {speed.threads} threads"
    parts = [
        tabulate(steps, headers=["one training step", "time", "times ours"], disable_numparse=True),
        tabulate(machine, headers=["this machine", "", ""], disable_numparse=True),
        tabulate(
            cost,
            headers=["predicted run", "usual", "bank (once)", "training", "cheaper: first / later runs"],
            disable_numparse=True,
        ),
    ]
    return "\n\n".join([heading, *parts])
