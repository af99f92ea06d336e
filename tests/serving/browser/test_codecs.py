"""What the page decodes is what numcodecs has encoded: each codec of Blosc with each shuffle, LZ4, Zstandard."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numcodecs import LZ4, Blosc, Zstd

import txstore

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
DECODE = """async ([name, encoded]) => {
  const codecs = await import("/page/codecs.js");
  const { unzstd } = await import("/page/vendor/zarrita.js");
  const decode = { blosc: codecs.decodeBlosc, lz4: codecs.decodeLz4, zstd: unzstd }[name];
  const bytes = (text) => Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  const out = [];
  for (const each of encoded) {
    try {
      const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", decode(bytes(each)).slice()));
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


CODECS = {"blosc": list(blosc_codecs()), "lz4": [LZ4()], "zstd": [Zstd(3), Zstd(3, checksum=True)]}


@pytest.mark.parametrize("name", CODECS)
def test_decoding(look: Callable[..., Any], weather: txstore.Repository, name: str) -> None:
    from hashlib import sha256

    page = look(weather, "#/work").page
    for values in VALUES.values():
        encoded = [base64.b64encode(codec.encode(values)).decode() for codec in CODECS[name]]
        assert page.evaluate(DECODE, [name, encoded]) == [sha256(values.tobytes()).hexdigest()] * len(encoded)


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
        assert len(page.evaluate(DECODE, [name, damaged])) == len(damaged)
