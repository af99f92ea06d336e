"""Files that references lead to, and manifests of them, written by hand as kerchunk and VirtualiZarr do."""

import json
from pathlib import Path
from typing import Any

import numpy as np

TEMPERATURES = np.arange(60 * 7, dtype="<f4").reshape(60, 7) / 8


def write_hdf5(path: Path, values: Any = TEMPERATURES, chunks: tuple[int, ...] = (16, 4)) -> Path:
    """Write an HDF5 file with one chunked and deflated dataset, and one that is contiguous."""
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("temperature", data=values, chunks=chunks, compression="gzip", shuffle=True)
        file.create_dataset("height", data=np.arange(60.0))
    return path


def references_of(path: Path, url: str | None = None) -> dict[str, Any]:
    """Return a manifest, of format 1, for all datasets of an HDF5 file."""
    import h5py

    refs: dict[str, Any] = {".zgroup": json.dumps({"zarr_format": 2}), ".zattrs": json.dumps({"title": "station"})}
    url = url or str(path)
    with h5py.File(path, "r") as file:
        for name, dataset in file.items():
            codecs = [{"id": "shuffle", "elementsize": dataset.dtype.itemsize}] if dataset.shuffle else []
            chunks = dataset.chunks or dataset.shape
            refs[f"{name}/.zarray"] = json.dumps(
                {
                    "zarr_format": 2, "shape": dataset.shape, "chunks": chunks, "dtype": dataset.dtype.str,
                    "order": "C", "fill_value": 0.0, "filters": codecs or None,
                    "compressor": {"id": "zlib", "level": 4} if dataset.compression else None,
                }
            )  # fmt: skip
            refs[f"{name}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["time", "station"][: dataset.ndim]})
            if dataset.chunks is None:
                refs[f"{name}/0"] = [url, dataset.id.get_offset(), dataset.id.get_storage_size()]
                continue
            for number in range(dataset.id.get_num_chunks()):
                info = dataset.id.get_chunk_info(number)
                key = ".".join(str(start // side) for start, side in zip(info.chunk_offset, chunks, strict=True))
                refs[f"{name}/{key}"] = [url, info.byte_offset, info.size]
    return {"version": 1, "refs": refs}


def write_parquet(directory: Path, refs: dict[str, Any], record_size: int = 5) -> None:
    """Write a manifest as kerchunk's Parquet files: a table for each `record_size` chunks of an array, in C order."""
    import pandas as pd

    documents = {key: json.loads(entry) for key, entry in refs.items() if isinstance(entry, str)}
    directory.mkdir()
    (directory / ".zmetadata").write_text(json.dumps({"metadata": documents, "record_size": record_size}))
    for name in {key.partition("/")[0] for key in documents if "/" in key}:
        array = documents[f"{name}/.zarray"]
        grid = [-(-length // side) for length, side in zip(array["shape"], array["chunks"], strict=True)]
        entries = [refs[f"{name}/{'.'.join(map(str, index))}"] for index in np.ndindex(*grid)]
        (directory / name).mkdir()
        for record in range(-(-len(entries) // record_size)):
            part = entries[record * record_size : (record + 1) * record_size]
            part += [[None, 0, 0]] * (record_size - len(part))
            table = pd.DataFrame(part, columns=["path", "offset", "size"]).assign(raw=None)
            table["path"] = table["path"].astype("category")
            table.to_parquet(directory / name / f"refs.{record}.parq", engine="fastparquet", index=False)
