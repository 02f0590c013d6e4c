"""SimGCD*: SimGCD carried over to sessions, with D_g in place of its entropy term and 20 herded exemplars a class.

Paper: Parametric Classification for Generalized Category Discovery: A Baseline Study (arXiv 2211.11727), with code.
The starred form is the FEA paper's baseline. Terms: `label`, `guide` and `contrast` are (1-λ)·L_ce, (1-λ)·ε·D_g and
(1-λ)·L_cl on unlabelled images; `classify` and `group` are λ·L_cls and λ·L_sup on exemplars.
Deviations: exemplars take the place of labelled images; L_ce sets in late, as in FEA; docs/methods.md has the reasons.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from methods import losses as L
from methods.contract import Batch, Method, Phase, Session, knob
from methods.heads import Projector
from methods.memory import Exemplars

WARM_UP = 30 / 200
"""30 of 200 epochs, for the temperature of the targets."""
FIRST_TARGET, LAST_TARGET = 0.07, 0.04
"""Temperatures of the targets."""


class SimGCD(Method):
    class Params(Method.Params):
        """Knobs of SimGCD*."""

        sup_weight: float = knob(0.35, "code:simgcd", "λ, weight of the exemplars' terms", ge=0, lt=1)
        epsilon: float = knob(1.0, "ours", "weight of D_g, as in our FEA; the FEA paper prints 0.1", ge=0)
        ce_rows: Literal["all", "new"] = knob("all", "code:simgcd", "rows among which novel images are labelled")
        ce_warmup: float = knob(WARM_UP, "ours", "share of the epochs before L_ce sets in, as in FEA", ge=0, lt=1)
        tau_unsup: float = knob(1.0, "code:simgcd", "temperature of the contrast between images", gt=0)
        tau_sup: float = knob(0.07, "code:simgcd", "temperature of the contrast between classes", gt=0)
        exemplars: int = knob(20, "paper", "images kept of a class; 0: none", ge=0)

    params: Params

    def build(self) -> None:
        self.exemplars = Exemplars()

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(novel=0.5, memory=0.5, pool="session+memory") if self.params.exemplars else Phase(),)

    def begin(self, session: Session, phase: Phase) -> None:
        super().begin(session, phase)
        if session.number == 1:
            self.q = Projector(self.width, self.projector_sizes)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        p, terms = self.params, {}
        a, b = self.block(batch.both).chunk(2)
        novel = self.head(torch.cat([a, b]))
        if batch.memory is not None:
            old_a, old_b = self.block(batch.memory.both).chunk(2)
            a, b = torch.cat([a, old_a]), torch.cat([b, old_b])
            if p.sup_weight > 0:
                terms = self.learn_exemplars(old_a, old_b, batch.memory.row)
        rest = 1 - p.sup_weight
        terms["contrast"] = rest * L.contrast(
            self.q(a), self.q(b), temperature=p.tau_unsup, include_self=False, symmetric=True
        )
        if p.epsilon > 0:  # on novel images alone: exemplars belong on old rows
            terms["guide"] = rest * p.epsilon * L.guide_to_novel(novel, self.new_rows)
        if batch.epoch >= p.ce_warmup * batch.epochs:
            temperature = L.target_temperature(batch.epoch, batch.epochs, FIRST_TARGET, LAST_TARGET, WARM_UP)
            one, two = (self.head(a), self.head(b)) if p.ce_rows == "all" else novel[:, self.new_rows].chunk(2)
            terms["label"] = rest * L.self_labelling(one, two, self.head.temperature / temperature)
        return terms

    def learn_exemplars(self, a: Tensor, b: Tensor, rows: Tensor) -> dict[str, Tensor]:
        p = self.params
        return {
            "classify": p.sup_weight * F.cross_entropy(self.head(torch.cat([a, b])), rows.repeat(2)),
            "group": p.sup_weight * L.supervised_contrast(self.q(a), self.q(b), rows, p.tau_sup),
        }

    def end(self, session: Session) -> None:
        h = self.clean_features(session)
        rows = self.believed_rows(session, h, lambda h: self.head(h)[:, session.new_rows])
        self.exemplars.add(session.ids, h, rows, self.params.exemplars)

    def memory(self) -> tuple[Tensor, Tensor]:
        return self.exemplars.ids, self.exemplars.row
