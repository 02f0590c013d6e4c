"""FEA: feature enhancement and adaptation, with prototypes and no exemplars.

Paper: Continual Novel Class Discovery via Feature Enhancement and Adaptation (arXiv 2405.06389); no code was released.
Terms: `replay` is L_pr, `distil` λ·L_fd (together L_old); `contrast` L_cl; `label` L_ce and `guide` ε·D_g (together
L_guide); `css` L_CSS; `bap` α·L_BAP.
Deviations: every reading the paper leaves open is listed with its reason in docs/fea.md; the paper to the letter is
protocols/params/fea-literal.yaml.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from methods import losses as L
from methods.contract import Batch, Method, Phase, Session, Tokens, knob
from methods.heads import Projector, frozen
from methods.memory import Inference, Prototypes

WARM_UP = 30 / 200
"""The paper's 30 of 200 epochs, for BAP and for the temperature of the targets (code:simgcd)."""
FIRST_TARGET, LAST_TARGET = 0.07, 0.04
"""Temperatures of the targets (code:simgcd)."""


class FEA(Method):
    class Params(Method.Params):
        """Knobs of FEA."""

        ce_mode: Literal["simgcd", "plain", "none"] = knob(
            "simgcd", "ours", "target of L_ce: the other view sharpened and detached, or as printed (A4)"
        )
        ce_rows: Literal["all", "new"] = knob("new", "ours", "rows among which L_ce labels; all is the letter (A9)")
        ce_warmup: float = knob(WARM_UP, "ours", "share of the epochs before L_ce sets in (A36)", ge=0, lt=1)
        epsilon: float = knob(1.0, "ours", "weight of D_g; the paper prints 0.1", ge=0)
        fd: L.Distillation = knob("frost", "code:frost", "form of the feature distillation (A13)")
        lambda_fd: float = knob(10.0, "code:frost", "its weight; the paper prints 0.01 for a form it leaves open", ge=0)
        n_p: int = knob(20, "code:frost", "pseudo features of a known class a step; 0: no replay (A12)", ge=0)
        sigma_shared: bool = knob(False, "paper", "one deviation for all classes, as FRoST does (A11)")
        include_self: bool = knob(True, "paper", "keep an anchor's similarity to itself in the sums (A7)")
        symmetric: bool = knob(False, "paper", "take anchors from both views (A6)")
        keep_projectors: bool = knob(True, "ours", "keep projectors between sessions (A17)")
        contrastive: bool = knob(True, "paper", "use L_cl")
        css: bool = knob(True, "paper", "use the centroid-to-samples similarity constraint")
        bap: bool = knob(True, "paper", "use the boundary-aware prototype constraint")
        omega: float = knob(2.0, "paper", "weight of BAP", ge=0)
        inference: Inference = knob(
            "head", "paper", "gaussian: a linear discriminant on the stored means instead (ours)", later=True
        )

    params: Params

    def build(self) -> None:
        self.prototypes = Prototypes(self.width, covariance=self.params.inference == "gaussian")

    def begin(self, session: Session, phase: Phase) -> None:
        super().begin(session, phase)
        self.teacher = frozen(self.block)
        if session.number == 1 or not self.params.keep_projectors:
            # two projectors: g also receives stored prototypes, q does not (A16)
            self.q = Projector(self.width, self.projector_sizes) if self.params.contrastive else None
            self.g = Projector(self.width, self.projector_sizes) if self.params.bap else None

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        h = self.block(batch.both)
        logits = self.head(h)
        return self.keep_old(batch, h) | self.find_new(batch, h, logits) | self.shape_new(batch, h, logits)

    def keep_old(self, batch: Batch, h: Tensor) -> dict[str, Tensor]:
        """L_old: replayed prototypes hold the rows, distillation holds the features."""
        p, terms = self.params, {}
        if p.n_p > 0:
            pseudo, rows = self.prototypes.draw(p.n_p, shared=p.sigma_shared)
            terms["replay"] = F.cross_entropy(self.head(pseudo), rows)
        if p.fd != "none" and p.lambda_fd > 0:
            with torch.no_grad():
                old = self.teacher(batch.both)
            terms["distil"] = p.lambda_fd * L.feature_distillation(h, old, p.fd)
        return terms

    def find_new(self, batch: Batch, h: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """L_novel: contrast between images, self-labelling, and the pull towards the new rows."""
        p, terms = self.params, {}
        if self.q is not None:
            z_a, z_b = self.q(h).chunk(2)
            terms["contrast"] = L.contrast(z_a, z_b, include_self=p.include_self, symmetric=p.symmetric)
        if p.ce_mode != "none" and batch.epoch >= p.ce_warmup * batch.epochs:
            a, b = (logits if p.ce_rows == "all" else logits[:, self.new_rows]).chunk(2)
            if p.ce_mode == "plain":
                terms["label"] = L.cross_entropy(a.softmax(dim=1), b)
            else:
                target = L.target_temperature(batch.epoch, batch.epochs, FIRST_TARGET, LAST_TARGET, WARM_UP)
                terms["label"] = L.self_labelling(a, b, self.head.temperature / target)
        if p.epsilon > 0:
            terms["guide"] = p.epsilon * L.guide_to_novel(logits, self.new_rows)
        return terms

    def shape_new(self, batch: Batch, h: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """The paper's two additions: CSS sharpens the new classes, BAP fits them in among the old."""
        p, terms = self.params, {}
        novel = logits[:, self.new_rows]
        if p.css:
            a, b = (novel * self.head.temperature).chunk(2)
            terms["css"] = L.centroid_similarity(a, b, include_self=p.include_self, symmetric=p.symmetric)
        alpha = p.omega * L.warm_up(batch.epoch, batch.epochs, WARM_UP)
        if self.g is not None and alpha > 0:
            p_a, p_b = logits.softmax(dim=1)[:, self.new_rows].detach().chunk(2)
            z_a, z_b = self.g(h).chunk(2)
            terms["bap"] = alpha * L.prototype_boundary(
                z_a,
                z_b,
                (p_a + p_b).argmax(dim=1),
                self.g(self.prototypes.mean),
                include_self=p.include_self,
                symmetric=p.symmetric,
            )
        return terms

    def end(self, session: Session) -> None:
        h = self.clean_features(session)
        self.prototypes.add(h, self.believed_rows(session, h, lambda h: self.head(h)[:, session.new_rows]))

    def predict(self, tokens: Tokens) -> Tensor:
        if self.params.inference == "head":
            return super().predict(tokens)
        return self.prototypes.nearest(self.block(tokens))

    def diagnose(self, batch: Batch) -> dict[str, Tensor]:
        moved = L.relative_distance(self.block(batch.a), self.teacher(batch.a))
        # by the stored means no image can be predicted as a class of the session under way
        predicted = super().diagnose(batch) if self.params.inference == "head" else {}
        return predicted | {"distance_to_teacher": moved}
