"""FEA that also tells how hard each of its terms pulls, for the picture in docs/readings.md. It trains as FEA does.

    bench run --method docs/watched_fea.py:WatchedFEA --protocol cifar100-holdout-t2 --budget medium ...

At the end of every epoch, on its last batch: the length of each term's gradient, on the block (`block_label`, ...) and
on the head's rows of known classes (`known_label`, ...). `diagnose` has random numbers of its own, so losses and
results are those of FEA.
"""

import torch
from torch import Tensor

from methods.contract import Batch
from methods.fea import FEA


class WatchedFEA(FEA):
    def diagnose(self, batch: Batch) -> dict[str, Tensor]:
        figures = super().diagnose(batch)
        weights = [weight for weight in self.block.parameters() if weight.requires_grad]
        with torch.enable_grad():
            for name, term in self.losses(batch).items():
                *block, head = torch.autograd.grad(
                    term, [*weights, self.head.weight], retain_graph=True, materialize_grads=True
                )
                figures[f"block_{name}"] = torch.stack([part.norm() for part in block]).norm()
                figures[f"known_{name}"] = head[: self.new_rows.start].norm()
        return figures
