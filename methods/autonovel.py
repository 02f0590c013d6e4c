"""AutoNovel: ranking statistics find pairs, a novel head clusters them, nothing keeps the old classes.

Paper: Automatically Discovering and Learning New Visual Categories with Ranking Statistics (arXiv 2002.05714).
Terms: `pairs` is L_bce, `label` c_inc·r(e)·CE on the novel head's labels, `consistency` ω(e)·MSE of both heads.
Deviations: no labelled cross-entropy (the labels are gone), no rotation pre-training (it would use future classes),
cosine heads; docs/methods.md has the reasons.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from methods import losses as L
from methods.contract import Batch, LabelledSession, Method, Phase, Session, knob
from methods.heads import CosineHead


class AutoNovel(Method):
    class Params(Method.Params):
        """Knobs of AutoNovel."""

        variant: Literal["IL", "concat"] = knob(
            "IL",
            "code:autonovel",
            "IL: the unified head learns too; concat: it stays, novel heads are appended",
        )
        w_bce: float = knob(1.0, "code:autonovel", "weight of the pairs", ge=0)
        c_inc: float = knob(0.05, "code:autonovel", "weight of the unified head's self-training", ge=0)
        w_consistency: float = knob(50.0, "code:autonovel", "λ_c, final weight of the consistency; by dataset", ge=0)
        ramp: float = knob(150 / 200, "code:autonovel", "L, share of the epochs with a rising weight; by dataset", ge=0)
        topk: int = knob(5, "code:autonovel", "dimensions that must agree for two images to be a pair", ge=1)
        standardize: bool = knob(False, "ours", "give all dimensions the same scale before ranking")

    params: Params
    novel: CosineHead

    def build(self) -> None:
        self.require_dimensions(self.params.topk)

    def begin(self, session: Session, phase: Phase) -> None:
        super().begin(session, phase)
        self.novel = CosineHead(self.width, session.new, self.head.temperature)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        p, ramp = self.params, L.ramp_up(batch.epoch, batch.epochs, self.params.ramp)
        h = self.block(batch.both)
        h_a = h[: len(h) // 2]
        joint, novel = self.head(h), self.novel(h)
        both_heads = [novel] if p.variant == "concat" else [joint, novel]
        terms = {}
        if p.w_consistency > 0:
            steady = [L.consistency(*logits.softmax(dim=1).chunk(2)) for logits in both_heads]
            terms["consistency"] = p.w_consistency * ramp * torch.stack(steady).sum()
        if p.w_bce > 0:
            p_a, p_b = novel.softmax(dim=1).chunk(2)
            same = L.same_ranking(h_a, p.topk, standardize=p.standardize)
            terms["pairs"] = p.w_bce * L.pairwise_agreement(p_a, p_b, same)
        if p.variant == "IL" and p.c_inc > 0:
            believed = self.new_rows.start + novel[: len(h_a)].argmax(dim=1)
            terms["label"] = p.c_inc * ramp * F.cross_entropy(joint[: len(h_a)], believed)
        return terms

    def end(self, session: Session) -> None:
        if self.params.variant == "concat" and not isinstance(session, LabelledSession):
            self.head.weight[session.new_rows] = self.novel.weight

    def diagnose(self, batch: Batch) -> dict[str, Tensor]:
        h = self.block(batch.a)
        agreed = self.head(h).argmax(dim=1) == self.new_rows.start + self.novel(h).argmax(dim=1)
        pairs = L.positive_share(L.same_ranking(h, self.params.topk, standardize=self.params.standardize))
        return super().diagnose(batch) | {"positive_pairs": pairs, "heads_agree": agreed.float().mean()}
