"""What docs/import.md shows is run, in its order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.bridges.foreign import positions, write_netcdf, write_workers

pytest.importorskip("h5netcdf")
pytest.importorskip("xarray")
PAGE = Path(__file__).parents[2] / "docs" / "import.md"


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning", "ignore::FutureWarning")
def test_the_page_on_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_netcdf(tmp_path / "temperatures.nc")
    write_workers(tmp_path)
    zarr.open_group("old.zarr", mode="w").create_array("x", data=np.arange(5))
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    names: dict[str, Any] = {}
    exec(code.replace("winter.plot()", "winter.load()"), names)
    assert names["winter"].shape == (6, 8)
    exported = zarr.open_group("exported.zarr", mode="r")
    np.testing.assert_array_equal(exported["tracks/tracks/position"][:], positions(0, 200))  # type: ignore[index]
    np.testing.assert_array_equal(exported["again/x"][:], np.arange(5))  # type: ignore[index]
    assert exported["converted/tas"].shape == (365, 6, 8)  # type: ignore[union-attr]
    assert txstore.Repository("data.tx").verify().faults == []
