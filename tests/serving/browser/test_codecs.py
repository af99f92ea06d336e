"""What the page decodes is what numcodecs has encoded: each codec of Blosc with each shuffle, LZ4, Zstandard."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numcodecs import LZ4, Blosc, GZip, Zlib, Zstd

import txstore
from tests.serving.browser.conftest import FILES
from tests.tools.waiting import wait_until

pytestmark = [pytest.mark.long, FILES]

pytest.importorskip("playwright.sync_api")

RNG = np.random.default_rng(0)
VALUES = {
    "smooth": np.cumsum(RNG.normal(size=40_000)).astype("f4"),
    "repeating, with a rest": (np.arange(30_001) // 7).astype("i8"),
    "zeros": np.zeros(100_000, "u1"),
    "noise": RNG.integers(0, 65_535, 5_000).astype("u2"),
    "few": np.arange(5, dtype="f8"),
    "text": np.frombuffer(b"hello world " * 9_999 + RNG.integers(0, 20, 50_000).astype("u1").tobytes(), "u1"),
}
DECODE = """async ([name, encoded, most]) => {
  const codecs = await import(new URL("page/codecs.js", document.baseURI));
  const decode = {
    blosc: codecs.decodeBlosc, lz4: codecs.decodeLz4, zstd: codecs.decodeZstd,
    gzip: (input, most) => codecs.inflate(input, "gzip", most),
    zlib: (input, most) => codecs.inflate(input, "deflate", most),
  }[name];
  const bytes = (text) => Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  const out = [];
  for (const each of encoded) {
    try {
      const decoded = await decode(bytes(each), most);
      const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", decoded.slice()));
      out.push([...digest].map((byte) => byte.toString(16).padStart(2, "0")).join(""));
    } catch (error) {
      out.push(String(error));
    }
  }
  return out;
}"""


def blosc_codecs() -> Iterator[Blosc]:
    for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd"):
        for shuffle in (Blosc.NOSHUFFLE, Blosc.SHUFFLE, Blosc.BITSHUFFLE):
            for level, blocksize in ((9, 0), (1, 4096)):
                yield Blosc(name, level, shuffle, blocksize)


CODECS = {"blosc": list(blosc_codecs()), "lz4": [LZ4()], "zstd": [Zstd(3), Zstd(3, checksum=True)],
          "gzip": [GZip(6)], "zlib": [Zlib(6)]}  # fmt: skip


@pytest.mark.parametrize("name", CODECS)
def test_decoding(look: Callable[..., Any], weather: txstore.Repository, name: str) -> None:
    page = look(weather, "#/work").page
    for values in VALUES.values():
        encoded = [base64.b64encode(codec.encode(values)).decode() for codec in CODECS[name]]
        assert page.evaluate(DECODE, [name, encoded, values.nbytes]) == [sha256(values.tobytes()).hexdigest()] * len(
            encoded
        )


def test_damage_is_an_error_and_no_endless_loop(look: Callable[..., Any], weather: txstore.Repository) -> None:
    page = look(weather, "#/work").page
    for name, codec in {"blosc": Blosc("lz4", 5, Blosc.SHUFFLE), "lz4": LZ4()}.items():
        whole = codec.encode(VALUES["text"])
        damaged = []
        for at in range(24, min(len(whole), 6_000), 97):
            each = bytearray(whole)
            each[at] ^= 0xFF
            damaged.append(base64.b64encode(bytes(each)).decode())
        damaged.append(base64.b64encode(whole[: len(whole) // 2]).decode())
        assert len(page.evaluate(DECODE, [name, damaged, len(VALUES["text"])])) == len(damaged)


def test_decoders_stop_where_more_comes_than_is_expected(look: Callable[..., Any], weather: txstore.Repository) -> None:
    """Not when all is decoded: 2 MB may be 2 GB, and of Blosc 20 KB."""
    page = look(weather, "#/work").page
    zeros = bytes(1 << 20)
    bombs: dict[str, list[bytes]] = {
        "gzip": [GZip(9).encode(bytes(512 << 20))],
        "zlib": [Zlib(9).encode(bytes(512 << 20))],
        # Blosc and LZ4 say how long they are, Zstandard as a rule; none of them need tell the truth.
        "blosc": [Blosc("zstd", 9).encode(bytes(512 << 20)), said(Blosc("lz4").encode(zeros), 4, 4, 3 << 30)],
        "lz4": [said(LZ4().encode(zeros), 0, 4, 3 << 30)],
        "zstd": [Zstd(3).encode(bytes(512 << 20)), unsized(4096), said(Zstd(3).encode(zeros), 5, 4, 3 << 30),
                 unsized(1, window=0xF8)],
    }  # fmt: skip
    for name, each in bombs.items():
        told = page.evaluate(DECODE, [name, [base64.b64encode(bomb).decode() for bomb in each], 1 << 20])
        assert all("at most" in text for text in told), (name, told)
    small = page.evaluate(DECODE, ["zstd", [base64.b64encode(unsized(3)).decode()], 3 << 17])
    assert small == [sha256(bytes(3 << 17)).hexdigest()]


def test_what_is_shorter_than_it_says(look: Callable[..., Any], weather: txstore.Repository) -> None:
    page = look(weather, "#/work").page
    short = {
        "lz4": said(LZ4().encode(bytes(1000)), 0, 4, 2000),
        "blosc": said(Blosc("lz4").encode(bytes(1000)), 3, 1, 0),
        "zstd": said(Zstd(3).encode(bytes(1000)), 5, 2, 2000 - 256),  # the rest was zeros
    }
    for name, each in short.items():
        [told] = page.evaluate(DECODE, [name, [base64.b64encode(each).decode()], 1 << 20])
        assert "damaged" in told, name


def said(encoded: bytes, at: int, width: int, length: int) -> bytes:
    """Return something encoded that says that it has another length."""
    return encoded[:at] + length.to_bytes(width, "little") + encoded[at + width :]


def unsized(blocks: int, window: int = 7 << 3) -> bytes:
    """Return a frame of Zstandard that does not say how long it is: blocks of four bytes that are 128 KiB of zeros."""
    block = ((128 << 10) << 3) | 2
    parts = [(block | (number == blocks - 1)).to_bytes(3, "little") + b"\0" for number in range(blocks)]
    return b"\x28\xb5\x2f\xfd\x00" + bytes([window]) + b"".join(parts)


@pytest.fixture
def bombs(tmp_path: Path) -> txstore.Repository:
    """Arrays of 16 elements, whose chunks decode to a gigabyte."""
    repo = txstore.Repository(tmp_path / "bombs.tx")
    encoded = {
        "blosc": Blosc("zstd", 9).encode(bytes(1 << 30)), "gzip": GZip(9).encode(bytes(1 << 30)),
        "zstd": unsized(8192),
    }  # fmt: skip
    with repo.begin() as mapping:
        mapping["zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
        for name, value in encoded.items():
            configuration = {
                "blosc": {"cname": "zstd", "clevel": 9, "shuffle": "noshuffle", "blocksize": 0, "typesize": 1}
            }
            mapping[f"{name}/zarr.json"] = json.dumps({
                "zarr_format": 3, "node_type": "array", "shape": [16], "data_type": "uint8", "fill_value": 0,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [16]}}, "attributes": {},
                "chunk_key_encoding": {"name": "default"},
                "codecs": [{"name": "bytes"}, {"name": name, "configuration": configuration.get(name, {"level": 9})}],
            }).encode()  # fmt: skip
            mapping[f"{name}/c/0"] = value
    return repo


def test_the_page_says_that_it_shows_no_bomb(look: Callable[..., Any], bombs: txstore.Repository) -> None:
    from playwright.sync_api import expect

    looking = look(bombs)
    for name in ("blosc", "gzip", "zstd"):
        page = looking.go(f"#/tree/main/{name}")
        expect(page.locator(".failure").first).to_contain_text("at most")


def test_the_page_answers_while_a_chunk_is_decoded_and_when_it_is_left(look, tmp_path):
    from playwright.sync_api import expect

    repo = txstore.Repository(tmp_path / "slow.tx")
    with repo.begin() as mapping:
        mapping["zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
        mapping["slow/zarr.json"] = json.dumps({
            "zarr_format": 3, "node_type": "array", "shape": [8 << 20], "data_type": "float64", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8 << 20]}}, "attributes": {},
            "chunk_key_encoding": {"name": "default"},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "numcodecs.blosc"}],
        }).encode()  # fmt: skip
        mapping["slow/c/0"] = Blosc("lz4", 5, Blosc.BITSHUFFLE).encode(
            np.zeros(8 << 20)
        )  # each bit is put in its place
    page = look(repo, "#/tree/main/slow").page
    expect(page.locator(".stage.waiting")).to_have_count(1)
    wait_until(lambda: page.evaluate("1") == len(page.workers))
    assert page.evaluate(LONGEST_PAUSE) < 500
    page.get_by_role("link", name="History").click()
    expect(page.locator(".row[role=option]").first).to_be_visible()


#: Milliseconds that the page was busy at a stretch, within half a second.
LONGEST_PAUSE = """() => new Promise((resolve) => {
  let [begun, last, longest] = [performance.now(), performance.now(), 0];
  const look = () => {
    const now = performance.now();
    longest = Math.max(longest, now - last);
    last = now;
    if (now - begun < 500) setTimeout(look);
    else resolve(longest);
  };
  look();
})"""
