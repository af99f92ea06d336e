"""Requests that want out of the repository, and repositories that want into the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.serving.asking import Answer
from txstore.serving.application import Application

Get = Callable[..., Answer]

OUT = [
    "../secret", "../../secret", "..%2fsecret", "%2e%2e/secret", "%2e%2e%2fsecret", "..%5csecret", "..\\secret",
    "three/../../secret", "three/%2e%2e/%2e%2e/secret", "./zarr.json", "three/./zarr.json", "%2fetc/passwd",
    "//etc/passwd", "/etc/passwd", "three//plain/zarr.json", "three%2fplain%2fzarr.json", "three/plain%2fc/0/0",
    "%00", "zarr.json%00", "zarr.json%00.png", "%ff%fe", "%c0%ae%c0%ae/secret", "a" * 5000,
    "%2e%2e%2f" * 100 + "etc/passwd", "%", "%zz", "..;/secret", "file:///etc/passwd", "format.json",
    "commits/main/0000000000", ".staging", "locks/chunks", "three/plain/zarr.json/",
]  # fmt: skip


def test_no_path_leads_out(get: Get, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for before, rest in product(("/at/main/", "/at/v1/three/", "/page/", "/api/", "/"), OUT):
        answer = get(before + rest)
        assert answer.status in (400, 404), rest
        assert b"root:" not in answer.body
        assert "error" in answer.json


REFS = [
    "..", "%2e%2e", "..%2f..", ".", "%00", "-1", "0", "main%2f..", "a" * 300, "%ff", " ", "*", "2026-01-01",
    "2026-99", "2026-99-99",
]  # fmt: skip


def test_no_name_of_a_commit_leads_out(get: Get) -> None:
    for ref in REFS:
        answer = get(f"/at/{ref}/zarr.json")
        assert answer.status in (400, 410), ref
        assert "error" in answer.json


SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def hostile(repo: txstore.Repository) -> txstore.Repository:
    with repo.begin(f"{SCRIPT}\n\x1b[31m", properties={SCRIPT: SCRIPT}) as mapping:
        mapping["three/evil.html"] = f"<html>{SCRIPT}</html>".encode()
        mapping["three/evil.svg"] = f"<svg xmlns='http://www.w3.org/2000/svg'>{SCRIPT}</svg>".encode()
        mapping[f"three/{SCRIPT.replace('/', '')}/zarr.json"] = json.dumps(
            {"zarr_format": 3, "node_type": "group", "attributes": {SCRIPT: SCRIPT}}
        ).encode()
        mapping["three/nonsense/zarr.json"] = (
            b'{"node_type": "array", "shape": [1e999], "data_type": {"name": ["<b>"]}}'
        )
        mapping["three/deep/zarr.json"] = b"[" * 100_000
        mapping["three/huge/zarr.json"] = json.dumps(
            {
                "zarr_format": 3,
                "node_type": "array",
                "shape": [10**15, 10**15],
                "data_type": "float64",
                "fill_value": 0,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 1]}},
                "attributes": {},
                "chunk_key_encoding": {"name": "default"},
                "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            }
        ).encode()
        mapping["two/.zarray"] = b"\xff\xfe"
    return repo


def test_no_browser_runs_what_a_repository_holds(get: Get, hostile: txstore.Repository) -> None:
    """Neither as a page, nor as a picture, nor as a script: whatever the key is called."""
    for path in (
        "at/main/three/evil.html",
        "at/main/three/evil.svg",
        "at/main/zarr.json",
        "at/main/%3Cscript%3E",
        "files/commits/main/0000000002",
        "files/%3Cscript%3E",
        "api/repository",
        "api/%3Cscript%3E",
    ):
        answer = get(f"/{path}")
        assert answer.headers["content-type"] in ("application/octet-stream", "application/json")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    page = get("/").headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self';" in page
    assert "unsafe" not in page


def test_a_document_that_makes_no_sense_is_a_value(get: Get, hostile: txstore.Repository) -> None:
    assert get("/at/main/three/deep/zarr.json").body == b"[" * 100_000
    assert get("/at/main/zarr.json").status == 200
    assert get("/api/locks").status == 200


def test_errors_keep_to_themselves_what_others_say(app: Application, get: Get) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError("https://user:password@example.org/?signature=s3cret")

    app.positions.stored = refuse
    answer = get("/at/main/x")
    assert answer.status == 500
    assert b"s3cret" not in answer.body
    assert b"password" not in answer.body
