"""Lists the codecs that TxStore itself may run: to compare and merge values, and to train on them.

A metadata document names its codecs, and a stranger may have written the document. Codecs are code: one loads pickles,
which run arbitrary code, and a name may lead to any codec that a package has registered. So TxStore runs only the
codecs of this list, which only compute. The user may add others in the environment: `TXSTORE_CODECS=pcodec,zfpy`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from txstore.errors import CodecRefusedError

#: What decodes bytes or numbers, and does nothing else. In format 3 most are also called `numcodecs.` and their name.
_COMPUTING = frozenset({
    "bytes", "transpose", "sharding_indexed", "crc32c", "zstd", "blosc", "gzip", "zlib", "lz4", "bz2", "lzma",
    "shuffle", "delta", "fixedscaleoffset", "quantize", "packbits", "astype", "bitround", "crc32", "adler32",
    "fletcher32", "vlen-utf8", "vlen-bytes",
})  # fmt: skip
_VARIABLE = "TXSTORE_CODECS"


def allowed_by_user() -> frozenset[str]:
    return frozenset(name.strip() for name in os.environ.get(_VARIABLE, "").split(",")) - {""}


def check_codecs(
    path: str, document_name: str, document: Mapping[str, Any], more: frozenset[str] | None = None
) -> None:
    """Raise `CodecRefusedError` if an array's document names a codec that may not run. No codec is loaded for this.

    `document_name` says of which format it is: a member of the other format means nothing to zarr. `more` are names
    that the user has allowed; by default the environment says which.
    """
    good = _COMPUTING | (allowed_by_user() if more is None else more)
    listed = None
    try:
        listed = document.get("codecs") if document_name == "zarr.json" else _of_format_2(document)
        refused = sorted({name for name in _names(listed) if name.removeprefix("numcodecs.") not in good} - good)
    except (TypeError, LookupError, AttributeError, RecursionError):
        listed, refused = None, []
    if refused or listed is None:
        raise CodecRefusedError(path, refused)


def check_array(array: Any) -> None:
    """Raise `CodecRefusedError` if an array that zarr has opened has a codec that may not run."""
    from zarr.core.buffer.cpu import buffer_prototype

    name = "zarr.json" if array.metadata.zarr_format == 3 else ".zarray"
    written = array.metadata.to_buffer_dict(buffer_prototype)[name]
    check_codecs(array.path, name, json.loads(written.to_bytes()))


def _of_format_2(document: Mapping[str, Any]) -> list[Any] | None:
    """Return the codecs of format 2 as those of format 3 are written; None if there is no document."""
    if not document:
        return None
    listed = [*(document.get("filters") or ()), document.get("compressor")]
    return [{"name": each["id"]} for each in listed if each is not None]


def _names(listed: Any) -> Iterator[str]:
    """Yield the names of codecs, those inside of shards, too. Raises if this is no list of codecs."""
    for codec in listed:
        yield _text(codec["name"])
        configuration = codec.get("configuration") or {}
        for inner in ("codecs", "index_codecs"):
            yield from _names(configuration.get(inner) or ())


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError("the name of a codec is a text")
    return name
