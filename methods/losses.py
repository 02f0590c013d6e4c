"""Losses as pure functions: no weights, no state, no device. Shapes: B images, d features, N rows, K new rows."""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Distillation = Literal["none", "sq_l2", "mean_sq", "l2", "cosine", "frost"]
TINY = 1e-7
"""Keeps the logarithm of a probability finite (code:autonovel)."""


def warm_up(epoch: int, epochs: int, share: float) -> float:
    """0 at the first epoch, rising in a line to 1 at `share` of all epochs, 1 from there on."""
    inflection = share * epochs
    return 1.0 if inflection == 0 else min(epoch / inflection, 1.0)


def ramp_up(epoch: int, epochs: int, share: float) -> float:
    """exp(-5 (1 - e/L)²): from 0.0067 at the first epoch to 1 at L = `share` of all epochs, the last one at latest."""
    length = min(share * epochs, epochs - 1)
    return 1.0 if length <= 0 else math.exp(-5 * (1 - min(epoch / length, 1.0)) ** 2)


def target_temperature(epoch: int, epochs: int, first: float, last: float, share: float) -> float:
    """From `first` in a line to `last` over `share` of all epochs, as SimGCD does over 30 of 200."""
    steps = round(share * epochs)
    return last if epoch >= steps - 1 else first + (last - first) * epoch / (steps - 1)


def contrast(
    a: Tensor,
    b: Tensor,
    *,
    temperature: float = 1.0,
    include_self: bool = True,
    symmetric: bool = False,
    others: Tensor | None = None,
) -> Tensor:
    """Row i of `a` should be closer to row i of `b` than to all other rows of both (and to `others`).

    Rows are compared by cosine. `include_self` keeps the anchor's comparison with itself in the sum, a constant,
    as the paper prints it; SimGCD leaves it out.
    """
    if symmetric:
        one, two = (
            contrast(x, y, temperature=temperature, include_self=include_self, others=others)
            for x, y in ((a, b), (b, a))
        )
        return (one + two) / 2
    a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
    within, across = a @ a.T, a @ b.T
    if not include_self:
        within = within.masked_fill(torch.eye(len(a), dtype=torch.bool, device=a.device), -math.inf)
    parts = [within, across] if others is None else [within, across, a @ F.normalize(others, dim=1).T]
    return (torch.logsumexp(torch.cat(parts, dim=1) / temperature, dim=1) - across.diagonal() / temperature).mean()


def cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """Mean over images of -Σ_k target_k log softmax(logits)_k."""
    return -(target * F.log_softmax(logits, dim=1)).sum(dim=1).mean()


def self_labelling(logits_a: Tensor, logits_b: Tensor, sharpen: float) -> Tensor:
    """Each view learns the sharpened prediction of the other; no gradient through the targets.

    `sharpen` is τ_c / τ_t: logits are cosines over τ_c, targets are cosines over τ_t.
    """
    targets_a, targets_b = ((sharpen * logits.detach()).softmax(dim=1) for logits in (logits_a, logits_b))
    return (cross_entropy(targets_a, logits_b) + cross_entropy(targets_b, logits_a)) / 2


def guide_to_novel(logits: Tensor, new_rows: slice) -> Tensor:
    """D_g = KL(prior ‖ mean prediction) with the prior uniform on the new rows and zero elsewhere."""
    log_mean = torch.logsumexp(F.log_softmax(logits, dim=1), dim=0)[new_rows] - math.log(len(logits))
    return -math.log(len(log_mean)) - log_mean.mean()


def same_ranking(h: Tensor, top: int, *, standardize: bool = False) -> Tensor:
    """Ranking statistics: which pairs of images (B x B) have the same `top` largest dimensions, in any order.

    Signed values are ranked, as FRoST's authors do on a transformer. `standardize` first gives every dimension the same
    mean and deviation in the batch, for backbones in which a few dimensions always come first.
    """
    h = h.detach()
    if standardize:
        h = (h - h.mean(dim=0)) / h.std(dim=0).clamp(min=1e-8)
    best = h.topk(top, dim=1).indices.sort(dim=1).values
    return (best[:, None] == best[None, :]).all(dim=2)


def pairwise_agreement(p_a: Tensor, p_b: Tensor, same: Tensor) -> Tensor:
    """Binary cross-entropy between `same` (B x B) and the chance that view a of i and view b of j share a class.

    An image and itself count as a pair. Gradients flow through both views.
    """
    together = p_a @ p_b.T
    apart = (1 - together).clamp(min=0)  # rounding can lift a sum of probabilities above 1
    return -torch.where(same, (together + TINY).log(), (apart + TINY).log()).mean()


def consistency(p_a: Tensor, p_b: Tensor) -> Tensor:
    """Mean over images and classes of the squared difference between two views' predictions."""
    return (p_a - p_b).square().mean()


def supervised_contrast(z_a: Tensor, z_b: Tensor, rows: Tensor, temperature: float) -> Tensor:
    """Every view of every image should be close to all other views of its class: mean over those, then over views."""
    z = F.normalize(torch.cat([z_a, z_b]), dim=1)
    rows = torch.cat([rows, rows])
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    log_share = F.log_softmax((z @ z.T / temperature).masked_fill(itself, -math.inf), dim=1)
    positive = (rows[:, None] == rows[None, :]) & ~itself
    return -(log_share.masked_fill(~positive, 0).sum(dim=1) / positive.sum(dim=1)).mean()


def centroid_similarity(
    cosine_a: Tensor, cosine_b: Tensor, *, include_self: bool = True, symmetric: bool = False
) -> Tensor:
    """CSS: a class is described by its cosines with the images of the batch (B x K); its two views should agree."""
    return contrast(cosine_a.T, cosine_b.T, include_self=include_self, symmetric=symmetric)


def prototype_boundary(
    z_a: Tensor, z_b: Tensor, cluster: Tensor, known: Tensor, *, include_self: bool = True, symmetric: bool = False
) -> Tensor:
    """BAP: projected means of predicted clusters agree between views and keep away from each other and from `known`.

    Clusters without an image in the batch are left out of every sum.
    """
    present = cluster.unique()
    member = (cluster[None, :] == present[:, None]).to(z_a)
    member = member / member.sum(dim=1, keepdim=True)
    return contrast(member @ z_a, member @ z_b, include_self=include_self, symmetric=symmetric, others=known)


def feature_distillation(h: Tensor, old: Tensor, form: Distillation) -> Tensor:
    """How far features moved from the old block's. All forms but `frost` are means over images.

    `vector_norm` has subgradient 0 at 0, where `sqrt(sum)` would give NaN: at the first step old and new are equal.
    """
    match form:
        case "sq_l2":
            return (h - old).square().sum(dim=1).mean()
        case "mean_sq":
            return (h - old).square().mean()
        case "l2":
            return torch.linalg.vector_norm(h - old, dim=1).mean()
        case "cosine":
            return 1 - F.cosine_similarity(h, old, dim=1).mean()
        case "frost":  # normalised over the whole batch, not image by image
            return torch.linalg.vector_norm(h / torch.linalg.vector_norm(h) - old / torch.linalg.vector_norm(old))
        case "none":
            return h.new_zeros(())


def group_entropy(logits: Tensor, new_rows: slice, *, even: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Happy's soft entropy of the mean prediction: between old and new rows, within the old ones, within the new ones.

    Each is the divergence from what it asks for: of the two groups half each if `even`, else the new ones alone; of the
    rows of a group, all alike.
    """
    log_mean = torch.logsumexp(F.log_softmax(logits, dim=1), dim=0) - math.log(len(logits))
    old, new = log_mean[: new_rows.start], log_mean[new_rows]
    mass_old, mass_new = old.logsumexp(dim=0), new.logsumexp(dim=0)
    both = torch.stack([mass_old, mass_new])
    between = math.log(2) + (both.exp() * both).sum() if even else -mass_new

    def unevenness(rows: Tensor, mass: Tensor) -> Tensor:
        return math.log(len(rows)) + ((rows - mass).exp() * (rows - mass)).sum()

    return between, unevenness(old, mass_old), unevenness(new, mass_new)


def sinkhorn(scores: Tensor, rounds: int) -> Tensor:
    """Soft assignment of images to classes of equal size: both in turn get equal totals of exp(scores)."""
    scores = scores.detach()
    for _ in range(rounds):
        scores = scores.log_softmax(dim=0).log_softmax(dim=1)
    return scores.exp()


def positive_share(same: Tensor) -> Tensor:
    """For diagnosis: share of pairs of different images that ranking statistics call the same class."""
    count = len(same)
    return (same.sum() - count) / max(1, count * (count - 1))


def relative_distance(h: Tensor, old: Tensor) -> Tensor:
    """For diagnosis: how far features moved, against their length."""
    return (torch.linalg.vector_norm(h - old, dim=1) / torch.linalg.vector_norm(old, dim=1)).mean()
