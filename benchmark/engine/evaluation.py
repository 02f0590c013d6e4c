"""The evaluator: the only place where a test image or a hidden label is read."""

from dataclasses import replace
from functools import partial

import torch

from benchmark.engine.inspection import checked_rows, refuse_unsteady
from benchmark.engine.probe import Probe
from benchmark.engine.recording import Predictions
from benchmark.engine.world import World
from benchmark.tokens.sources import clean_tokens
from methods.contract import CHUNK, Method


@torch.no_grad()
def evaluate(method: Method, again: Method, probe: Probe, world: World, session: int) -> dict[str, Predictions]:
    """Predictions for the test images of all classes so far (`test`) and for the session's own images (`train`).

    Also those of the `probe` for the test images, after it has learnt the session from the method's features and rows;
    none from the first session on whose features it cannot read. The only place where a test image or a hidden label is
    read. `method` and `again` were rebuilt from the state of the one that is trained, so that nothing flows back. The
    second predicts some images in other batches: rows must stay.
    """
    stream, total = world.stream, world.stream.known(session + 1)
    ids = {"test": stream.test_ids(total), "train": stream.ids(session)}
    classes = {"test": stream.hidden_test[ids["test"].numpy()], "train": stream.hidden[ids["train"].numpy()]}
    sources = {"test": world.test_source, "train": world.source}
    rows, parts = {}, {}
    for split, source in sources.items():
        tokens = partial(clean_tokens, source)
        world.seeded("predict", session)
        rows[split] = torch.cat(
            [checked_rows(method.predict(tokens(part)), len(part), total) for part in ids[split].split(CHUNK)]
        )
        if split == "test":
            world.seeded("predict", session)
            refuse_unsteady(again, tokens, rows[split], ids[split], total, world.seed)
        block = getattr(method, "block", None)
        parts[split] = [probe.features(block, tokens(part)) for part in ids[split].split(CHUNK)]
    found = {split: Predictions(ids[split].numpy(), classes[split], rows[split].numpy()) for split in sources}
    h = {split: [part for part in every if part is not None] for split, every in parts.items()}
    if probe.blind or any(len(h[split]) < len(parts[split]) for split in sources):
        if not probe.blind:
            world.display.say("notice: the method's block gives no features that the probe can read: it goes without")
        probe.blind.fill_(True)
        return found
    believed = rows["train"] if session else torch.from_numpy(classes["train"])  # labels are known in session 0 alone
    train, test = torch.cat(h["train"]), torch.cat(h["test"])
    probe.learn(train, believed.to(train.device), stream.new(session))
    return found | {"probe": replace(found["test"], row=probe.predict(test).cpu().numpy())}
