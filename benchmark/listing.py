"""What the suite has, by kind: rows for `bench list`."""

from typing import Any

import methods
from benchmark.protocol.catalogue import load_backbones, load_datasets
from benchmark.protocol.protocols import load_protocol, protocol_names
from benchmark.sweep.suites import load_suite, suite_names


def listing(kind: str) -> list[dict[str, Any]]:
    """Rows of `bench list`: what a reader of a terminal wants to know, each with a name."""
    if kind == "methods":
        return [{"name": entry.name, "title": entry.title} for entry in methods.entries().values()]
    if kind == "suites":
        return [{"name": suite.name, "title": suite.title} for suite in map(load_suite, suite_names())]
    if kind == "protocols":
        protocols = map(load_protocol, protocol_names())
        return [
            {
                "name": p.name,
                "title": p.title,
                "dataset": p.data.name,
                "classes": "+".join(str(len(c)) for c in p.classes),
                "backbone": p.backbone,
            }
            for p in protocols
        ]
    if kind == "backbones":
        return [
            {"name": b.name, "architecture": b.architecture, "image_size": b.image_size, "trained_on": b.trained_on}
            for b in load_backbones().values()
        ]
    return [{"name": d.name, "title": d.title, "classes": d.classes} for d in load_datasets().values()]
