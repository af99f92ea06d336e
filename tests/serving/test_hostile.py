"""Requests that want out of the repository, and repositories that want into the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.serving.asking import Answer
from txstore.serving.application import Application

Get = Callable[..., Answer]

OUT = [
    "../secret",
    "../../secret",
    "..%2fsecret",
    "%2e%2e/secret",
    "%2e%2e%2fsecret",
    "..%5csecret",
    "..\\secret",
    "three/../../secret",
    "three/%2e%2e/%2e%2e/secret",
    "./zarr.json",
    "three/./zarr.json",
    "%2fetc/passwd",
    "//etc/passwd",
    "/etc/passwd",
    "three//plain/zarr.json",
    "three%2fplain%2fzarr.json",
    "three/plain%2fc/0/0",
    "%00",
    "zarr.json%00",
    "zarr.json%00.png",
    "%ff%fe",
    "%c0%ae%c0%ae/secret",
    "a" * 5000,
    "%2e%2e%2f" * 100 + "etc/passwd",
    "%",
    "%zz",
    "..;/secret",
    "file:///etc/passwd",
    "format.json",
    "commits/main/0000000000",
    ".staging",
    "locks/chunks",
    "three/plain/zarr.json/",
]


def test_no_path_leads_out(get: Get, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for before, rest in product(("/at/main/", "/at/v1/three/", "/page/"), OUT):
        answer = get(before + rest)
        assert answer.status in (400, 404), rest
        assert b"root:" not in answer.body
        assert "error" in answer.json


REFS = [
    "..",
    "%2e%2e",
    "..%2f..",
    ".",
    "%00",
    "-1",
    "0",
    "main%2f..",
    "a" * 300,
    "%ff",
    " ",
    "*",
    "2026-01-01",
    "2026-99",
]


def test_no_name_of_a_commit_leads_out(get: Get) -> None:
    for ref, place in product([*REFS, "2026-99-99"], ("/at/{}/zarr.json", "/api/commit/{}", "/api/tree/{}")):
        answer = get(place.format(ref))
        assert answer.status in (400, 410) or (answer.status == 404 and place.startswith("/api/")), ref
        assert "error" in answer.json


NONSENSE = [
    "/api/tree/main?path=../../etc",
    "/api/tree/main?path=three/plain",
    "/api/tree/main?path=nothing",
    "/api/tree/main?limit=x",
    "/api/tree/main?limit=-1",
    "/api/tree/main?limit=" + "9" * 5000,
    "/api/node/main/three/../..",
    "/api/node/main/no",
    "/api/chunks/main/three",
    "/api/chunks/main/three/plain?from=1",
    "/api/chunks/main/three/plain?from=-1,0",
    "/api/chunks/main/three/plain?shape=x,y",
    "/api/chunks/main/three/plain?from=" + "9" * 400 + ",0",
    "/api/preview/main/three",
    "/api/preview/main/three/plain?selection=0",
    "/api/preview/main/three/plain?selection=x,:",
    "/api/preview/main/three/plain?selection=99,:",
    "/api/preview/main/three/plain?selection=" + "9" * 400 + ",:",
    "/api/commits?before=x",
    "/api/commits?before=main:" + "9" * 30,
    "/api/commits?before=../../x:1",
    "/api/commits?from=no",
    "/api/commits?" + "&".join("a=1" for _ in range(50)),
    "/api/usage/no",
    "/api/nothing",
    "/api/",
    "/api",
]


def test_questions_that_make_no_sense(get: Get) -> None:
    for place in NONSENSE:
        answer = get(place)
        assert answer.status in (400, 404, 410), place
        assert set(answer.json["error"]) == {"type", "message", "anchor"}


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
        "api/commits",
        "api/tree/main?path=three",
        "at/main/%3Cscript%3E",
        "api/node/main/three/%3Cscript%3Ealert(1)%3C/script%3E",
        "api/commit/%3Cscript%3E",
    ):
        answer = get(f"/{path}")
        assert answer.headers["content-type"] in ("application/octet-stream", "application/json")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    page = get("/").headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self';" in page
    assert "unsafe" not in page


def test_what_makes_no_sense_is_told_all_the_same(get: Get, hostile: txstore.Repository) -> None:
    nodes = {node["name"]: node for node in get("/api/tree/main?path=three").json["nodes"]}
    assert {"plain", "nonsense", "deep", "huge"} <= set(nodes)
    assert nodes["huge"]["logical_bytes"] == 8 * 10**30
    for name in ("nonsense", "deep", "huge"):
        assert get(f"/api/node/main/three/{name}").status == 200
        assert get(f"/api/chunks/main/three/{name}").status in (400, 404, 413)
        assert get(f"/api/preview/main/three/{name}").status in (200, 400, 404, 413)
    assert get("/api/commits").json["commits"][0]["message"].startswith(SCRIPT)
    assert get("/api/diff/v1/main").status == 200
    assert get("/api/usage/main").status == 200
    assert get("/at/main/three/deep/zarr.json").body == b"[" * 100_000


def test_errors_keep_to_themselves_what_others_say(app: Application, get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError("https://user:password@example.org/?signature=s3cret")

    monkeypatch.setattr(app.positions, "stored", refuse)
    answer = get("/api/tree/main")
    assert answer.status == 500
    assert b"s3cret" not in answer.body
    assert b"password" not in answer.body


def test_a_picture_does_not_decode_everything(get: Get, repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        zarr.create_array(store, name="wide", shape=(10**6, 10**6), chunks=(10, 10), dtype="f4")
        zarr.create_array(store, name="thick", shape=(10**5, 10**5), chunks=(10**5, 10**5), dtype="f4")
        zarr.create_array(store, name="big", data=np.ones((64, 2048, 64), "f4"), chunks=(1, 64, 64))
    answer = get("/api/preview/main/wide")
    shape = [int(each) for each in answer.headers["x-shape"].split(",")]
    assert answer.status == 200
    assert shape[0] * shape[1] <= 4096
    assert get("/api/preview/main/thick").status == 413
    answer = get("/api/preview/main/big?selection=0,:,:")
    assert answer.headers["x-shape"] == "512,64"
    assert len(answer.body) == 4 * 512 * 64
