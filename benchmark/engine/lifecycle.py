"""A method between the engine's calls: built on the base session, begun phase by phase, rebuilt from saved tensors."""

import copy

import torch
from torch import Tensor

from benchmark.engine.base_session import BaseLearner
from benchmark.engine.checkpoint import Progress, restore
from benchmark.engine.world import World
from benchmark.errors import UsageError
from methods.contract import Method, Phase, plain


def phase_epochs(phases: tuple[Phase, ...], epochs: int) -> list[int]:
    """A session's epochs dealt out to its phases; rounding never loses or adds one."""
    if phases and abs(sum(phase.share for phase in phases) - 1) > 1e-6:
        raise UsageError("the shares of the method's phases must add up to 1")
    ends = [round(epochs * sum(phase.share for phase in phases[: k + 1])) for k in range(len(phases))]
    dealt = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    while 0 in dealt and max(dealt) > 1:  # no phase is skipped as long as there are epochs to go round
        dealt[dealt.index(max(dealt))] -= 1
        dealt[dealt.index(0)] += 1
    return dealt


def build(world: World, base: BaseLearner) -> Method:
    """The method at the end of the base session, with a block and a head of its own."""
    request = world.request
    world.seeded("build")
    block, head = copy.deepcopy(base.block), copy.deepcopy(base.head)
    try:
        params = request.params.model_copy(deep=True)  # what a copy writes into its own must not reach another
        method = request.method.cls(block, head, params, request.backbone.projector)
    except ValueError as error:  # a knob that does not fit the backbone
        raise UsageError(f"{request.method.name}: {error}") from error
    return method.to(world.device)


def begin(method: Method, world: World, number: int, phase: int) -> None:
    """Sizes are all that `begin` may use: the session it gets can not be read."""
    session = world.session(number)
    session.close()
    world.seeded("init", number, phase)
    method.begin(session, method.phases()[phase])
    method.to(world.device)


def remembered(method: Method, world: World, session: int, held: list[int]) -> tuple[Tensor, Tensor]:
    """A method's exemplars, if they are of the session under way or were `held` when the one before ended."""
    remembers = method.memory()
    if not isinstance(remembers, tuple) or len(remembers) != 2:
        raise UsageError("the method's memory must be a pair: image ids and output rows")
    ids, rows = plain(remembers[0], "memory"), plain(remembers[1], "memory")
    allowed = torch.cat([world.stream.ids(session), torch.tensor(held, dtype=torch.long)])
    if not torch.isin(ids.cpu(), allowed).all():
        raise UsageError(f"the method remembers images that are not of session {session}")
    if len(ids) != len(rows) or (len(rows) and not 0 <= rows.min() <= rows.max() < world.stream.known(session + 1)):
        raise UsageError("the method's memory must give each image a row that exists")
    return ids, rows


def rebuild(method: Method, world: World, progress: Progress, state: dict[str, Tensor]) -> None:
    """Bring a fresh method to where a saved run stood: its modules by size, then its tensors."""
    for number in range(1, progress.session + 1):
        last = len(method.phases()) - 1 if number < progress.session or progress.ended else progress.phase
        for phase in range(last + 1):
            begin(method, world, number, phase)
    restore(method, state)


def rebuild_copy(method: Method, world: World, base: BaseLearner, progress: Progress) -> Method:
    """What a resumed run would go on with: only the method's saved state, nothing else that it holds."""
    twin = build(world, base)
    rebuild(twin, world, progress, method.state_dict())
    return twin.eval()
