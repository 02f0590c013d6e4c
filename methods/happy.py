"""Happy: new rows begin at cluster centres, predictions are evened out in groups, hard prototypes are replayed.

Paper: Happy: A Debiased Learning Framework for Continual Generalized Category Discovery (arXiv 2410.06535), with code.
Terms: `label` is the self-distillation over all rows; `between`, `even_old` and `even_new` the three parts of the soft
entropy; `contrast` that of two views; `replay` and `distil` keep old classes.
Deviations: all images of a session are novel, so the prior between old and new rows is (0, 1) instead of even, the
part within old rows is off, and a session is clustered into its new classes alone; docs/methods.md has the reasons,
protocols/params/happy-literal.yaml the printed values.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from methods import losses as L
from methods.clustering import class_means, k_means
from methods.contract import Batch, Method, Phase, Session, knob
from methods.heads import Projector, frozen


class Happy(Method):
    class Params(Method.Params):
        """Knobs of Happy."""

        prior: Literal["novel", "even"] = knob(
            "novel", "ours", "share of old and new rows that `between` asks for: (0, 1), or half each as printed"
        )
        w_between: float = knob(1.0, "code:happy", "weight of `between`", ge=0)
        w_old: float = knob(0.0, "ours", "weight of `even_old`; the letter has 1", ge=0)
        w_new: float = knob(1.0, "code:happy", "weight of `even_new`", ge=0)
        target: float = knob(0.05, "code:happy", "temperature of the targets", gt=0)
        ce_rows: Literal["all", "new"] = knob("all", "code:happy", "rows among which images are labelled")
        init: Literal["kmeans", "random"] = knob("kmeans", "code:happy", "where new rows begin")
        restarts: int = knob(10, "ours", "random starts of k-means, the tightest of which is kept", ge=1)
        hardness: float = knob(0.1, "code:happy", "temperature at which prototypes like others are preferred", gt=0)
        w_proto: float = knob(1.0, "code:happy", "weight of the replayed prototypes; 0: none", ge=0)
        w_fd: float = knob(1.0, "code:happy", "weight of the feature distillation; 0: none", ge=0)
        contrastive: bool = knob(True, "code:happy", "use the contrast between two views")

    params: Params
    mean: Tensor
    radius: Tensor

    def build(self) -> None:
        self.register_buffer("mean", torch.zeros(0, self.width))  # of every class, of length one
        self.register_buffer("radius", torch.zeros(()))  # how far base images are from their mean, per dimension

    def begin(self, session: Session, phase: Phase) -> None:
        super().begin(session, phase)
        self.teacher = frozen(self.block)
        self.q = Projector(self.width, self.projector_sizes) if self.params.contrastive else None

    def prepare(self, session: Session, phase: Phase) -> None:  # noqa: ARG002 - there is one phase
        """Turn the fresh rows to the centres of the session's clusters; their length stays."""
        if self.params.init == "random":
            return
        h = F.normalize(self.clean_features(session), dim=1)
        centres = class_means(h, k_means(h, session.new, self.params.restarts), session.new)
        fresh = self.head.weight[session.new_rows].clone()
        found = centres.isfinite().all(dim=1)  # fewer images than classes leave a row where it is
        fresh[found] = fresh.norm(dim=1).mean() * F.normalize(centres[found], dim=1)
        self.head.weight[session.new_rows] = fresh

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        p, terms = self.params, {}
        h = self.block(batch.both)
        logits = self.head(h)
        among = logits if p.ce_rows == "all" else logits[:, self.new_rows]
        a, b = among.chunk(2)
        terms["label"] = L.self_labelling(a, b, self.head.temperature / p.target)
        between, old, new = L.group_entropy(logits, self.new_rows, even=p.prior == "even")
        weighted = {"between": (p.w_between, between), "even_old": (p.w_old, old), "even_new": (p.w_new, new)}
        terms |= {name: weight * term for name, (weight, term) in weighted.items() if weight > 0}
        if self.q is not None:
            terms["contrast"] = L.contrast(*self.q(h).chunk(2), include_self=False, symmetric=True)
        if p.w_proto > 0:
            pseudo, rows = self.hard_prototypes(len(h))
            terms["replay"] = p.w_proto * F.cross_entropy(self.head(pseudo), rows)
        if p.w_fd > 0:
            with torch.no_grad():
                before = self.teacher(batch.both)
            # the squared distance of unit features
            terms["distil"] = p.w_fd * 2 * L.feature_distillation(h, before, "cosine")
        return terms

    def hard_prototypes(self, count: int) -> tuple[Tensor, Tensor]:
        """Noisy prototypes with their rows; those that are like the others come more often."""
        rows = torch.multinomial(self.chances(), count, replacement=True)
        return self.mean[rows] + self.radius * torch.randn(count, self.width).to(self.mean), rows

    def chances(self) -> Tensor:
        """How often each prototype is drawn: by its mean cosine with the others."""
        cosines = self.mean @ self.mean.T
        alike = (cosines.sum(dim=1) - cosines.diagonal()) / max(1, len(self.mean) - 1)
        return (alike / self.params.hardness).softmax(dim=0)

    def end(self, session: Session) -> None:
        h = self.clean_features(session)
        rows = self.believed_rows(session, h, lambda h: self.head(h)[:, session.new_rows])
        unit, place = F.normalize(h, dim=1), rows - session.known
        means = class_means(unit, place, session.new)
        if session.number == 0:
            spread = (unit - means[place]).square().sum(dim=1)
            each = class_means(spread[:, None], place, session.new)
            self.radius = (each.mean() / self.width).sqrt()
        empty = ~means.isfinite().all(dim=1)
        means[empty] = self.head.weight[session.new_rows][empty]
        self.mean = torch.cat([self.mean.to(means), F.normalize(means, dim=1)])

    def diagnose(self, batch: Batch) -> dict[str, Tensor]:
        moved = L.relative_distance(self.block(batch.a), self.teacher(batch.a))
        return super().diagnose(batch) | {"distance_to_teacher": moved}
