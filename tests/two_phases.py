"""All that can go wrong in a resume in one method: two phases, `prepare`, memory, random modules, growing buffers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from methods.contract import LabelledSession, Method, Phase


class TwoPhases(Method):
    def build(self) -> None:
        self.extra = nn.Linear(self.width, 4)
        self.register_buffer("kept_id", torch.zeros(0, dtype=torch.long))
        self.register_buffer("kept_row", torch.zeros(0, dtype=torch.long))
        self.register_buffer("centre", torch.zeros(0, self.width))

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("one", share=0.5), Phase("two", share=0.5, novel=0.5, memory=0.5, pool="session+memory"))

    def begin(self, session, phase) -> None:
        super().begin(session, phase)
        self.known = session.known
        if phase.name == "two":
            self.late = nn.Linear(4, session.new)

    def prepare(self, session, phase) -> None:
        noise = torch.rand(())
        self.centre = torch.cat([self.centre, self.clean_features(session).mean(dim=0, keepdim=True) + noise])

    def losses(self, batch) -> dict[str, Tensor]:
        h = self.block(batch.both)
        terms = {"centre": (h - self.centre[-1]).square().mean(), "extra": self.extra(h).square().mean()}
        terms["noise"] = (h * torch.randn_like(h)).mean()
        if batch.memory is not None:
            terms["replay"] = F.cross_entropy(self.head(self.block(batch.memory.a)), batch.memory.row)
            terms["late"] = F.cross_entropy(self.late(self.extra(h)), torch.zeros(len(h), dtype=torch.long))
        return terms

    def end(self, session) -> None:
        ids = torch.cat([part.ids for part in session.clean()])
        rows = session.labels if isinstance(session, LabelledSession) else torch.full_like(ids, session.known)
        self.kept_id = torch.cat([self.kept_id, ids[:20]])
        self.kept_row = torch.cat([self.kept_row, rows[:20]])

    def memory(self) -> tuple[Tensor, Tensor]:
        return self.kept_id, self.kept_row
