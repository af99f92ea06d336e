"""Every view of the page, opened and clicked through in Chromium; what it shows is compared with the repository."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.serving.browser import sample
from tests.serving.browser.conftest import REPOSITORIES, SERVED
from tests.serving.browser.staging import staging
from txstore.constraints import EqualLength
from txstore.views import Reduce

pytestmark = pytest.mark.long

playwright_api = pytest.importorskip("playwright.sync_api")
expect = playwright_api.expect

Look = Callable[..., Any]


def python_line(page: Any) -> Any:
    """Run the line of Python that the page shows for what it shows."""
    text = page.locator(".line:visible code").last.text_content()
    for address, place in REPOSITORIES.items():
        text = text.replace(f'"{address}"', f'"{place}"')
    return eval(text, {"txstore": txstore, "zarr": zarr})


def fact(page: Any, name: str) -> Any:
    """Return what stands beside a name, such as "Minimum"."""
    return page.locator(".facts > div", has=page.locator("dt", has_text=re.compile(f"^{name}$"))).locator("dd")


def number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def drawn(page: Any, shows: str = "all") -> Any:
    """Wait until the preview shows what was asked for last."""
    expect(page.locator(f".status[data-shows={shows}]")).to_be_visible()
    expect(page.locator(".stage.waiting")).to_have_count(0)
    return page


def shows(page: Any, values: np.ndarray) -> None:
    """The figures beside the preview are those of the values."""
    finite = values[np.isfinite(values)]
    expect(fact(page, "Minimum")).to_have_text(re.compile(r"\d"))
    assert number(fact(page, "Minimum").inner_text()) == pytest.approx(float(finite.min()), rel=1e-4)
    assert number(fact(page, "Maximum").inner_text()) == pytest.approx(float(finite.max()), rel=1e-4)
    assert number(fact(page, "Mean").inner_text()) == pytest.approx(float(finite.mean(dtype="f8")), rel=1e-4)


@pytest.fixture(scope="module")
def format_2(tmp_path_factory: pytest.TempPathFactory) -> txstore.Repository:
    return sample.make_format_2(tmp_path_factory.mktemp("two") / "two.tx")


# --- history


def test_the_history_is_a_graph_of_all_branches(look: Look, weather: txstore.Repository) -> None:
    page = look(weather).page
    expect(page.locator(".tools")).to_contain_text("18 commits")
    rows = page.locator(".row[role=option]")
    expect(rows.first).to_contain_text("Mask the broken scan lines of orbit 3")
    expect(rows.first.locator(".chip.branch")).to_have_text("main")
    expect(rows.first.locator(".chip.tag")).to_have_text("for-the-report")
    expect(rows.first).to_contain_text(sample.AUTHORS[1])
    merge = rows.filter(has_text="Merge the recalibration")
    assert merge.locator(".dot.merge").count() == 1
    assert merge.locator(".lane").count() >= 3  # from the child; to the parents
    assert page.locator(".lane.c1").count() > 0
    assert {each.id for each in python_line(page)} <= {
        each.id for name in weather.branches for each in weather.log(name)
    }


def test_a_commit_is_shown_and_has_a_permalink(look: Look, weather: txstore.Repository) -> None:
    looking = look(weather)
    page = looking.page
    page.locator(".row", has_text="Begin: grids, stations and a relief").click()
    first = weather.commit(0)
    detail = page.locator(".detail")
    expect(detail.locator("h2")).to_have_text("Begin: grids, stations and a relief")
    expect(detail.locator(".message")).to_have_text("The grid is that of the reanalysis, one degree.")
    expect(detail).to_contain_text(first.id)
    expect(detail.locator(".nodes li")).to_have_count(10)
    assert page.url.endswith(f"#/history/{first.id}")
    page = looking.go(f"#/history/{first.id}")
    expect(page.locator(".detail")).to_contain_text(first.id)
    expect(page.locator(".row[aria-selected=true]")).to_contain_text("Begin")


def test_the_history_by_keys(look: Look, weather: txstore.Repository) -> None:
    page = look(weather).page
    log = page.locator(".log")
    expect(page.locator(".row[aria-selected=true]")).to_contain_text("Mask")
    log.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".row[aria-selected=true]")).to_contain_text("Analysis of day 10")
    assert log.get_attribute("aria-activedescendant") == page.locator(".row[aria-selected=true]").get_attribute("id")
    page.keyboard.press("End")
    expect(page.locator(".detail h2")).to_contain_text("Begin")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator("[role=tree]")).to_be_visible()
    assert f"#/tree/{weather.head().id}" in page.url


def test_the_history_of_a_branch_and_of_a_path(look: Look, weather: txstore.Repository) -> None:
    page = look(weather).page
    page.get_by_label("Branch").select_option("recalibrated")
    expect(page.locator(".tools")).to_contain_text(f"{len(weather.log('recalibrated'))} commits")
    page.get_by_label("Only commits that changed this path").fill("stations")
    page.keyboard.press("Enter")
    expect(page.locator(".tools")).to_contain_text(f"{len(weather.log('recalibrated', path='stations'))} commit")
    assert [each.id for each in python_line(page)] == [each.id for each in weather.log("recalibrated", path="stations")]


def test_of_many_commits_few_are_drawn(look: Look, open_repo: Callable[..., txstore.Repository]) -> None:
    repo = open_repo()
    for i in range(260):
        with repo.transaction(f"commit {i}") as store:
            zarr.create_group(store, path=f"g{i}")
    page = look(repo).page
    expect(page.locator(".tools")).to_contain_text("commits read, more below")
    page.locator(".log").focus()
    page.keyboard.press("End")
    expect(page.locator(".detail h2")).to_have_text("commit 0")
    assert page.locator(".row[role=option]").count() < 120


@SERVED
def test_a_commit_appears_by_itself(look: Look, open_repo: Callable[..., txstore.Repository]) -> None:
    repo = open_repo()
    with repo.transaction("the first") as store:
        zarr.create_array(store, name="a", data=np.arange(4.0))
    page = look(repo).page
    expect(page.locator(".live.on")).to_have_text("live")
    expect(page.locator(".row[role=option]")).to_have_count(1)
    with repo.transaction("came meanwhile") as store:
        zarr.open_array(store, path="a")[0] = 9
    expect(page.locator(".row[role=option]").first).to_contain_text("came meanwhile")
    expect(page.locator(".row[role=option]").first.locator(".chip.branch")).to_have_text("main")
    expect(page.locator(".row[role=option]").nth(1).locator(".chip.branch")).to_have_count(0)
    expect(page.locator(".toast")).to_contain_text("came meanwhile")


@SERVED
def test_the_look_that_ends_last_is_the_newest(look: Look, open_repo: Callable[..., txstore.Repository]) -> None:
    repo = open_repo()

    def commit(message: str) -> None:
        with repo.transaction(message) as store:
            zarr.create_group(store, path=message)

    commit("first")
    page = look(repo).page
    expect(page.locator(".live.on")).to_have_text("live")
    held: list[Any] = []
    page.route("**/files/tags/", lambda route: route.continue_() if held else held.append(route))
    for message in ("second", "third"):
        commit(message)
        page.wait_for_timeout(2000)
    held[0].continue_()
    page.wait_for_timeout(2000)
    expect(page.locator(".row[role=option]").first).to_contain_text("third")


@SERVED
def test_a_repository_that_nothing_was_written_to(look: Look, open_repo: Callable[..., txstore.Repository]) -> None:
    repo = open_repo()
    looking = look(repo)
    for place in ("#/tree/main/", "#/usage/main", "#/diff", "#/history"):
        page = looking.go(place)
        expect(page.locator("main")).to_contain_text("Nothing was written yet")
    expect(page.locator(".live.on")).to_be_visible()
    with repo.transaction("the first") as store:
        zarr.create_group(store)
    expect(page.locator(".row[role=option]")).to_contain_text("the first")


# --- data


def test_the_tree_opens_by_clicks_and_keys(look: Look, weather: txstore.Repository) -> None:
    page = look(weather, "#/tree/main/").page
    tree = page.get_by_role("tree")
    expect(tree.get_by_role("treeitem")).to_have_count(5)
    tree.get_by_role("treeitem", name="surface").click()
    expect(tree.get_by_role("treeitem")).to_have_count(8)
    expect(page.locator(".members tbody tr")).to_have_count(3)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".node h1")).to_have_text("relief")
    assert page.url.endswith("#/tree/main/surface/relief")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(tree.get_by_role("treeitem")).to_have_count(5)
    assert isinstance(python_line(page), (zarr.Array, np.ndarray))


def test_a_long_group_is_read_in_parts(look: Look, open_repo: Callable[..., txstore.Repository]) -> None:
    repo = open_repo()
    with repo.transaction() as store:
        for i in range(450):
            zarr.create_group(store, path=f"many/g{i:03}")
    page = look(repo, "#/tree/main/many").page
    tree = page.get_by_role("tree")
    expect(tree.get_by_role("treeitem")).to_have_count(2 + 50 + 1)
    tree.get_by_role("treeitem", name="Show more").click()
    expect(tree.get_by_role("treeitem")).to_have_count(2 + 250 + 1)
    tree.get_by_role("treeitem", name="Show more").click()
    expect(tree.get_by_role("treeitem")).to_have_count(2 + 450)


@SERVED
def test_a_branch_that_moves_while_its_tree_is_read(look: Look, open_repo: Callable[..., txstore.Repository]) -> None:
    """The tree is of one commit, until something else is chosen in it."""
    repo = open_repo()
    with repo.transaction() as store:
        for i in range(60):
            zarr.create_group(store, path=f"many/g{i:02}")
    page = look(repo, "#/tree/main/many").page
    tree = page.get_by_role("tree")
    expect(tree.get_by_role("treeitem")).to_have_count(2 + 50 + 1)
    with repo.transaction("other groups") as store:
        del zarr.open_group(store)["many"]
        for i in range(60):
            zarr.create_group(store, path=f"many/h{i:02}")
    expect(page.locator(".toast")).to_contain_text("other groups")
    tree.get_by_role("treeitem", name="Show more").click()
    expect(tree.get_by_role("treeitem")).to_have_count(2 + 60)
    assert tree.get_by_role("treeitem", name="h").count() == 0
    tree.get_by_role("treeitem", name="many").click()
    expect(tree.get_by_role("treeitem", name="h00")).to_be_visible()
    assert tree.get_by_role("treeitem", name="g").count() == 0


def test_details(look: Look, weather: txstore.Repository) -> None:
    page = look(weather, "#/tree/main/surface/temperature?view=details").page
    expect(fact(page, "Shape")).to_have_text("12 × 181 × 360")
    expect(fact(page, "Chunks")).to_have_text("1 × 61 × 90")
    expect(fact(page, "Data type")).to_have_text("float32")
    expect(fact(page, "Codecs")).to_have_text("bytes → zstd")
    expect(fact(page, "Chunks stored")).to_contain_text("120 of 144")
    expect(page.locator("td", has_text="Air temperature at 2 m")).to_be_visible()


def test_what_a_commit_declares(look: Look, open_repo: Callable[..., txstore.Repository]) -> None:
    repo = open_repo()
    with repo.transaction() as store:
        root = zarr.create_group(store)
        for name in ("a", "b"):
            root.create_array(name, shape=(3,), chunks=(1,), dtype="i4", dimension_names=["x"])[:2] = 1
        store.constraints["equal"] = EqualLength(["a", "b"])
        store.views["sum"] = Reduce("a", "x", "max", "d")
        store.views["late"] = Reduce("b", "x", "min", "e", when="follow")
    repo.feeds.create("means", paths="b")
    repo.views["late"].update()
    with repo.transaction() as store:
        zarr.open_array(store, path="b")[0] = 3
    looking = look(repo, "#/tree/main/?view=details")
    about = looking.page.locator(".node")
    expect(about.locator("tr", has_text="equal length")).to_contain_text('"paths": [ "a", "b" ]')
    expect(about.locator("tr", has_text="sum")).to_have_text("sumreduceby each commitadcurrent")
    expect(about.locator("tr", has_text="late")).to_have_text("latereducelaterbebehind")
    looking.go(f"#/tree/{repo.commit(-2).id}/e?view=details")
    expect(about.locator("tr", has_text="late")).to_have_text("latereducelaterbecurrent")
    expect(about.locator("tr", has_text="equal length")).to_have_count(0)
    page = looking.go("#/work")
    expect(page.locator("tr", has_text="means")).to_contain_text(f"{repo.feeds['means'].status().behind} commits")


@SERVED
def test_ways_to_open_it_elsewhere(look: Look, weather: txstore.Repository) -> None:
    page = look(weather, "#/tree/main/surface/temperature?view=details").page
    source = page.locator(".line", has_text="Zarr").locator("code").first.inner_text()
    assert source.endswith(f"/at/{weather.head().id}/surface/temperature/")
    links = page.locator("a[target=_blank]")
    assert links.count() == 2
    assert all("noreferrer" in links.nth(i).get_attribute("rel") for i in range(2))


def test_an_image_with_a_slider(look: Look, weather: txstore.Repository) -> None:
    looking = look(weather, "#/tree/main/surface/temperature")
    page = drawn(looking.page)
    array = zarr.open_array(weather.snapshot(), path="surface/temperature", mode="r")
    shows(page, array[0])
    expect(fact(page, "Missing chunks")).to_have_text("none")
    page.get_by_label("time, index").fill("2")
    page.keyboard.press("Enter")
    expect(fact(page, "Maximum")).not_to_have_text(re.compile("^311"))
    shows(drawn(page), array[2])
    assert page.url.endswith("?sel=2,0:181,0:360")
    np.testing.assert_array_equal(python_line(page), array[2])
    page = drawn(looking.go("#/tree/main/surface/temperature?sel=11,0:181,0:360"))
    expect(fact(page, "Missing chunks")).to_contain_text("12 of 12")
    expect(page.get_by_role("button", name="Nearer")).to_be_visible()


def test_zooming(look: Look, weather: txstore.Repository) -> None:
    page = drawn(look(weather, "#/tree/main/surface/relief").page)
    array = zarr.open_array(weather.snapshot(), path="surface/relief", mode="r")
    shows(page, array[:].astype("f8"))
    page.get_by_role("button", name="Nearer").click()
    expect(page.locator(".axes")).to_contain_text("longitude 90:270")
    shows(drawn(page), python_line(page).astype("f8"))
    page.get_by_role("button", name="The whole").click()
    expect(page.locator(".axes")).to_contain_text("longitude 0:360")
    box = page.locator(".frame").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] * 0.5)
    expect(page.locator(".readout")).to_contain_text(re.compile(r"^\[\d+, \d+\] = -?[\d,]+$"))
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.75)
    page.mouse.up()
    expect(page.locator(".axes")).to_contain_text(re.compile(r"longitude (89|90):18[01]"))
    page.locator(".frame").focus()
    page.keyboard.press("0")
    expect(page.locator(".axes")).to_contain_text("longitude 0:360")
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".axes")).to_contain_text("longitude 135:315")


def test_the_picture_is_that_of_the_values(look: Look, weather: txstore.Repository) -> None:
    """The brightest pixel lies where the largest value does."""
    page = drawn(look(weather, "#/tree/main/surface/relief").page)
    page.get_by_role("combobox", name="Colours").select_option("Grey")
    pixels = page.evaluate("""() => {
      const { width, height } = document.querySelector(".frame canvas");
      const { data } = document.querySelector(".frame canvas").getContext("2d").getImageData(0, 0, width, height);
      return [...data].filter((_, i) => i % 4 === 0);
    }""")
    array = zarr.open_array(weather.snapshot(), path="surface/relief", mode="r")[:].astype("f8")
    grey = 10 + np.round((array - array.min()) / (array.max() - array.min()) * 255) / 255 * (247 - 10)
    np.testing.assert_allclose(np.reshape(pixels, array.shape), grey, atol=1.0)


@pytest.mark.parametrize(
    ("path", "shown"),
    [("stations/pressure", None), ("checksum", None), ("stations/count", "4"), ("stations/names", "Ulaanbaatar")],
)
def test_lines_scalars_and_text(look: Look, weather: txstore.Repository, path: str, shown: str | None) -> None:
    page = drawn(look(weather, f"#/tree/main/{path}").page)
    array = zarr.open_array(weather.snapshot(), path=path, mode="r")
    if shown is not None:
        expect(page.locator(".stage")).to_contain_text(shown)
    else:
        shows(page, np.asarray(array[:], dtype="f8"))
        assert page.locator(".stage svg.lines").count() == 1


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_data_types_that_are_no_plain_numbers(look, open_repo, zarr_format):
    repo = open_repo()
    with repo.transaction() as store:
        root = zarr.create_group(store, zarr_format=zarr_format)
        root.create_array("codes", data=np.array([b"one", b"two"], "S3"))
        root.create_array("letters", data=np.array(["größer", "two"], "U6"))
        root.create_array("waves", shape=(4, 4), dtype="c16", chunks=(2, 2), fill_value=5 + 12j)[:2] = 3 + 4j
        root.create_array("thin", data=np.full(3, 6 + 8j, "c8"))
        root.create_array("days", data=np.array(["1970-01-03", "NaT"], "M8[D]"))
    looking = look(repo)
    for path, told in {"codes": "two", "letters": "größer"}.items():
        expect(drawn(looking.go(f"#/tree/main/{path}")).locator(".values")).to_contain_text(told)
    for path, least, most in (("waves", "5", "13"), ("thin", "10", "10"), ("days", "2", "2")):
        page = drawn(looking.go(f"#/tree/main/{path}"))
        expect(fact(page, "Minimum")).to_have_text(least)
        expect(fact(page, "Maximum")).to_have_text(most)
    expect(fact(page, "NaN")).to_have_text("1")


def test_of_an_array_that_no_screen_shows_there_is_an_overview(look, open_repo):
    repo = open_repo()
    words = np.array([f"{at}" for at in range(3000)], dtype=np.dtypes.StringDType())
    values = np.add.outer(np.arange(640.0), np.arange(1300.0) * 2)
    with repo.transaction() as store:
        zarr.create_array(store, name="endless", shape=(10**15,), chunks=(10**6,), dtype="u1", fill_value=7)
        zarr.create_array(store, name="words", data=words, chunks=(10,))
        zarr.create_array(store, name="a", data=values, chunks=(32, 32))
    looking = look(repo, "#/tree/main/endless")
    expect(fact(drawn(looking.page, "overview"), "Missing chunks")).to_contain_text("fill value 7")
    page = drawn(looking.go("#/tree/main/words"))
    expect(page.locator(".values td")).to_have_count(200)
    expect(page.locator(".stage .notice")).to_have_text("The first 200 of 3,000.")
    page = drawn(looking.go("#/tree/main/a"), "overview")
    expect(page.locator(".status")).to_contain_text("one of 2 × 3 values")
    shows(page, values[::2, ::3])
    page.get_by_role("button", name="Read all of it").click()
    shows(drawn(page), values)


def test_values_that_lie_in_other_files(look, request, open_repo, tmp_path):
    (tmp_path / "raw.bin").write_bytes(np.arange(8, dtype="i4").tobytes())
    repo = open_repo(sources=[tmp_path])
    with repo.transaction() as store:
        zarr.create_array(store, name="a", shape=(8,), chunks=(4,), dtype="i4", compressors=None)
        for chunk in (0, 1):
            store.set_reference(f"a/c/{chunk}", tmp_path / "raw.bin", 16 * chunk, 16)
    page = look(repo, "#/tree/main/a").page
    if "served" in request.node.name:
        shows(drawn(page), np.arange(8.0))
    else:
        expect(page.locator(".failure")).to_contain_text("lie in files outside of the repository")


def test_shards_with_gaps(look: Look, weather: txstore.Repository) -> None:
    page = drawn(look(weather, "#/tree/main/satellite/radiance").page)
    shows(page, zarr.open_array(weather.snapshot(), path="satellite/radiance", mode="r")[:].astype("f8"))
    expect(fact(page, "Missing chunks")).to_contain_text("48 of 256")


@pytest.mark.parametrize("name", ["blosclz", "bits", "zlib"])
def test_codecs_of_format_2(look: Look, format_2: txstore.Repository, name: str) -> None:
    shows(drawn(look(format_2, f"#/tree/main/{name}").page), sample.temperature(0))


def test_a_codec_that_no_browser_has(look: Look, format_2: txstore.Repository) -> None:
    page = look(format_2, "#/tree/main/lzma").page
    expect(page.locator(".stage .failure")).to_contain_text("can't decode it")
    expect(page.locator(".stage .failure")).to_contain_text("lzma")


def test_rows_that_were_erased_in_both_commits(look: Look, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Then neither of the two values has its checksum in an entry."""
    repo = txstore.Repository(tmp_path / "data.tx")
    commits = []
    for first in (1, 2):
        with repo.transaction() as store:
            if first == 1:
                zarr.create_group(store)
                zarr.create_array(store, name="x", data=np.array([10, 20, 30, 40]), chunks=(4,), dimension_names=["x"])
                zarr.create_array(
                    store, name="v", shape=4, dtype="i4", chunks=(4,), compressors=None, dimension_names=["x"]
                )
            zarr.open_array(store, path="v")[:] = [first, 0, 0, 9]
        commits.append(repo.head())
    repo.erase("v", {"x": 40})
    one, two = (str(each.id) for each in commits)
    repo = txstore.Repository(repo.url)
    assert [(node.path, node.chunks_changed) for node in repo.diff(one, two).nodes] == [("v", 1)]
    node = look(repo, f"#/diff/{one}/{two}").page.locator(".diff summary")
    expect(node).to_have_text(re.compile("changedv1 changed"))
    page = look(repo, f"#/tree/{one}/v").page
    if "served" in request.node.name:
        shows(drawn(page), np.asarray(zarr.open_array(repo.snapshot(one), path="v")[:]))
    else:
        expect(page.locator(".failure")).to_contain_text("rows of this value were erased")


# --- chunks


def test_the_chunk_map_is_blame(look: Look, weather: txstore.Repository) -> None:
    page = look(weather, "#/tree/main/satellite/radiance?view=chunks").page
    legend = page.locator(".legend li")
    expect(legend).to_have_count(2)
    blame = weather.blame("satellite/radiance")
    assert (python_line(page) == blame.chunks).all()
    counts = [int((blame.chunks == i).sum()) for i in range(2)]
    for i, many in enumerate(counts):
        expect(legend.nth(i)).to_contain_text(re.compile(rf"· {many}$"))
        expect(legend.nth(i)).to_contain_text(blame.commits[i].id[:10])
    page.locator("canvas.map").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator(".stage-column .readout")).to_have_text(
        "Chunk [1, 2]: Mask the broken scan lines of orbit 3 · jonas@lab-3"
    )
    page.get_by_role("button", name="What this commit wrote").click()
    expect(legend.first).to_contain_text(f"written by this commit: {counts[0]}")
    page.locator("canvas.map").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".detail h2")).to_have_text("Mask the broken scan lines of orbit 3")


def test_chunks_that_are_not_stored(look: Look, weather: txstore.Repository) -> None:
    page = look(weather, "#/tree/main/surface/temperature?view=chunks").page
    expect(page.locator(".legend li")).to_have_count(1)
    page.get_by_label("time, chunk").fill("11")
    expect(page.locator(".legend")).to_contain_text("not stored: 12")


# --- compare


def test_comparing_shows_attributes_regions_and_pictures(look: Look, weather: txstore.Repository) -> None:
    page = look(weather, "#/diff/v1.0/recalibrated").page
    node = page.locator(".diff")
    expect(node).to_have_count(1)
    expect(node.locator("summary")).to_contain_text("surface/temperature")
    expect(node.locator("tr", has_text="calibration")).to_contain_text('"offset": 2.5')
    expect(node.locator(".regions code")).to_have_text("[2, 122:181, 90:270]")
    expect(node.locator(".triple figure")).to_have_count(3)
    expect(node.locator("figcaption").last).to_have_text(f"Difference: {59 * 180:,} values")
    diff = python_line(page)
    assert [each.path for each in diff] == ["surface/temperature"]
    page.get_by_role("button", name="Swap before and after").click()
    expect(page.get_by_role("combobox", name="Before")).to_have_value("recalibrated")
    expect(page.locator(".triple figure")).to_have_count(3)


def test_comparing_lines_added_and_removed(look: Look, weather: txstore.Repository) -> None:
    looking = look(weather, f"#/diff/{weather.commit(0).id}/main")
    page = looking.page
    expect(page.locator(".counts")).to_contain_text("added")
    page.locator(".diff", has_text="stations/pressure").locator("summary").click()
    expect(page.get_by_label("Before, dashed, and after")).to_be_visible()
    page.locator(".diff", has_text="satellite/radiance").locator("summary").click()
    expect(page.locator(".nothing").first).to_have_text("not there")
    expect(page.locator(".diff", has_text="satellite/radiance").locator("figure canvas").first).to_be_visible()
    page = looking.go("#/diff/main/main")
    expect(page.locator(".notice")).to_have_text("Nothing differs.")


def test_comparing_begins_with_what_came_last(look: Look, weather: txstore.Repository) -> None:
    page = look(weather, "#/diff").page
    expect(page.locator(".diff summary")).to_contain_text("satellite/radiance")
    assert page.get_by_role("combobox", name="After").input_value() == weather.head().id[:10]


def test_nodes_that_were_moved_and_regions_that_touch(look: Look, open_repo: Callable[..., txstore.Repository]) -> None:
    repo = open_repo()
    with repo.transaction() as store:
        root = zarr.create_group(store)
        root.create_array("old/name", data=np.arange(6.0), chunks=(2,))
        root.create_array("a", data=np.zeros((90, 90), "i2"), chunks=(10, 10))
        root.create_array("kept", data=np.arange(3))
        root.create_group("kind")
    with repo.transaction() as store:
        store.move("old", "new")
        array = zarr.open_array(store, path="a")
        array[20:50, 30:60] = 1
        array[80, 80] = 1
        array.attrs["of"] = {"deep": {"is": 2**60 + 1, "stays": 1}}
        zarr.create_array(store, name="kind", data=np.arange(2), overwrite=True)
    with repo.transaction() as store:
        zarr.open_array(store, path="a").attrs["of"] = {"deep": {"is": 2**60 + 2, "stays": 1.0}}
    told = repo.diff(-3, -2)
    looking = look(repo, f"#/history/{repo.commit(-2).id}")
    page = looking.page
    expect(page.locator(".detail .nodes li")).to_have_count(len(told))
    expect(page.locator(".detail .nodes li", has_text="new/name").locator(".badge")).to_have_text("moved")
    page = looking.go(f"#/diff/{repo.commit(-3).id}/{repo.commit(-2).id}")
    expect(page.locator(".diff")).to_have_count(len(told))
    assert [each.inner_text() for each in page.locator(".diff summary .badge").all()] == [each.change for each in told]
    expect(page.locator(".diff", has_text="new/name").locator("summary")).to_contain_text("from old/name")
    page.locator(".diff summary", has=page.get_by_text("a", exact=True)).click()
    expect(page.locator(".regions code")).to_have_text(["[20:50, 30:60]", "[80:90, 80:90]"])
    page = looking.go(f"#/diff/{repo.commit(-2).id}/main")
    row = page.locator(".diff tr", has_text="of.deep.is")
    expect(row.locator("pre")).to_have_text([str(2**60 + 1), str(2**60 + 2)])
    expect(page.locator(".diff tr", has_text="of.deep.stays").locator("pre")).to_have_text(["1", "1.0"])


# --- usage and work


def test_usage(look: Look, weather: txstore.Repository) -> None:
    page = look(weather, "#/usage/main").page
    rows = page.locator(".members tbody tr")
    expect(rows.first).to_contain_text("satellite/radiance")
    usage = python_line(page)
    expect(page.locator(".big")).to_contain_text(f"{sum(each.bytes for each in usage.values()):,} bytes")
    rows.first.locator("a").click()
    expect(page.locator(".node h1")).to_have_text("radiance")


# --- the shell


def test_keys_colours_and_the_way_back(look: Look, weather: txstore.Repository) -> None:
    page = look(weather).page
    expect(page.locator(".detail h2")).to_be_visible()
    for key, heading in {"3": "Compare", "4": "Work", "5": "Usage", "1": "History"}.items():
        page.keyboard.press(key)
        expect(page.locator("h1")).to_have_text(heading)
    page.go_back()
    expect(page.locator("h1")).to_have_text("Usage")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Colours: as the system").click()
    page.get_by_role("button", name="Colours: light").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(229, 232, 234)"
    page.reload()
    expect(page.get_by_role("button", name="Colours: dark")).to_be_visible()


def test_copying(look: Look, weather: txstore.Repository) -> None:
    page = look(weather, "#/usage/main", permissions=["clipboard-read", "clipboard-write"]).page
    line = page.locator(".line").last
    line.get_by_role("button").click()
    assert page.evaluate("navigator.clipboard.readText()") == line.locator("code").inner_text()


def test_what_is_not_there_is_said(look: Look, weather: txstore.Repository) -> None:
    looking = look(weather)
    for place in (
        "#/tree/main/no/such/node",
        "#/tree/no-such-branch/",
        "#/diff/main/deadbeefdeadbeef",
        "#/history/deadbeefdeadbeef",
    ):
        page = looking.go(place)
        expect(page.locator(".failure").first).to_contain_text("Not here.")


@SERVED
def test_who_stages_what_and_who_holds_locks(look: Look, tmp_path: Path) -> None:
    repo = sample.make_format_2(tmp_path / "two.tx")
    looking = look(repo, "#/work")
    page = looking.page
    expect(page.locator(".notice").first).to_contain_text("Nothing is staged.")
    with staging(repo.url, "ten-years", "wind-1", "zlib") as first, staging(repo.url, "ten-years", "wind-2") as second:
        article = page.locator("article", has_text="ten-years")
        expect(article.locator("tbody tr")).to_have_count(2)  # it came by itself
        for pid, path in ((first, "wind-1"), (second, "wind-2")):
            row = article.locator("tr", has_text=f":{pid}")
            expect(row).to_contain_text("attached")
            expect(row).to_contain_text(path)
        expect(article).to_contain_text("The last ten years, anew")
        expect(
            page.get_by_role("region", name="Process, Locks, Where").locator("tr", has_text=str(first))
        ).to_contain_text("zlib")
        assert [each.name for each in python_line(page)] == ["ten-years"]
    # Both have left: the transaction waits for whoever commits it.
    expect(article.locator(".badge.sealed")).to_have_count(2)
    staged = repo.engine.existing("ten-years")
    staged.commit()
    staged.lifecycle.leave()
    expect(page.locator(".work")).to_contain_text("Nothing is staged.")
    expect(page.locator(".work")).to_contain_text("No lock is held.")
