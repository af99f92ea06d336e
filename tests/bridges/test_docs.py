"""What docs/import.md shows is run, in its order, by a process that has txstore installed."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.bridges.foreign import positions, write_netcdf, write_workers

pytest.importorskip("h5netcdf")
pytest.importorskip("xarray")
PAGE = Path(__file__).parents[2] / "docs" / "import.md"
PUBLISHING = PAGE.with_name("publishing.md")


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning", "ignore::FutureWarning")
def test_the_page_on_import(run_installed: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    write_netcdf(tmp_path / "temperatures.nc")
    write_workers(tmp_path)
    zarr.open_group(tmp_path / "old.zarr", mode="w").create_array("x", data=np.arange(5))
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    assert ".plot()" in code
    if importlib.util.find_spec("matplotlib") is None:
        code = code.replace(".plot()", ".load()")
    assert run_installed(code + "\nprint(winter.shape)").splitlines()[-1] == "(6, 8)"
    exported = zarr.open_group(tmp_path / "exported.zarr", mode="r")
    np.testing.assert_array_equal(exported["tracks/tracks/position"][:], positions(0, 200))  # type: ignore[index]
    np.testing.assert_array_equal(exported["again/x"][:], np.arange(5))  # type: ignore[index]
    assert exported["converted/tas"].shape == (365, 6, 8)  # type: ignore[union-attr]
    assert txstore.Repository(tmp_path / "data.tx").verify().faults == []


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_the_page_on_publishing_with_readers_without_txstore(
    run_installed: Callable[..., str], run_plain: Callable[..., str], tmp_path: Path
) -> None:
    pytest.importorskip("fastparquet")
    written, read = re.findall(r"```python\n(.*?)```", PUBLISHING.read_text(encoding="utf-8"), re.DOTALL)
    run_installed(written)
    assert run_plain(read).split() == ["499500", "499500"]
