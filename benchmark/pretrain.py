"""Make the weights of the embedded backbone: `python -m benchmark.pretrain OUT.safetensors`.

Self-supervision on the *training images of digits 0-5 only*, the six base classes of digits-t2: two views of an image
attract and all others repel, and from the class token of a view the clean image must be redrawn. (Contrast alone leaves
so small a transformer behind raw pixels after 120 epochs: judged on a third of these images held out, five nearest
neighbours name 95 % of them and k-means 61 %; with redrawing 98 % and 92 %; raw pixels 99.6 % and 82 %.) No label, no
image of a novel digit and no test image takes part. The same machine and thread count give the same bytes; elsewhere,
k-means on the frozen features agrees within two points.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn import functional as F

from benchmark.data.datasets import Split, digits_as_shipped
from benchmark.data.views import CLEAN, render_digits
from benchmark.files import file_digest
from benchmark.protocol.catalogue import load_backbone
from benchmark.protocol.models import Backbone
from benchmark.records.scoring import assign
from benchmark.tokens.backbone import build_vit

EPOCHS, BATCH, LR, TEMPERATURE, REDRAW, THREADS, SEED = 120, 128, 1e-3, 0.2, 30.0, 2, 0


def pixels(split: Split, ids: Tensor, view: int, spec: Backbone) -> Tensor:
    views = torch.full_like(ids, view)
    return (render_digits(split.images[ids.numpy()], ids, views, spec.image_size) - spec.mean[0]) / spec.std[0]


def pretrain(spec: Backbone, split: Split, epochs: int = EPOCHS) -> nn.Module:
    """A transformer trained by contrast and redrawing on `split`; labels are not used."""
    torch.manual_seed(SEED)
    vit = build_vit(spec)
    projector = nn.Sequential(nn.Linear(vit.embed_dim, 256), nn.GELU(), nn.Linear(256, 64))
    clean = torch.from_numpy(split.images).flatten(1).float() / 255
    pencil = nn.Sequential(nn.Linear(vit.embed_dim, 256), nn.GELU(), nn.Linear(256, clean.shape[1]))
    model = nn.ModuleList([vit, projector, pencil])
    optimiser = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.05)
    steps = epochs * (len(split) // BATCH)
    warm = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda s: min((s + 1) / warm, 0.5 * (1 + np.cos(np.pi * s / max(1, steps))))
    )
    for epoch in range(epochs):
        for ids in torch.randperm(len(split)).split(BATCH):
            if len(ids) < BATCH:
                continue
            # views far beyond those a run uses: fresh in every epoch
            pair = torch.cat([pixels(split, ids, 10_000 + 2 * epoch + k, spec) for k in (0, 1)])
            h = vit(pair)
            z = F.normalize(projector(h), dim=1)
            similarity = (z @ z.T / TEMPERATURE).fill_diagonal_(-torch.inf)
            partner = torch.arange(2 * BATCH).roll(BATCH)
            redrawn = F.mse_loss(pencil(h), clean[torch.cat([ids, ids])])
            loss = F.cross_entropy(similarity, partner) + REDRAW * redrawn
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return vit.eval()


@torch.no_grad()
def kmeans_accuracy(vit: nn.Module, spec: Backbone, split: Split, classes: tuple[int, ...]) -> float:
    """Accuracy in percent of k-means on the frozen features of some classes."""
    ids = torch.from_numpy(np.flatnonzero(np.isin(split.labels, classes)))
    features = F.normalize(vit(pixels(split, ids, CLEAN, spec)), dim=1).double().numpy()
    found = KMeans(len(classes), n_init=10, random_state=0).fit_predict(features)
    truth = np.searchsorted(classes, split.labels[ids.numpy()])
    counts = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(counts, (truth, found), 1)
    return 100.0 * sum(counts[c, k] for k, c in enumerate(assign(counts))) / counts.sum()


def base_images() -> Split:
    """The training images of the base digits, the only ones the backbone may see."""
    train, _ = digits_as_shipped()
    return train.take(np.flatnonzero(train.labels < 6))


def main() -> None:
    target = Path(sys.argv[1])
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(mode=True)
    spec, (train, _) = load_backbone("digits-vit"), digits_as_shipped()
    vit = pretrain(spec, base_images())
    state = {name: tensor.contiguous() for name, tensor in vit.state_dict().items()}
    save_file(state, target, metadata={"made_by": "benchmark/pretrain.py"})  # one key: their order is not fixed
    torch.manual_seed(SEED)
    untrained = build_vit(spec).eval()
    print(f"{target}: sha256 {file_digest(target)}, {target.stat().st_size / 1e6:.2f} MB")  # noqa: T201
    for classes in ((0, 1, 2, 3, 4, 5), (6, 7), (8, 9)):
        figures = [kmeans_accuracy(model, spec, train, classes) for model in (vit, untrained)]
        print(f"k-means on digits {classes}: {figures[0]:.1f} % (random weights {figures[1]:.1f} %)")  # noqa: T201


if __name__ == "__main__":
    main()
