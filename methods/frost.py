"""FRoST: feature replay and distillation keep the old, ranking statistics and self-training find the new.

Paper: Class-incremental Novel Class Discovery (arXiv 2207.08605), with code.
Terms: `pairs` is L_bce, `consistency` ω(e)·L_mse of the novel head, `label` c_inc·r(e)·L_self, `replay` λ_p·L_replay,
`distil` w_kd·L_kd.
Deviations: cosine heads, the shared learning rate and cosine instead of steps, whole batches of novel images;
docs/methods.md has the reasons.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from methods import losses as L
from methods.contract import Batch, Method, Phase, Session, Tokens, knob
from methods.heads import CosineHead, frozen
from methods.memory import Inference, Prototypes

VARIANCE_FLOOR = 1e-5
"""Added to every variance (code:frost)."""


class FRoST(Method):
    class Params(Method.Params):
        """Knobs of FRoST."""

        w_bce: float = knob(1.0, "code:frost", "weight of the pairs", ge=0)
        w_kd: float = knob(10.0, "code:frost", "weight of the feature distillation; 0: none", ge=0)
        lambda_proto: float = knob(1.0, "code:frost", "weight of the replayed features", ge=0)
        n_p: int = knob(20, "code:frost", "pseudo features of a known class a step; 0: no replay; by dataset", ge=0)
        c_inc: float = knob(0.01, "code:frost", "weight of the joint head's self-training", ge=0)
        w_consistency: float = knob(50.0, "code:frost", "λ_c, final weight of the consistency; by dataset", ge=0)
        ramp: float = knob(150 / 200, "code:frost", "L, share of the epochs with a rising weight; by dataset", ge=0)
        topk: int = knob(5, "code:frost", "dimensions that must agree for two images to be a pair", ge=1)
        standardize: bool = knob(False, "ours", "give all dimensions the same scale before ranking")
        sigma_shared: bool = knob(True, "code:frost", "one deviation for all classes")
        inference: Inference = knob(
            "head", "paper", "gaussian: a linear discriminant on the stored means instead (ours)", later=True
        )

    params: Params

    def build(self) -> None:
        self.require_dimensions(self.params.topk)
        self.prototypes = Prototypes(self.width, covariance=self.params.inference == "gaussian")

    def begin(self, session: Session, phase: Phase) -> None:
        super().begin(session, phase)
        self.novel = CosineHead(self.width, session.new, self.head.temperature)
        self.teacher = frozen(self.block)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        h_a, h_b = self.block(batch.both).chunk(2)
        return self.keep_old(batch, h_a) | self.find_new(batch, h_a, h_b)

    def keep_old(self, batch: Batch, h_a: Tensor) -> dict[str, Tensor]:
        """Replayed statistics hold the joint head, the teacher holds the features of the first view."""
        p, terms = self.params, {}
        if p.n_p > 0 and p.lambda_proto > 0:
            pseudo, rows = self.prototypes.draw(p.n_p, shared=p.sigma_shared)
            terms["replay"] = p.lambda_proto * F.cross_entropy(self.head(pseudo), rows)
        if p.w_kd > 0:
            with torch.no_grad():
                before = self.teacher(batch.a)
            terms["distil"] = p.w_kd * L.feature_distillation(h_a, before, "frost")
        return terms

    def find_new(self, batch: Batch, h_a: Tensor, h_b: Tensor) -> dict[str, Tensor]:
        """The novel head clusters; the joint head learns the clusters as its new rows."""
        p, terms = self.params, {}
        ramp = L.ramp_up(batch.epoch, batch.epochs, p.ramp)
        scores = self.novel(h_a)
        p_a, p_b = scores.softmax(dim=1), self.novel(h_b).softmax(dim=1)
        if p.w_consistency > 0:
            terms["consistency"] = p.w_consistency * ramp * L.consistency(p_a, p_b)
        if p.w_bce > 0:
            same = L.same_ranking(h_a, p.topk, standardize=p.standardize)
            terms["pairs"] = p.w_bce * L.pairwise_agreement(p_a, p_b, same)
        if p.c_inc > 0:
            cluster = self.new_rows.start + scores.argmax(dim=1)
            terms["label"] = p.c_inc * ramp * F.cross_entropy(self.head(h_a), cluster)
        return terms

    def end(self, session: Session) -> None:
        h = self.clean_features(session)
        rows = self.believed_rows(session, h, lambda h: self.novel(h))  # noqa: PLW0108 - none in session 0
        self.prototypes.add(h, rows, unbiased=True, floor=VARIANCE_FLOOR)

    def predict(self, tokens: Tokens) -> Tensor:
        if self.params.inference == "head":
            return super().predict(tokens)
        return self.prototypes.nearest(self.block(tokens))

    def diagnose(self, batch: Batch) -> dict[str, Tensor]:
        p, h = self.params, self.block(batch.a)
        joint, novel = self.head(h).argmax(dim=1), self.new_rows.start + self.novel(h).argmax(dim=1)
        # by the stored means no image can be predicted as a class of the session under way
        predicted = super().diagnose(batch) if p.inference == "head" else {}
        return predicted | {
            "positive_pairs": L.positive_share(L.same_ranking(h, p.topk, standardize=p.standardize)),
            "heads_agree": (joint == novel).float().mean(),
            "distance_to_teacher": L.relative_distance(h, self.teacher(batch.a)),
        }
