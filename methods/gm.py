"""GM: grow and merge. A growing branch discovers, a static one remembers, exemplars tie them together.

Paper: Grow and Merge (arXiv 2210.04174). The weakest provenance of the suite: no official release could be found; the
formulas follow an early development repository that seems to be its first author's (code:gm-dev), not the paper's.
Terms: `pairs`, `consistency` and `distil` are L_bce, L_mse and γ·L_sd (grow); `merge` is the prototypes' cross-entropy,
`distil` again γ·L_sd (merge); `unify` trains the unified head, for `inference: unified` alone.
Deviations: cosine cluster head, normalised features, no novelty filter; docs/methods.md has the reasons.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from methods import losses as L
from methods.clustering import distances
from methods.contract import Batch, LabelledSession, MemoryBatch, Method, Phase, Session, Tokens, knob
from methods.heads import CosineHead, frozen
from methods.memory import Exemplars, densest


class GM(Method):
    class Params(Method.Params):
        """Knobs of GM."""

        grow: float = knob(100 / 200, "code:gm-dev", "share of the epochs spent growing", gt=0, lt=1)
        w_bce: float = knob(1.0, "code:gm-dev", "weight of the pairs", ge=0)
        gamma_sd: float = knob(1.0, "code:gm-dev", "weight of the distillation from the static branch", ge=0)
        replay: bool = knob(True, "code:gm-dev", "exemplars take part in the merge, and are distilled there")
        topk: int = knob(5, "code:gm-dev", "dimensions that must agree for two images to be a pair", ge=1)
        standardize: bool = knob(False, "ours", "give all dimensions the same scale before ranking")
        prototype_temperature: float = knob(0.1, "code:gm-dev", "temperature of the class means in the merge", gt=0)
        ema_beta: float = knob(0.99, "code:gm-dev", "share of the static branch that outlives a session", ge=0, le=1)
        neighbours: int = knob(15, "code:gm-dev", "neighbours whose distance measures density", ge=1)
        keep: float = knob(0.5, "code:gm-dev", "share of the images, the densest, that may be exemplars", gt=0, le=1)
        exemplars: int = knob(20, "paper", "images kept of a class", ge=1)
        inference: Literal["nme_closest", "unified"] = knob(
            "nme_closest", "code:gm-dev", "nearest class mean in the branch that is surer, or the unified head"
        )

    params: Params
    believed_ids: Tensor
    believed_row: Tensor
    mean: Tensor
    mean_row: Tensor

    def build(self) -> None:
        self.require_dimensions(self.params.topk)
        self.base_rows = self.head.rows
        self.static = frozen(self.block)
        self.exemplars, self.chosen = Exemplars(), Exemplars()
        for name in ("believed_ids", "believed_row", "mean_row"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.long))
        self.register_buffer("mean", torch.zeros(0, self.width))

    def phases(self) -> tuple[Phase, ...]:
        p = self.params
        grow, merge = Phase("grow", p.grow, memory=float(p.gamma_sd > 0)), Phase("merge", 1 - p.grow)
        return grow, replace(merge, novel=0.5, memory=0.5, pool="session+memory") if p.replay else merge

    def begin(self, session: Session, phase: Phase) -> None:
        super().begin(session, phase)
        self.merging = phase.name == "merge"
        if not self.merging:
            self.cluster = CosineHead(self.width, session.new, self.head.temperature)

    def prepare(self, session: Session, phase: Phase) -> None:
        """Before the merge: label the session's images, choose exemplars among the densest, fix all class means."""
        if phase.name == "merge":
            h = self.clean_features(session)
            scores = self.cluster(h)
            self.believed_ids = session.ids
            self.believed_row = session.known + scores.argmax(dim=1)
            dense = densest(scores, self.params.neighbours, self.params.keep)
            self.chosen.add(self.believed_ids, h, self.believed_row, self.params.exemplars, dense)
            self.find_means(session)

    def find_means(self, session: Session) -> None:
        """Means of the exemplars of every class, base classes as the static branch sees them."""
        ids, row = (torch.cat(pair) for pair in zip(self.memory(), (self.chosen.ids, self.chosen.row), strict=True))
        branches = [(self.static(part.tokens), self.block(part.tokens)) for part in session.recall(ids)]
        static, dynamic = (F.normalize(torch.cat(branch), dim=1) for branch in zip(*branches, strict=True))
        h = torch.where(row[:, None] < self.base_rows, static, dynamic)
        self.mean_row = row.unique()
        self.mean = F.normalize(torch.stack([h[row == own].mean(dim=0) for own in self.mean_row]), dim=1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        h = self.block(batch.both)
        recalled = None if batch.memory is None else self.block(batch.memory.both)
        terms = self.merge_terms(batch, h, recalled) if self.merging else self.grow_terms(h)
        if self.params.gamma_sd > 0 and batch.memory is not None and recalled is not None:
            with torch.no_grad():
                before = self.static(batch.memory.both)
            terms["distil"] = self.params.gamma_sd * L.feature_distillation(recalled, before, "cosine")
        return terms

    def grow_terms(self, h: Tensor) -> dict[str, Tensor]:
        p_a, p_b = self.cluster(h).softmax(dim=1).chunk(2)
        terms = {"consistency": L.consistency(p_a, p_b)}
        if self.params.w_bce > 0:
            terms["pairs"] = self.params.w_bce * L.pairwise_agreement(p_a, p_b, self.pairs(h[: len(p_a)]))
        return terms

    def merge_terms(self, batch: Batch, h: Tensor, recalled: Tensor | None) -> dict[str, Tensor]:
        rows = self.believed_row[torch.searchsorted(self.believed_ids, batch.ids)].repeat(2)
        if recalled is not None and batch.memory is not None:
            h, rows = torch.cat([h, recalled]), torch.cat([rows, batch.memory.row.repeat(2)])
        near = F.normalize(h, dim=1) @ self.mean.T / self.params.prototype_temperature
        terms = {"merge": F.cross_entropy(near, torch.searchsorted(self.mean_row, rows))}
        if self.params.inference == "unified":
            terms["unify"] = F.cross_entropy(self.head(h.detach()), rows)
        return terms

    def pairs(self, h: Tensor) -> Tensor:
        return L.same_ranking(h, self.params.topk, standardize=self.params.standardize)

    def end(self, session: Session) -> None:
        if isinstance(session, LabelledSession):
            ids = session.ids
            self.exemplars.add(ids, self.clean_features(session), session.labels, self.params.exemplars)
        else:
            self.exemplars.take(self.chosen)
            self.believed_ids, self.believed_row = self.believed_ids[:0], self.believed_row[:0]
            for static, dynamic in zip(self.static.parameters(), self.block.parameters(), strict=True):
                static.lerp_(dynamic, 1 - self.params.ema_beta)
        self.find_means(session)

    def predict(self, tokens: Tokens) -> Tensor:
        if self.params.inference == "unified":
            return super().predict(tokens)
        branches = [F.normalize(branch(tokens), dim=1) for branch in (self.static, self.block)]
        static, dynamic = (distances(h, self.mean).min(dim=1) for h in branches)
        return self.mean_row[torch.where(static.values < dynamic.values, static.indices, dynamic.indices)]

    def diagnose(self, batch: Batch) -> dict[str, Tensor]:
        judged: MemoryBatch | Batch = batch if batch.memory is None else batch.memory
        agreed = F.cosine_similarity(self.block(judged.a), self.static(judged.a), dim=1).mean()
        pairs = L.positive_share(self.pairs(self.block(batch.a)))
        # while growing the new classes have no means yet: no image can be predicted as one
        predicted = super().diagnose(batch) if self.merging else {}
        return predicted | {"positive_pairs": pairs, "branch_cosine": agreed}

    def memory(self) -> tuple[Tensor, Tensor]:
        return self.exemplars.ids, self.exemplars.row
