"""What the pages on import, references and publishing show is run, in its order, by a process that has txstore."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.interchange.foreign import positions, write_weather, write_workers
from tests.interchange.manifests import TEMPERATURES, references_of, write_hdf5
from tests.tools import blocks

pytestmark = pytest.mark.long

pytest.importorskip("h5netcdf")
pytest.importorskip("xarray")
DOCS = Path(__file__).parents[2] / "docs/how-to"


def codes_of(page: str) -> list[str]:
    return ["\n".join(block.code) + "\n" for block in blocks.read(DOCS / page).wanted if block.language == "python"]


def code_of(page: str) -> str:
    return "\n".join(codes_of(page))


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning", "ignore::FutureWarning")
def test_the_page_on_import(run_installed: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    write_weather(tmp_path / "weather.nc")
    write_workers(tmp_path)
    zarr.open_group(tmp_path / "old.zarr", mode="w").create_array("x", data=np.arange(5))
    code = code_of("import.md")
    assert ".plot(" in code
    if importlib.util.find_spec("matplotlib") is None:
        code = code.replace('.plot(x="time", hue="origin")', ".load()")
    told = run_installed(code + "\nprint(daily.dims, daily.shape, round(float(daily.mean()), 1))").splitlines()[-1]
    assert told == "('origin', 'time') (3, 365) 55.2", told
    exported = zarr.open_group(tmp_path / "exported.zarr", mode="r")
    np.testing.assert_array_equal(exported["tracks/tracks/position"][:], positions(0, 200))  # type: ignore[index]
    np.testing.assert_array_equal(exported["again/x"][:], np.arange(5))  # type: ignore[index]
    assert exported["converted/temp"].shape == (3, 8760)  # type: ignore[union-attr]
    assert txstore.Repository(tmp_path / "data.tx").verify().faults == []


def test_the_page_on_references(run_installed: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    (tmp_path / "raw").mkdir()
    file = write_hdf5(tmp_path / "raw" / "station.nc")
    (tmp_path / "station.json").write_text(json.dumps(references_of(file, "raw/station.nc")))
    run_installed(code_of("virtual.md") + "\nassert repo.verify(sources=True).ok")
    repo = txstore.Repository(tmp_path / "data.tx", sources=tmp_path / "raw")
    changed = TEMPERATURES.copy()
    changed[0] = 280
    group = zarr.open_group(repo.snapshot(), mode="r")
    np.testing.assert_array_equal(group["station/temperature"][:], changed)  # type: ignore[index]
    assert group["raw"][:].tobytes() == file.read_bytes()[:100]  # type: ignore[index]


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_the_page_on_publishing_with_readers_without_txstore(run_installed, run_plain, tmp_path):
    pytest.importorskip("fastparquet")
    written, read = codes_of("publishing.md")
    run_installed(written)
    assert run_plain(read).split() == ["499500", "499500"]
