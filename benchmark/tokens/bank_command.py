"""What `bench bank` does: build, plan, list, verify, prune."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from tabulate import tabulate

from benchmark.display import Display, Stop
from benchmark.errors import UsageError
from benchmark.files import cache_folder
from benchmark.protocol.models import Backbone, Shared
from benchmark.protocol.overrides import by_part, parse_views
from benchmark.protocol.protocols import Protocol
from benchmark.protocol.reading import validated
from benchmark.seeds import repeatable
from benchmark.tokens import upkeep
from benchmark.tokens.backbone import build_vit, split_vit
from benchmark.tokens.bank import Bank, Shape
from benchmark.tokens.opening import open_bank, open_tokens
from benchmark.tokens.plan import TokenPlan


@dataclass(frozen=True)
class Answer:
    """For people, for programs, and whether something is wrong."""

    text: str
    document: dict[str, Any]
    complaint: str = ""


def build(plan: TokenPlan, device: torch.device, threads: int | None, stop: Stop) -> Answer:
    """Make the tokens of a plan that are not there yet."""
    refuse_memory(plan.protocol)
    with repeatable(threads), Display() as display:
        opened = open_tokens(plan, device, display, stop)
    made, bank = opened.train.trunk_images, bank_of(plan)
    document = {"bank": bank.folder.name, "trunk_images": made, "seconds": round(opened.seconds, 1)}
    return Answer(f"{bank.folder}: {made:,} pictures in {opened.seconds:.0f} s, all files are there", document)


def refuse_memory(protocol: Protocol) -> None:
    if protocol.data.layout == "embedded":
        raise UsageError(
            f"{protocol.name} needs no bank: its images are few and small, runs keep their tokens in memory"
        )


def bank_of(plan: TokenPlan) -> Bank:
    """Where the tokens of a plan lie; nothing is computed, and no weights are read."""
    trunk, _ = split_vit(build_vit(plan.backbone), plan.backbone)
    return open_bank(plan, plan.images(), trunk)


def plan_here(plan: TokenPlan) -> Answer:
    """What the tokens of a plan take on disk, and how much of that is there."""
    refuse_memory(plan.protocol)
    bank = bank_of(plan)
    counted = upkeep.plan(plan.protocol, plan.data, plan.backbone, plan.views, bank.shape, cache_folder(), bank)
    return plan_text(counted)


def plan_complete(protocol: Protocol, spec: Backbone, views: int | str | None, settings: Mapping[str, Any]) -> Answer:
    """The same for the complete dataset, where data or weights are not here yet."""
    refuse_memory(protocol)
    if protocol.data.train is None:
        raise UsageError(f"nobody says how many images {protocol.name} has: data and weights must be here to plan it")
    trunk, _ = split_vit(build_vit(spec), spec)
    shared = validated(Shared, dict(protocol.shared) | by_part(settings)["shared"], "shared")
    shape = Shape(*trunk.shape, shared.bank)
    wanted = protocol.views if views is None else parse_views(views)
    data = protocol.data_with(shared.images)
    return plan_text(upkeep.plan(protocol, data, spec, wanted, shape, cache_folder(), None))


def plan_text(counted: upkeep.Plan) -> Answer:
    rows = [
        ["pictures through the trunk", f"{counted.images:,} in {counted.files:,} files"],
        ["on disk", f"{counted.bytes / 1e9:.2f} GB ({counted.bytes_an_image / 1e3:.1f} kB a picture)"],
        ["not there yet", f"{counted.missing_images:,} pictures, {counted.missing_bytes / 1e9:.2f} GB"],
        ["free", f"{counted.free / 1e9:.1f} GB"],
    ]
    which = "the images that are here" if counted.of == "here" else "the complete dataset"
    heading = f"tokens of {counted.protocol}, {counted.backbone}, views {counted.views}, {which}"
    return Answer(f"{heading}\n{tabulate(rows, tablefmt='plain')}", asdict(counted))


def look_after(*, verify: bool, prune: bool, unused: float | None) -> Answer:
    """List the banks of the cache; verify and prune if asked."""
    cache = cache_folder()
    gone = upkeep.prune(cache, unused=unused, contents=verify) if prune else []
    damaged = [found for folder in upkeep.bank_folders(cache) for found in upkeep.faults(folder, contents=verify)]
    rows = upkeep.listing(cache)
    lines = [
        tabulate(
            [[r["name"], r["files"], f"{r['bytes'] / 1e9:.2f} GB", f"{r['unused_days']:g}"] for r in rows],
            headers=["bank", "files", "size", "days unused"],
            disable_numparse=True,
        )
        if rows
        else f"there are no banks in {cache / 'bank'}"
    ]
    lines += [f"removed {path.relative_to(cache)} ({size / 1e6:.1f} MB)" for path, size in gone]
    lines += [f"damaged: {path.relative_to(cache)}: {reason}" for path, reason in damaged]
    if verify:
        lines.append(f"verified: {sum(r['files'] for r in rows)} files, {len(damaged)} damaged")
    document = {
        "banks": rows,
        "removed": [{"path": str(path.relative_to(cache)), "bytes": size} for path, size in gone],
        "damaged": [{"path": str(path.relative_to(cache)), "reason": reason} for path, reason in damaged],
    }
    complaint = (
        f"{len(damaged)} files of banks are damaged: `bench bank --prune --verify` removes them" if damaged else ""
    )
    return Answer("\n".join(lines), document, complaint)
