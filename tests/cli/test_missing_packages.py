"""A package that a URL needs and that is missing is one line, which names what brings it, whatever the command."""

import json
import sys
from pathlib import Path

import pytest
from fsspec.registry import _registry
from typer.testing import CliRunner

import txstore
from txstore.cli.main import app

#: What each scheme needs, where fsspec imports it, and the extra that brings it.
SCHEMES = {
    "s3": ("s3fs", "s3fs", "s3"),
    "gs": ("gcsfs", "gcsfs", "gcs"),
    "abfs": ("adlfs", "adlfs", "azure"),
    "sftp": ("paramiko", "fsspec.implementations.sftp", "sftp"),
    "smb": ("smbprotocol", "fsspec.implementations.smb", "smb"),
}


def commands(url: str, there: str, tmp_path: Path) -> list[list[str]]:
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"version": 1, "refs": {".zgroup": "{}", "x/0": [f"{url}/x.nc", 0, 1]}}))
    scheme = url.partition("://")[0]
    return [
        *([name, url] for name in ("log", "ls", "verify", "du", "serve", "vacuum", "optimize", "show")),
        ["diff", url, "main", "v1"],
        ["merge", url, "dev"],
        ["tag", "list", url],
        ["backup", url, str(tmp_path / "backup")],
        ["export", there, url],
        ["publish", there, url],
        ["references", there, f"{url}.json", "--tag", "v1"],
        ["import", url, there],
        ["import", f"simplecache::{url}", there],
        ["import", str(manifest), there, "--source", f"{scheme}://"],
    ]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_command_names_the_extra(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, module, extra = SCHEMES[scheme]
    for name in [name for name in sys.modules if name.partition(".")[0] == package or name == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    if package == "smbprotocol":
        monkeypatch.setitem(sys.modules, "smbclient", None)
    for protocol in (scheme, {"abfs": "az"}.get(scheme, scheme)):
        monkeypatch.delitem(_registry, protocol, raising=False)
    monkeypatch.setenv("TXSTORE_OBJECTS", "fsspec")
    repo = txstore.Repository(tmp_path / "data.tx")
    with repo.begin() as mapping:
        mapping["zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
    repo.tags["v1"] = repo.head()
    for command in commands(f"{scheme}://bucket/data", repo.url, tmp_path):
        done = CliRunner().invoke(app, command)
        assert done.exit_code in (1, 2), (command, done.output)
        assert f"pip install 'txstore[{extra}]'" in done.stderr, (command, done.stderr)
        assert len(done.stderr.splitlines()) == 1, (command, done.stderr)
