"""Mine: one line that says what it does.

Paper: ...
Terms: `discover` is equation (1) of it, `hold` equation (2).
Deviations: none.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from methods.clustering import class_means, k_means
from methods.contract import Batch, LabelledSession, Method, Phase, Session, knob
from methods.heads import frozen


class Mine(Method):
    class Params(Method.Params):
        """Knobs, each with where its value comes from; `--set hold=3` reaches them."""

        hold: float = knob(1.0, "ours", "weight of the term that keeps features in place", ge=0)

    params: Params
    ids: Tensor
    row: Tensor
    mean: Tensor

    def build(self) -> None:
        """What is there from the start. Whatever must survive a crash is a buffer or a parameter."""
        self.register_buffer("ids", torch.zeros(0, dtype=torch.long))  # ids of the session's images, increasing
        self.register_buffer("row", torch.zeros(0, dtype=torch.long))  # the row we gave each of them
        self.register_buffer("mean", torch.zeros(0, self.width))  # of every class met so far

    # `def phases(self): return ()` trains nothing: then `losses` is not needed, `end` and `predict` do it all.

    def begin(self, session: Session, phase: Phase) -> None:
        """Modules for a session, from sizes alone: session.known, session.new, session.total."""
        super().begin(session, phase)  # adds the session's rows to self.head
        self.teacher = frozen(self.block)

    def prepare(self, session: Session, phase: Phase) -> None:  # noqa: ARG002 - there is one phase
        """Look at the session's images before training. Nothing here has a label."""
        features = F.normalize(self.clean_features(session), dim=1)
        self.ids, self.row = session.ids, session.known + k_means(features, session.new)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The terms to descend on, once a step. `batch.both` is view a on top of view b of the same images."""
        h = self.block(batch.both)
        rows = self.row[torch.searchsorted(self.ids, batch.ids)]
        terms = {"discover": F.cross_entropy(self.head(h), torch.cat([rows, rows]))}
        if self.params.hold > 0:
            with torch.no_grad():
                before = self.teacher(batch.both)
            terms["hold"] = self.params.hold * (1 - F.cosine_similarity(h, before).mean())
        return terms

    def end(self, session: Session | LabelledSession) -> None:
        """Distil what must outlive the session. Session 0 alone is LabelledSession: it has `session.labels`."""
        rows = session.labels if isinstance(session, LabelledSession) else self.row - session.known
        means = class_means(self.clean_features(session), rows, session.new)
        self.mean = torch.cat([self.mean.to(means), means])

    # The default of `predict(tokens)` is the best row of `self.head(self.block(tokens))`.
