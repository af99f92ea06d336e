"""What places along dimensions are called, as CF says it: dates, degrees, names; and north is on top."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.serving.browser.test_views import drawn, expect, python_line
from tests.tools.waiting import wait_until

Look = Callable[..., Any]


def coordinate(group: zarr.Group, name: str, values: Any, attributes: Mapping[str, Any]) -> None:
    data = np.asarray(values)
    group.create_array(name, data=data, dimension_names=(name,), attributes=dict(attributes), chunks=data.shape)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> txstore.Repository:
    """Fields of which the value is the latitude, from south to north and from north to south."""
    repo = txstore.Repository(tmp_path_factory.mktemp("grid") / "grid.tx")
    with repo.transaction("a grid") as store:
        root = zarr.create_group(store)
        coordinate(root, "time", np.arange(3), {"units": "days since 2026-01-30", "calendar": "standard"})
        coordinate(root, "lon", np.arange(-20.0, 20, 10), {"units": "degrees_east"})
        for name, latitudes in (("up", np.arange(-45.0, 46, 15)), ("down", np.arange(45.0, -46, -15))):
            group = root.create_group(name)
            coordinate(group, "lat", latitudes, {"units": "degrees_north", "standard_name": "latitude"})
            field = np.broadcast_to(latitudes[None, :, None], (3, 7, 4)).astype("f4")
            group.create_array("t2m", data=field, chunks=(1, 7, 4), dimension_names=("time", "lat", "lon"))
        series = root.create_group("series")
        series.create_array("level", data=np.arange(3.0), dimension_names=("time",))
        coordinate(root, "noleap", np.arange(2), {"units": "days since 2026-02-28", "calendar": "noleap"})
        root.create_array("model", data=np.arange(2.0), dimension_names=("noleap",))
        coordinate(root, "step", np.arange(2, dtype="i2"), {"units": "hPa", "scale_factor": 0.5, "add_offset": 10})
        root.create_array("pressure", data=np.arange(2.0), dimension_names=("step",))
        coordinate(root, "hour", [0, 30.5], {"units": "hours since 1999-12-31 22:15:00 +01:00"})
        root.create_array("hourly", data=np.arange(2.0), dimension_names=("hour",))
        coordinate(root, "huge", [1e300, -1e300], {"units": "days since 2026-01-01"})
        root.create_array("far", data=np.arange(2.0), dimension_names=("huge",))
        coordinate(root, "never", np.arange(2), {"units": "days since 2026-02-31"})
        root.create_array("nowhere", data=np.arange(2.0), dimension_names=("never",))
    return repo


def hover(page: Any, x: float, y: float) -> None:
    """Point at a part of the picture: 0, 0 is on the upper left.

    The page draws the picture again when it knows the coordinates: meanwhile there may be none to point at.
    """

    def points() -> bool:
        if box := page.locator(".stage .curves, .frame").first.bounding_box():
            page.mouse.move(box["x"] + box["width"] * x, box["y"] + box["height"] * y)
        return bool(page.locator(".readout").inner_text())

    wait_until(points)


@pytest.mark.parametrize("name", ["up", "down"])
def test_north_is_on_top(name: str, look: Look, grid: txstore.Repository) -> None:
    page = drawn(look(grid, f"#/tree/main/{name}/t2m", viewport={"width": 1360, "height": 1200}).page)
    north, south = (6, 0) if name == "up" else (0, 6)
    arrow = "↑ lat 0:7, 45°S to 45°N" if name == "up" else "↓ lat 0:7, 45°N to 45°S"
    expect(page.locator(".axes")).to_contain_text(arrow)
    expect(page.locator(".axes")).to_contain_text("→ lon 0:4, 20°W to 10°E")
    hover(page, 0.1, 0.02)
    expect(page.locator(".readout")).to_have_text(f"[0, {north}, 0] = 45 at 2026-01-30, 45°N, 20°W")
    hover(page, 0.9, 0.98)
    expect(page.locator(".readout")).to_have_text(f"[0, {south}, 3] = -45 at 2026-01-30, 45°S, 10°E")


@pytest.mark.parametrize("name", ["up", "down"])
def test_what_is_marked_is_what_is_seen(name: str, look: Look, grid: txstore.Repository) -> None:
    page = drawn(look(grid, f"#/tree/main/{name}/t2m", viewport={"width": 1360, "height": 1200}).page)
    expect(page.locator(".axes")).to_contain_text("°N")
    hover(page, 0.05, 0.02)
    page.mouse.down()
    hover(page, 0.95, 0.4)  # of seven rows, the upper three
    page.mouse.up()
    expect(page.locator(".axes")).to_contain_text(re.compile(r"lat (4:7|0:3), "))
    assert sorted({*python_line(drawn(page)).ravel().tolist()}) == [15, 30, 45]
    page.locator(".frame").focus()
    for _ in range(9):
        page.keyboard.press("ArrowDown")
    expect(page.locator(".axes")).to_contain_text(re.compile(r"lat (0:3|4:7), (45°S to 15°S|15°S to 45°S)"))


def test_sliders_and_lines_say_dates(look: Look, grid: txstore.Repository) -> None:
    looking = look(grid, "#/tree/main/up/t2m")
    page = drawn(looking.page)
    expect(page.locator(".slider .coordinate")).to_have_text("2026-01-30")
    page.get_by_label("time, index").fill("2")
    page.keyboard.press("Enter")
    expect(page.locator(".slider .coordinate")).to_have_text("2026-02-01")
    page = drawn(looking.go("#/tree/main/series/level"))
    hover(page, 0.5, 0.5)
    expect(page.locator(".readout")).to_have_text("[1] = 1 at 2026-01-31")


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("model", "[1] = 1 at 1 days since 2026-02-28"),  # of a calendar that is not ours
        ("pressure", "[1] = 1 at 10.5 hPa"),
        ("hourly", "[1] = 1 at 2000-01-02 03:45"),
        ("far", re.compile(r"\[1\] = 1 at -1\.0000e\+300 days since")),
        ("nowhere", "[1] = 1 at 1 days since 2026-02-31"),
        ("lon", "[3] = 10 at 10°E"),
    ],
)
def test_units(path: str, last: Any, look: Look, grid: txstore.Repository) -> None:
    page = drawn(look(grid, f"#/tree/main/{path}").page)
    hover(page, 0.98, 0.5)
    expect(page.locator(".readout")).to_have_text(last)


def test_where_there_are_none_indices_are_all(look: Look, weather: txstore.Repository) -> None:
    page = drawn(look(weather, "#/tree/main/surface/temperature").page)
    hover(page, 0.5, 0.5)
    expect(page.locator(".readout")).to_have_text(re.compile(r"^\[0, \d+, \d+\] = [\d.]+$"))
    expect(page.locator(".axes")).to_have_text(re.compile(r"^↓ latitude 0:181→ longitude 0:360$"))


def test_what_is_measured_and_in_what_it_is_said_beside_the_colours(look: Look, weather: txstore.Repository) -> None:
    page = drawn(look(weather, "#/tree/main/surface/temperature").page)
    expect(page.locator(".figures h2")).to_have_text("ValuesAir temperature at 2 m [K]")


def test_a_click_shows_the_series_at_a_place(look: Look, grid: txstore.Repository) -> None:
    page = drawn(look(grid, "#/tree/main/up/t2m", viewport={"width": 1360, "height": 1200}).page)
    hover(page, 0.9, 0.98)
    page.mouse.down()
    page.mouse.up()
    expect(page.locator(".stage svg.lines")).to_be_visible()
    assert page.url.endswith("?sel=0:3,0,3")
    hover(page, 0.98, 0.5)
    expect(page.locator(".readout")).to_have_text("[2, 0, 3] = -45 at 2026-02-01, 45°S, 10°E")


def test_a_chunk_map_goes_along_the_axis_that_has_chunks(look: Look, tmp_path: Path) -> None:
    repo = txstore.Repository(tmp_path / "data.tx")
    for day in range(4):
        with repo.transaction(f"day {day}") as store:
            if not day:
                zarr.create_array(store, name="a", shape=(5, 3, 3), chunks=(1, 3, 3), dtype="f4")
            zarr.open_array(store, path="a")[day] = day + 1
    page = look(repo, "#/tree/main/a?view=chunks").page
    expect(page.locator(".legend li")).to_have_count(5)
    assert page.locator(".slider").count() == 0
    page.locator("canvas.map").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".stage-column .readout")).to_contain_text("Chunk [1, 0, 0]: day 1")


def test_a_comparison_says_where_by_coordinates(look: Look, tmp_path: Path) -> None:
    repo = txstore.Repository(tmp_path / "data.tx")
    with repo.transaction("first") as store:
        root = zarr.create_group(store)
        coordinate(root, "time", np.arange(3), {"units": "days since 2026-01-30"})
        coordinate(root, "lat", np.arange(-45.0, 46, 15), {"units": "degrees_north"})
        names = ("time", "lat", "x")
        root.create_array("t", data=np.zeros((3, 7, 900)), chunks=(1, 7, 900), dimension_names=names)
    with repo.transaction("second") as store:
        zarr.open_array(store, path="t")[2] = 1
    page = look(repo, "#/diff", viewport={"width": 1000, "height": 600}).page
    expect(page.locator(".pictures .quiet").first).to_have_text("At [2026-02-01, 45°S to 45°N, 0:900].")
    for canvas in page.locator(".triple figure > canvas:first-child").all():
        box = canvas.bounding_box()
        assert box is not None
        assert box["height"] <= 600
