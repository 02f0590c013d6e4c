"""Weight files: the same weights have one identity whatever file they come in, and a file is never executed."""

import pickle
import re
from pathlib import Path

import pytest
import torch
from pictures import SIZES, small_transformer, write_backbone
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer

from benchmark.engine.request import ask, weights_identity
from benchmark.errors import DataError
from benchmark.files import file_digest
from benchmark.protocol.catalogue import load_backbone, load_backbones, load_datasets
from benchmark.records.reference import is_registered
from benchmark.tokens.backbone import build_vit, open_backbone, takes_class_token_path
from benchmark.tokens.weights import fitted, needed, read_weights, tensor_digest


@pytest.fixture
def files(tmp_path):
    """The same weights as safetensors, with other metadata, as .pth and as .pth inside a checkpoint."""
    description, plain = write_backbone(tmp_path)
    state = read_weights(plain)
    save_file(state, tmp_path / "noted.safetensors", metadata={"a": "1", "b": "2"})
    torch.save(state, tmp_path / "plain.pth")
    torch.save({"model": state, "epoch": 3}, tmp_path / "wrapped.pth")
    plain.rename(tmp_path / "misnamed.pth")
    names = ("noted.safetensors", "plain.pth", "wrapped.pth", "misnamed.pth")
    return load_backbone(str(description)), [tmp_path / name for name in names]


def test_the_same_weights_have_one_digest_in_any_file(files):
    spec, paths = files
    identities = {weights_identity(spec, path, given=True) for path in paths}
    assert len(identities) == 1
    assert identities == {tensor_digest(small_transformer().state_dict())}


def test_a_changed_number_name_or_type_changes_the_digest():
    state = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    digest = tensor_digest(state)
    assert digest == tensor_digest(dict(reversed(state.items())))
    for other in (
        state | {"b": torch.tensor([1.0000001])},
        state | {"a": torch.zeros(3, 2)},
        state | {"a": torch.zeros(2, 3, dtype=torch.int32)},
        {"a": state["a"], "c": state["b"]},
    ):
        assert tensor_digest(other) != digest


def test_registered_weights_are_the_reference_and_others_a_group_of_their_own(files, monkeypatch):
    spec, paths = files
    tensors = tensor_digest(small_transformer().state_dict())
    by_tensors = spec.model_copy(update={"tensors": tensors})
    assert {weights_identity(by_tensors, path, given=True) for path in paths} == {by_tensors.identity}
    by_file = spec.model_copy(update={"sha256": file_digest(paths[0])})
    assert weights_identity(by_file, paths[0], given=True) == by_file.identity == by_file.sha256
    assert weights_identity(by_file, paths[1], given=True) == tensors  # another file is another matter
    assert is_registered("digits-vit", load_backbone("digits-vit").sha256)
    assert not is_registered("digits-vit", tensors)
    assert not is_registered("nobody", tensors)
    request = ask("fea", weights=Path("protocols/weights/digits-vit.safetensors"))
    assert request.changed == {}  # the package's own file, named


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_an_evil_pth_is_refused_before_it_acts(tmp_path):
    mark, path = tmp_path / "mark", tmp_path / "evil.pth"
    torch.save({"cls_token": Evil(mark)}, path)
    with pytest.raises(DataError, match="holds more than tensors") as raised:
        read_weights(path)
    assert not mark.exists()
    assert not re.search(
        "weights_only|allowlist|trust|safe_globals", str(raised.value)
    )  # no advice to load it all the same
    torch.load(path, weights_only=False)
    assert mark.exists()  # so the file was evil


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (lambda: torch.eye(3).to_sparse(), "'odd' is sparse"),
        (lambda: torch.empty(3, device="meta"), "'odd' is empty"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "'odd' is quantised"),
        (lambda: torch.tensor([1.0, float("nan")]), "'odd' is not finite everywhere"),
        (lambda: torch.ones(3, dtype=torch.int8), "'odd' is of type int8"),
        (lambda: torch.ones(3, dtype=torch.complex64), "'odd' is of type complex64"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_no_weights_are_told(tmp_path, tensor, said):
    path = tmp_path / "odd.pth"
    torch.save({"fine": torch.ones(2), "odd": tensor()}, path)
    with pytest.raises(DataError, match=rf"does not hold weights: {said}|more than tensors"):
        read_weights(path)


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x02}q\x00.", b"PK\x03\x04 cut short"])
def test_a_broken_file_is_one_sentence(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"does not hold weights|not a readable|lacks|more than tensors"):
        state = read_weights(path)
        fitted(state, small_transformer(), load_backbone("digits-vit"), path)


def test_a_plain_pickle_is_refused(tmp_path):
    path = tmp_path / "weights.pth"
    path.write_bytes(pickle.dumps({"mark": Evil(tmp_path / "mark")}, protocol=2))
    with pytest.raises(DataError):
        read_weights(path)
    assert not (tmp_path / "mark").exists()


def test_position_embeddings_are_resampled_and_the_rest_taken_as_it_is(files):
    spec, paths = files
    larger = spec.model_copy(update={"image_size": 64, "vit": spec.vit | {"img_size": 64}})
    trunk, _ = open_backbone(larger, paths[0])
    state = read_weights(paths[0])
    expected = resample_abs_pos_embed(state["pos_embed"], [8, 8], num_prefix_tokens=1)
    assert trunk.shape == (64, 24)
    assert torch.equal(trunk.vit.pos_embed, expected)
    assert torch.equal(expected[:, :1], state["pos_embed"][:, :1])  # the class token's own stays
    assert torch.equal(trunk.vit.patch_embed.proj.weight, state["patch_embed.proj.weight"])


def test_depth_keeps_the_first_blocks(files):
    spec, paths = files
    shallow = spec.model_copy(update={"depth": 2})
    trunk, last = open_backbone(shallow, paths[0])
    state = read_weights(paths[0])
    assert len(trunk.vit.blocks) == 1
    assert torch.equal(last.block.mlp.fc1.weight, state["blocks.1.mlp.fc1.weight"])
    with pytest.raises(DataError, match=r"does not fit backbone 'small': it lacks 'blocks.3"):
        open_backbone(spec.model_copy(update={"vit": spec.vit | {"depth": 4}}), paths[0])


def test_weights_of_another_network_do_not_fit(files):
    spec, paths = files
    with pytest.raises(DataError, match="has another shape for"):
        open_backbone(spec.model_copy(update={"vit": spec.vit | {"patch_size": 16}}), paths[0])
    with pytest.raises(DataError, match="has an unknown"):
        open_backbone(spec.model_copy(update={"vit": spec.vit | {"depth": 2}}), paths[0])


@pytest.mark.parametrize("name", sorted(load_backbones()))
def test_every_registered_backbone_builds_at_its_size(name, monkeypatch):
    """Without weights, on the meta device: the architecture exists in timm and takes the fast path."""
    spec = load_backbone(name)
    with torch.device("meta"):
        vit = build_vit(spec)
    assert vit.patch_embed.num_patches == (spec.image_size // vit.patch_embed.patch_size[0]) ** 2
    assert takes_class_token_path(vit.blocks[-1])
    widths = {768: (2048, 2048, 256), 384: (512, 512, 256), 96: (256, 256, 64)}
    assert spec.projector == widths[vit.embed_dim]


def hub_form(state):
    """DINOv2's tensors as the hub's own library names them, query, key and value apart."""
    names = {"cls_token": "embeddings.cls_token", "pos_embed": "embeddings.position_embeddings"}
    found = {"embeddings.mask_token": torch.zeros(1, 24)}
    for name, tensor in state.items():
        block = re.match(r"blocks\.(\d+)\.(.*)", name)
        if block is None:
            plain = name.replace("patch_embed.proj", "embeddings.patch_embeddings.projection")
            found[names.get(name, re.sub(r"^norm\.", "layernorm.", plain))] = tensor
            continue
        inner = f"encoder.layer.{block[1]}."
        if block[2].startswith("attn.qkv"):
            for part, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                found[f"{inner}attention.attention.{part}.{block[2].rpartition('.')[2]}"] = third
        elif block[2].startswith("attn.proj"):
            found[inner + block[2].replace("attn.proj", "attention.output.dense")] = tensor
        else:
            found[inner + re.sub(r"ls(\d)\.gamma", r"layer_scale\1.lambda1", block[2])] = tensor
    return {name: tensor.contiguous().clone() for name, tensor in found.items()}


def test_weights_in_the_hubs_form_are_the_same_weights(tmp_path):
    """Other names, a part that only pre-training used, and the projections apart: one digest, one network."""
    vit = VisionTransformer(num_classes=0, init_values=0.1, **SIZES)
    state = vit.state_dict()
    save_file({name: tensor.clone() for name, tensor in state.items()}, tmp_path / "timm.safetensors")
    save_file(hub_form(state), tmp_path / "hub.safetensors")
    one, two = (needed(read_weights(tmp_path / f"{form}.safetensors")) for form in ("timm", "hub"))
    assert tensor_digest(one) == tensor_digest(two)
    assert all(torch.equal(state[name], two[name]) for name in state)
    lacking = hub_form(state)
    del lacking["encoder.layer.1.attention.attention.key.bias"]
    save_file(lacking, tmp_path / "lacking.safetensors")
    with pytest.raises(DataError, match="it lacks 'encoder"):
        read_weights(tmp_path / "lacking.safetensors")


def test_every_registered_digest_says_who_states_it():
    for spec in load_backbones().values():
        assert (spec.identity is None) == (spec.digest_from is None), spec.name
        for source in spec.download.urls if spec.download else ():
            assert re.match(r"hub:[\w.-]+/[\w.-]+@[0-9a-f]{40}/model\.safetensors$", source)
    for data in load_datasets().values():
        if data.archive is not None:
            assert data.archive.md5
            assert data.archive.digest_from
