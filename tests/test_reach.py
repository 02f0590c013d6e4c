"""The user's first real command: what it misses is fetched, checked and used, from servers that stand in for the web.

The registry is a copy of the suite's with other addresses, digests and a small network; the commands are the real ones.
"""

import hashlib
import http.server
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import yaml
from pictures import SIZES, small_transformer, write_tiny
from safetensors.torch import save_file
from test_own_data import write_pictures

from benchmark.records.reading import read_record

ROOT = Path(__file__).resolve().parents[1]
DATA, WEIGHTS, OTHERS = "data", "timm", "facebook"
"""First words of the paths of the archive and of the weights."""


class Servers(http.server.ThreadingHTTPServer):
    """A host of data and a model hub in one, each as well or badly as `mood` says by the first word of a path."""

    daemon_threads = True
    files: dict[str, bytes]
    mood: dict[str, str]
    log: list[tuple[str, str, str | None]]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Servers

    def log_message(self, format, *args):  # noqa: A002
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        host = self.path.split("/")[1]
        content, mood, wanted = self.server.files[host], self.server.mood.get(host), self.headers.get("Range")
        self.server.log.append((self.command, self.path, wanted))
        if mood == "hangs":
            time.sleep(20)
            return
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(content) - first))
        self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "b" * 40 if mood == "another revision" else self.path.split("/")[-2])
        self.end_headers()
        if body:
            served = b"x" * len(content) if mood == "serves another file" else content
            self.wfile.write(served[first : len(content) // 2 if mood == "breaks off" else None])


@pytest.fixture(scope="module")
def servers(tmp_path_factory) -> Iterator[Servers]:
    made = tmp_path_factory.mktemp("made")
    write_tiny(made)
    weights = made / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in small_transformer().state_dict().items()}, weights)
    zipped = Path(shutil.make_archive(str(made / "tiny"), "zip", made, "tiny-imagenet-200"))
    with Servers(("127.0.0.1", 0), Handler) as served:
        served.files = {DATA: zipped.read_bytes(), WEIGHTS: weights.read_bytes(), OTHERS: weights.read_bytes()}
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()


def address(servers: Servers) -> str:
    return f"http://127.0.0.1:{servers.server_address[1]}"


@pytest.fixture(scope="module")
def suite(servers, tmp_path_factory) -> Path:
    """The packages with a registry of small things: Tiny-ImageNet is drawn, DINO is a network of three blocks."""
    root = tmp_path_factory.mktemp("suite")
    for package in ("benchmark", "methods", "protocols"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    path = root / "protocols" / "datasets.yaml"
    known = yaml.safe_load(path.read_text())
    archive, tiny = servers.files[DATA], known["tiny-imagenet"]
    tiny |= {"train": 2, "test": 1, "pixels": None}
    tiny["archive"] |= {"bytes": len(archive), "md5": hashlib.md5(archive).hexdigest()}
    tiny["archive"]["urls"] = [f"{address(servers)}/{DATA}/tiny-imagenet-200.zip"]
    path.write_text(yaml.safe_dump(known))
    path = root / "protocols" / "backbones.yaml"
    known = yaml.safe_load(path.read_text())
    for name in ("vit-b16-dino", "vit-s14-dinov2-112"):
        known[name] |= {
            "architecture": "vit",
            "vit": dict(SIZES),
            "image_size": 32,
            "sha256": hashlib.sha256(servers.files[WEIGHTS]).hexdigest(),
            "tensors": None,
            "projector": [16, 16, 8],
        }
    path.write_text(yaml.safe_dump(known))
    return root


@pytest.fixture
def call(servers, suite, tmp_path):
    """The real command with that registry, in an empty folder with an empty cache, and a hub that is our server."""
    servers.mood, servers.log = {}, []

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        own = {"PYTHONPATH": str(suite), "HF_ENDPOINT": address(servers), "HF_HOME": str(tmp_path / "hub")}
        own |= {"CNCD_CACHE": str(tmp_path / "cache"), "CNCD_OFFLINE": "", "CNCD_TIMEOUT": "1"}
        command = [sys.executable, "-m", "benchmark.cli", *words]
        variables = os.environ | own | environment
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)

    return run


BANK = ("bank", "--protocol", "tiny-t10", "--views", "2", "--threads", "1")


def test_the_first_command_of_a_user(call, servers, tmp_path):
    """Fetched, verified, decoded, through the trunk, trained; the second time nothing is fetched."""
    done = call("run", "--method", "fea", "--protocol", "tiny-t10")
    assert done.returncode == 0, done.stderr
    assert "session 10" in done.stdout
    lines = done.stderr.splitlines()
    assert (
        lines[0]
        == "the weights of backbone 'vit-b16-dino' are not here, they are fetched now (--offline fetches nothing)"
    )
    assert "about 343 MB" in lines[1]
    assert f"{len(servers.files[DATA]):,} bytes" in done.stderr
    fetched = len(servers.log)
    (record,) = (tmp_path / "results" / "runs").rglob("*.json")
    assert '"backbone": {"name": "vit-b16-dino", "weights": "' in record.read_text()
    again = call("run", "--method", "fea", "--protocol", "tiny-t10")
    assert (again.returncode, len(servers.log)) == (0, fetched)
    assert call("run", "--method", "gaussian", "--protocol", "tiny-t10", "--offline").returncode == 0
    assert len(servers.log) == fetched


def test_a_sweep_fetches_first_and_computes_tokens_once(call, servers, tmp_path):
    """Nobody registered a digest of these images: the plan is made anew once they are here."""
    words = ("sweep", "--methods", "kmeans,gaussian", "--protocols", "tiny-t10", "--seeds", "0-1", "--views", "2")
    dry = call(*words, "--dry-run")
    assert "to be fetched first: vit-b16-dino, tiny-imagenet" in dry.stdout, dry.stderr
    assert servers.log == []
    done = call(*words, "--jobs", "2", "--name", "s")
    assert done.returncode == 0, done.stderr
    assert re.search(r"\[1/7\] done bank/tiny-imagenet-vit-b16-dino-.*-views2", done.stderr)
    records = [read_record(path) for path in (tmp_path / "results" / "runs").rglob("*.json")]
    assert len(records) == 4
    assert {(r.provenance.trunk_images, r.provenance.base_session) for r in records} == {(0, "cached")}
    again = call(*words, "--offline", "--name", "s")
    assert "4 done, 0 to do" in again.stderr
    status = json.loads(call("sweep", "--status", "--json").stdout)
    assert {step["state"] for step in status["steps"]} == {"done"}


def test_offline_says_what_is_missing_and_asks_nobody(call, servers):
    for words, variables in (((), {"CNCD_OFFLINE": "1"}), (("--offline",), {})):
        done = call("run", "--protocol", "tiny-t10", *words, **variables)
        assert (done.returncode, servers.log) == (3, [])
        assert done.stderr.startswith(
            "bench: the weights of backbone 'vit-b16-dino' are not here: `bench fetch vit-b16"
        )
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("host", [DATA, WEIGHTS])
@pytest.mark.parametrize(
    ("mood", "said"),
    [
        ("serves another file", "registered is .*; thrown away"),
        ("breaks off", "the connection ended after .* bytes; what came is kept"),
        ("hangs", "nothing came for 1 seconds"),
    ],
)
def test_a_bad_day_is_one_sentence_and_the_next_try_continues(call, servers, tmp_path, host, mood, said):
    servers.mood = {host: mood}
    bad = call(*BANK)
    assert bad.returncode == 3
    last = bad.stderr.splitlines()[-1]
    assert last.startswith("bench: ")
    assert "Traceback" not in bad.stderr
    assert re.search(f"could not be fetched .*{said}", last)
    believed = [path for path in (tmp_path / "cache").rglob("*") if path.name in NAMES_WHEN_WHOLE[host]]
    assert believed == []
    servers.mood, servers.log = {}, []
    good = call(*BANK)
    assert good.returncode == 0, good.stderr
    assert "all files are there" in good.stdout
    ranges = [wanted for method, path, wanted in servers.log if method == "GET" and path.split("/")[1] == host]
    half = len(servers.files[host]) // 2
    assert ranges == ([f"bytes={half}-"] if mood == "breaks off" else [None])


NAMES_WHEN_WHOLE = {DATA: ("tiny-imagenet-200", "tiny-imagenet-200.zip"), WEIGHTS: ("vit-b16-dino.safetensors",)}


def test_no_network(call):
    done = call(*BANK, HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 3
    assert "could not be fetched (hub:timm/vit_base_patch16_224.dino@9578d3" in done.stderr
    assert "no connection" in done.stderr


def test_a_hub_that_serves_another_revision_is_refused(call, servers):
    servers.mood = {WEIGHTS: "another revision"}
    done = call("fetch", "vit-b16-dino")
    assert done.returncode == 3
    assert "the hub serves revision bbbbbbbbbbbb…, asked for was 9578d3895b3c…" in done.stderr


def test_a_revision_without_a_digest_has_the_hubs(call, servers, suite):
    """Nobody registered a digest of vit-s16-dino: the hub's own is what the file must have; nothing is asked."""
    servers.mood = {WEIGHTS: "serves another file"}
    bad = call("fetch", "vit-s16-dino", "--timeout", "2")
    assert bad.returncode == 3
    assert "its sha256 is" in bad.stderr
    servers.mood = {}
    good = call("fetch", "vit-s16-dino", "--timeout", "2")
    assert good.returncode == 0, good.stderr
    assert "accept-digest" not in good.stderr


def test_weights_in_the_hubs_own_cache_are_not_downloaded_again(call, servers, tmp_path):
    """As timm leaves them there: a link named like the file, to a file named like its digest."""
    content, revision = servers.files[WEIGHTS], "9578d3895b3c81965d4fb6de0ffb14491b6fc8f9"
    place = tmp_path / "hub" / "hub" / "models--timm--vit_base_patch16_224.dino"
    (place / "blobs").mkdir(parents=True)
    (place / "snapshots" / revision).mkdir(parents=True)
    blob = place / "blobs" / hashlib.sha256(content).hexdigest()
    blob.write_bytes(content)
    (place / "snapshots" / revision / "model.safetensors").symlink_to(blob)
    done = call("fetch", "vit-b16-dino")
    assert done.returncode == 0, done.stderr
    assert servers.log == []
    assert Path(done.stdout.strip()).read_bytes() == content


def test_fetched_weights_that_were_damaged_since_are_fetched_again(call, servers, tmp_path):
    """By the registered digest, and by the one that was noted when nobody registered any."""
    for name in ("vit-b16-dino", "vit-s16-dino"):
        file = Path(call("fetch", name, "--timeout", "2").stdout.strip())
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + b"?")
        options = ("run", "--protocol", "tiny-t10", "--backbone", name, "--data-dir", "typo")
        offline = call(*options, "--offline")
        assert offline.returncode == 3
        assert f"{name}.safetensors is damaged: `bench fetch {name}` gets it again" in offline.stderr
        done = call(*options)
        assert "Tiny-ImageNet is not in typo" in done.stderr  # so far it came
        assert (file.read_bytes(), file.with_name(f"{file.name}.damaged").is_file()) == (whole, True)


def test_a_folder_that_was_given_and_is_not_there_is_a_mistake(call, servers):
    assert call("fetch", "vit-b16-dino").returncode == 0
    done = call("run", "--protocol", "tiny-t10", "--data-dir", "typo")
    assert done.returncode == 3
    assert "Tiny-ImageNet is not in typo" in done.stderr
    assert not [path for _, path, _ in servers.log if path.startswith(f"/{DATA}")]


def test_the_page_about_own_images_runs_as_printed(call, tmp_path):
    """Every command of docs/your-own-data.md in its order, on PNG files of 12 classes, 40 x 56 pixels."""
    page = (ROOT / "docs" / "your-own-data.md").read_text()
    write_pictures(tmp_path / "pictures")
    weights = tmp_path / "FILE"
    vit = timm.create_model("vit_small_patch16_224.dino", num_classes=0)
    save_file({name: tensor.contiguous() for name, tensor in vit.state_dict().items()}, weights, {"format": "pt"})
    said = ""
    commands = re.findall(r"^    bench (.*)$", page, flags=re.MULTILINE)
    assert len(commands) == 6
    for words in map(shlex.split, commands):
        # a network of real size takes minutes on the paper's budget: there, the command is made short
        short = ["--budget", "quick", "--views", "2", "--method", "kmeans"] if "--backbone" in words else []
        done = call(*words, *short)
        assert done.returncode == 0, (words, done.stderr)
        said += done.stderr + done.stdout
    for line in ("pictures: 12 classes, 20 in train and 8 in test", "wrote pictures.yaml: bench run --protocol"):
        assert line in page
        assert line in said
    assert (tmp_path / "results" / "report" / "index.html").exists()
    assert "Gaussian (floor) (own)" in (tmp_path / "results" / "report" / "tables" / "own.md").read_text()
