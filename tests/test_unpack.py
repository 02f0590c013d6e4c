"""Archives: what Python's own modules would write although nobody should."""

import random
import stat
import tarfile
import zipfile

import pytest
from pictures import NAMES, tar_of

from benchmark.data.unpack import unpack
from benchmark.errors import DataError


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


HOSTILE = [
    entry("../outside"),
    entry("data/../../outside"),
    entry("/outside"),
    entry("..\\outside"),
    entry("data/link", tarfile.SYMTYPE, "../../outside"),
    entry("data/hard", tarfile.LNKTYPE, "../../outside"),
    entry("data/pipe", tarfile.FIFOTYPE),
    entry("data/device", tarfile.CHRTYPE),
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda info: f"{info.name}-{info.type.decode()}")
def test_a_hostile_tar_writes_nothing(tmp_path, hostile):
    root = tmp_path / "root" / "data"
    root.mkdir(parents=True)
    content = b"evil" if hostile.type == tarfile.REGTYPE else b""
    archive = tar_of(tmp_path / "a.tar.gz", [(entry("good/file"), b"good"), (hostile, content)])
    before = sorted(tmp_path.glob("**/*"))
    with pytest.raises(DataError, match="is refused"):
        unpack(archive, root)
    assert sorted(tmp_path.glob("**/*")) == before


@pytest.mark.parametrize("name", ["../outside", "/outside", "good/../../outside"])
def test_a_hostile_zip_writes_nothing(tmp_path, name):
    root = tmp_path / "root" / "data"
    root.mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("good/file", "good")
        archive.writestr(name, "evil")
    before = sorted(tmp_path.glob("**/*"))
    with pytest.raises(DataError, match="is refused"):
        unpack(tmp_path / "a.zip", root)
    assert sorted(tmp_path.glob("**/*")) == before


def test_a_link_in_a_zip_is_refused(tmp_path):
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    (tmp_path / "root").mkdir()
    with pytest.raises(DataError, match="'link' in it is a link"):
        unpack(tmp_path / "a.zip", tmp_path / "root")


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_bomb_is_refused(tmp_path, kind):
    """Ten megabytes of nothing in ten kilobytes: more than an archive of images can be."""
    nothing, root = bytes(10_000_000), tmp_path / "root"
    root.mkdir()
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "a", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bomb", nothing)
    else:
        tar_of(tmp_path / "a", [(entry("bomb"), nothing)])
    with pytest.raises(DataError, match="would unpack to more"):
        unpack(tmp_path / "a", root)
    assert not list(root.iterdir())


def test_a_zip_that_lies_about_its_size_writes_no_more_than_it_says(tmp_path):
    path, root = tmp_path / "a.zip", tmp_path / "root"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(1_000_000))
    content = path.read_bytes()
    size = content.index(b"PK\x01\x02") + 24  # of the member, in the archive's table of contents
    path.write_bytes(content[:size] + (10).to_bytes(4, "little") + content[size + 4 :])
    root.mkdir()
    with pytest.raises(DataError, match="is damaged"):
        unpack(path, root)
    assert not list(root.iterdir())


def noise(name: str) -> bytes:
    return random.Random(name).randbytes(5000)


def test_a_cut_archive_leaves_nothing(tmp_path):
    whole = tar_of(tmp_path / "whole.tar.gz", [(entry(f"data/{name}"), noise(name)) for name in NAMES])
    root = tmp_path / "root"
    root.mkdir()
    for size in (10, 200, len(whole.read_bytes()) // 2):
        cut = tmp_path / "cut.tar.gz"
        cut.write_bytes(whole.read_bytes()[:size])
        with pytest.raises(DataError, match="damaged or cut short"):
            unpack(cut, root)
        assert not list(root.iterdir())
    unpack(whole, root)
    assert (root / "data" / "ship").read_bytes() == noise("ship")


def test_what_is_already_there_is_not_written_over(tmp_path):
    archive = tar_of(tmp_path / "a.tar.gz", [(entry("data/file"), b"new")])
    (tmp_path / "root" / "data").mkdir(parents=True)
    with pytest.raises(DataError, match="move it away"):
        unpack(archive, tmp_path / "root")


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_file_that_is_in_an_archive_twice_is_refused(tmp_path, kind):
    """The second would take the place of the first, whatever was checked of it."""
    (tmp_path / "root").mkdir()
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "a", "w") as archive:
            archive.writestr("data/file", "one")
            with pytest.warns(UserWarning, match="Duplicate name"):
                archive.writestr("data/file", "two")
    else:
        tar_of(tmp_path / "a", [(entry("data/file"), b"one"), (entry("data/./file"), b"two")])
    with pytest.raises(DataError, match="file' is in it twice"):
        unpack(tmp_path / "a", tmp_path / "root")
    assert not list((tmp_path / "root").iterdir())


def test_a_sparse_file_is_refused(tmp_path):
    """Its holes are written in full, whatever size it states."""
    sparse = entry("holes")
    sparse.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "holes"}
    sparse.pax_headers |= {"GNU.sparse.realsize": "10"}
    table = b"1\n0\n3000000\n".ljust(512, b"\0")
    (tmp_path / "root").mkdir()
    tar_of(tmp_path / "a.tar", [(sparse, table + bytes(3_000_000))])
    with pytest.raises(DataError, match="'holes' in it is a sparse file"):
        unpack(tmp_path / "a.tar", tmp_path / "root")
    assert not list((tmp_path / "root").iterdir())


@pytest.mark.parametrize("names", [("data", "data/file"), ("data/file", "data/file/inner")], ids=["below", "above"])
def test_an_archive_that_contradicts_itself_is_damaged(tmp_path, names):
    (tmp_path / "root").mkdir()
    tar_of(tmp_path / "a.tar", [(entry(name), b"x") for name in names])
    with pytest.raises(DataError, match="is damaged"):
        unpack(tmp_path / "a.tar", tmp_path / "root")
    assert not list((tmp_path / "root").iterdir())


def test_what_comes_out_is_for_everybody_to_read(tmp_path):
    """A data folder is shared, whatever the packer's own files were."""
    secret = entry("data/file")
    secret.mode = 0o4700
    (tmp_path / "root").mkdir()
    unpack(tar_of(tmp_path / "a.tar", [(secret, b"x")]), tmp_path / "root")
    assert stat.S_IMODE((tmp_path / "root" / "data" / "file").stat().st_mode) == 0o644
