"""What is copied out of a repository that only its owner may read can be read by no other user."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import txstore

GROUP = '{"zarr_format": 3, "node_type": "group"}'

OpenRepo = Callable[..., txstore.Repository]


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """That of most users, which lets others read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def bits_below(place: Path) -> dict[str, int]:
    found = [place, *place.rglob("*")] if place.is_dir() else [place]
    return {str(each.relative_to(place.parent)): stat.S_IMODE(each.stat().st_mode) for each in found}


@pytest.mark.parametrize(
    ("root", "directory", "file"), [(0o700, 0o700, 0o600), (0o750, 0o750, 0o640), (0o755, 0o755, 0o644)]
)
def test_copies_get_no_more_than_the_root_has(repo, tmp_path, root, directory, file):
    with repo.begin() as mapping:
        mapping["zarr.json"] = GROUP.encode()
        mapping["x/zarr.json"] = (
            b'{"zarr_format": 3, "node_type": "array", "shape": [2], "data_type": "uint8", "fill_value": 0, '
            b'"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}}, "attributes": {}, '
            b'"chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}]}'
        )
        mapping["x/c/0"] = b"1"
    repo.tags["v1"] = repo.head()
    os.chmod(repo.url, root)
    repo.export(tmp_path / "a" / "exported")
    repo.publish(tmp_path / "published")
    repo.references(tmp_path / "b" / "references.json", tag="v1")
    repo.references(tmp_path / "references.parquet", tag="v1")
    for name in ("a/exported", "published", "b/references.json", "references.parquet"):
        for path, bits in bits_below(tmp_path / name).items():
            wanted = directory if (tmp_path / name).parent.joinpath(path).is_dir() else file
            assert bits == wanted, (path, oct(bits))
