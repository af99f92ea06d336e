"""What a result is worth nothing without: the versions, and the machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import txstore
from txstore._native import index, local

PACKAGES = (
    "zarr", "numcodecs", "numpy", "fasteners", "filelock", "icechunk", "tensorstore", "h5py", "zarrs", "obstore",
    "s3fs", "moto",
)  # fmt: skip


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "txstore": txstore.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found | {"index": index.IMPLEMENTATION, "local": local.IMPLEMENTATION}


def describe_machine(file_system: str) -> dict[str, Any]:
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = (line.partition(":") for line in cpuinfo.read_text(encoding="utf-8").splitlines())
        model = next((value.strip() for name, _, value in lines if name.strip() == "model name"), model)
    return {
        "system": platform.platform(),
        "processor": model,
        "processors": os.cpu_count(),
        "file_system": file_system,
        "load_before": os.getloadavg(),
    }


def file_system_of(directory: Path) -> str:
    """Return the type of the file system that a directory lies on."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    found = [line.split()[1:3] for line in mounts.read_text(encoding="utf-8").splitlines()]
    above = [(len(place), kind) for place, kind in found if directory.is_relative_to(place)]
    return max(above, default=(0, "unknown"))[1]
