"""Weight files, read without ever running what is in them: safetensors, or .pth through torch's restricted loader."""

import hashlib
import math
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from benchmark.errors import DataError
from benchmark.protocol.models import Backbone

State = dict[str, Tensor]

WRAPPERS = ("state_dict", "model")
"""Under which keys checkpoints hide their weights."""
NOT_NEEDED = re.compile(r"^(mask_token|head\.|fc_norm\.|register_bias)")
"""Parts that pre-training used and features do not."""


def read_weights(path: Path) -> State:
    """Tensors by name, from a safetensors file or a .pth."""
    try:
        state: Any = load_file(path) if is_safetensors(path) else _restricted(path)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} is not a readable weight file: {error}") from None
    for wrapper in WRAPPERS:
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(isinstance(k, str) and isinstance(t, Tensor) for k, t in state.items()):
        raise DataError(f"{path} does not hold weights: expected tensors by name")
    for name, tensor in state.items():
        odd = oddity(tensor)
        if odd:
            raise DataError(f"{path} does not hold weights: '{name}' is {odd}")
    try:
        return renamed(state) if "embeddings.cls_token" in state else state
    except KeyError as error:
        raise DataError(f"{path} does not hold weights: it lacks {error}") from None


HUB_NAMES = (
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.mask_token$", "mask_token"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^layernorm\.", "norm."),
    (r"^encoder\.layer\.", "blocks."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.layer_scale(\d)\.lambda1$", r".ls\1.gamma"),
)
"""From the names that the model hub's own library gives the parts of DINOv2 to timm's."""
APART = re.compile(r"^(.*)\.attention\.attention\.(query|key|value)\.(weight|bias)$")


def renamed(state: State) -> State:
    """Weights in the form of the hub's own library in timm's: other names, and query, key and value in one."""
    found: State = {}
    for name, tensor in state.items():
        apart = APART.match(name)
        if apart is None:
            found[plain_name(name)] = tensor
        elif apart[2] == "query":
            three = [state[f"{apart[1]}.attention.attention.{part}.{apart[3]}"] for part in ("query", "key", "value")]
            found[plain_name(f"{apart[1]}.attn.qkv.{apart[3]}")] = torch.cat(three)
    return found


def plain_name(name: str) -> str:
    for pattern, ours in HUB_NAMES:
        name = re.sub(pattern, ours, name)
    return name


def needed(state: State) -> State:
    """Without what pre-training alone used: files differ in how much of that they keep."""
    return {name: tensor for name, tensor in state.items() if not NOT_NEEDED.match(name)}


def oddity(tensor: Tensor) -> str | None:
    """What makes a tensor useless as a weight, in a word; none if nothing does."""
    if tensor.is_meta:
        return "empty (on the meta device)"
    if tensor.layout != torch.strided:
        return "sparse"
    if tensor.is_quantized:
        return "quantised"
    if not tensor.is_floating_point():
        return f"of type {str(tensor.dtype).removeprefix('torch.')}, not floating point"
    return None if bool(torch.isfinite(tensor.float()).all()) else "not finite everywhere"


def is_safetensors(path: Path) -> bool:
    """By its first bytes, a length and the beginning of a dictionary: a download's name may promise something else."""
    with path.open("rb") as file:
        return path.suffix == ".safetensors" or file.read(9)[8:] == b"{"


def _restricted(path: Path) -> Any:
    """Unpickle tensors and containers only; a file that asks for anything else is refused before it can act."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch goes on to say how to load it all the same: that is no advice of ours
        asked = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f" (it asks for {asked.group(1)})" if asked else ""
        raise DataError(f"{path} is refused: it holds more than tensors{what}") from None
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - a broken file may raise anything
        raise DataError(f"{path} is not a readable .pth file ({error}): get it again") from None


def tensor_digest(state: State) -> str:
    """SHA-256 over names, types, shapes and values: the same weights have one digest, whatever file they came in."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def fitted(state: State, vit: VisionTransformer, spec: Backbone, source: Path) -> State:
    """The weights as this transformer takes them: unneeded parts dropped, position embeddings resampled."""
    expected, depth = vit.state_dict(), len(vit.blocks)
    state = needed(state)
    if spec.depth is not None:
        state = {name: tensor for name, tensor in state.items() if block_number(name) < depth}
    stored = state.get("pos_embed")
    if stored is not None and stored.ndim == 3 and "pos_embed" in expected:
        prefix = 0 if vit.no_embed_class else vit.num_prefix_tokens
        patches, grid = stored.shape[1] - prefix, list(vit.patch_embed.grid_size)
        if stored.shape != expected["pos_embed"].shape and patches > 0 and math.isqrt(patches) ** 2 == patches:
            state["pos_embed"] = resample_abs_pos_embed(stored, grid, num_prefix_tokens=prefix)
    missing, extra = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    wrong = sorted(key for key in expected.keys() & state.keys() if expected[key].shape != state[key].shape)
    for problem, keys in (("lacks", missing), ("has an unknown", extra), ("has another shape for", wrong)):
        if keys:
            raise DataError(f"{source} does not fit backbone '{spec.name}': it {problem} '{keys[0]}'")
    return state


def block_number(name: str) -> int:
    found = re.match(r"blocks\.(\d+)\.", name)
    return int(found.group(1)) if found else -1
