"""MSc-iNCD: frozen features, new rows by optimal assignment; a joint head then learns them with replayed statistics.

Paper: Large-scale Pre-trained Models are Surprisingly Strong in Incremental Novel Class Discovery (arXiv 2303.15975),
with code. Terms: `label` is the swapped prediction of the session's own rows; `novel` and `replay` are the two parts of
the joint head's cross-entropy (Baseline++). Without `replay` it is the paper's Baseline: rows of all sessions side by
side. Deviations: a labelled start, whose rows stay; the number of replayed features follows from the number of classes;
docs/methods.md has the reasons.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from methods import losses as L
from methods.contract import Batch, Method, Phase, Session, knob
from methods.memory import Prototypes

VARIANCE_FLOOR = 1e-5
"""Added to every variance (code:msc)."""


class MSciNCD(Method):
    class Params(Method.Params):
        """Knobs of MSc-iNCD."""

        replay: bool = knob(True, "code:msc", "train a joint head with replayed features: Baseline++")
        epsilon: float = knob(0.05, "code:msc", "how soft the assignment of images to new rows is", gt=0)
        rounds: int = knob(3, "code:msc", "rounds in which the assignment is evened out", ge=1)
        transfer: float = knob(1 / 3, "code:msc", "share of the epochs in which the joint head learns", gt=0, lt=1)
        balance: float = knob(0.78, "inferred", "replayed features of a known class for each view of a new one", gt=0)

    params: Params
    session_rows: Tensor

    def build(self) -> None:
        self.block.requires_grad_(False)
        self.register_buffer("session_rows", torch.zeros(0, self.width))
        if self.params.replay:
            self.prototypes = Prototypes(self.width)

    def phases(self) -> tuple[Phase, ...]:
        if not self.params.replay:
            return (Phase(),)
        return Phase(share=1 - self.params.transfer), Phase("transfer", share=self.params.transfer)

    def begin(self, session: Session, phase: Phase) -> None:
        super().begin(session, phase)
        self.transfers = phase.name == "transfer"

    def prepare(self, session: Session, phase: Phase) -> None:
        if phase.name == "transfer":
            self.session_rows = self.head.weight[session.new_rows].clone()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            h = self.block(batch.both)
        return self.learn_joint_head(h) if self.transfers else self.discover(h)

    def discover(self, h: Tensor) -> dict[str, Tensor]:
        """Each view learns the assignment of the other; old rows have no part in it."""
        a, b = self.head(h)[:, self.new_rows].chunk(2)
        soft = self.head.temperature / self.params.epsilon
        targets = [L.sinkhorn(soft * scores, self.params.rounds) for scores in (a, b)]
        return {"label": (L.cross_entropy(targets[0], b) + L.cross_entropy(targets[1], a)) / 2}

    def learn_joint_head(self, h: Tensor) -> dict[str, Tensor]:
        """One mean over novel images, labelled by the session's rows, and replayed features."""
        rows = self.new_rows.start + self.session_scores(h).argmax(dim=1)
        pseudo, old = self.prototypes.draw(self.replayed(len(h)), shared=True)
        share = len(h) / (len(h) + len(pseudo))
        return {
            "novel": share * F.cross_entropy(self.head(h), rows),
            "replay": (1 - share) * F.cross_entropy(self.head(pseudo), old),
        }

    def session_scores(self, h: Tensor) -> Tensor:
        """Cosines with the session's rows as discovery left them."""
        return F.normalize(h, dim=1) @ F.normalize(self.session_rows, dim=1).T

    def replayed(self, pictures: int) -> int:
        """Features drawn of every known class in a step."""
        return max(1, round(self.params.balance * pictures / (self.new_rows.stop - self.new_rows.start)))

    def end(self, session: Session) -> None:
        if self.params.replay:
            h = self.clean_features(session)
            rows = self.believed_rows(session, h, self.session_scores)
            self.prototypes.add(h, rows, unbiased=True, floor=VARIANCE_FLOOR)
            self.session_rows = self.session_rows[:0]
