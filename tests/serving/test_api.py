"""The JSON API: what the page is told is what the repository says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import txstore
from tests.serving.asking import Answer, ask
from tests.tools.forged_headers import forge_header
from txstore.constraints import EqualLength, OnlyGrows
from txstore.format.declarations import Declarations
from txstore.serving import application
from txstore.views import Reduce

Get = Callable[..., Answer]


def test_the_repository(get: Get, repo: txstore.Repository) -> None:
    repo.branches["dev"] = repo.commit("v1")
    told = get("/api/repository").json
    head, old = repo.head(), repo.commit("v1")
    assert head is not None
    assert told["id"] == repo.id
    assert told["head"] == {"main": head.id, "dev": old.id}
    assert told["branches"] == [
        {"name": "main", "head": head.id, "commits": 2}, {"name": "dev", "head": old.id, "commits": 1},
    ]  # fmt: skip
    assert told["tags"] == [{"name": "v1", "commit": old.id}]


def graph(repo: txstore.Repository) -> None:
    """Two branches, one of them merged, and a third."""
    repo.branches["dev"] = repo.head()
    for number in range(6):
        with repo.transaction(f"{number}", branch=("main", "dev")[number % 2]) as store:
            zarr.create_array(store, name=f"made{number}", data=np.arange(3))
    repo.merge("dev")
    repo.branches["other"] = repo.commit("v1")


def test_commits_of_all_branches_each_once_and_before_its_parents(get: Get, repo: txstore.Repository) -> None:
    graph(repo)
    everything = get("/api/commits").json
    assert everything["next"] is None
    commits = everything["commits"]
    ids = [commit["id"] for commit in commits]
    assert sorted(ids) == sorted({commit.id for name in repo.branches for commit in repo.log(name)})
    for at, commit in enumerate(commits):
        assert all(ids.index(parent) > at for parent in commit["parents"])
    merge = commits[0]
    assert len(merge["parents"]) == 2
    assert merge["branches"] == ["main"]
    assert commits[-1]["tags"] == ["v1"]
    assert commits[-1]["branches"] == ["other"]
    assert merge["message"] == repo.head().message  # type: ignore[union-attr]


def test_commits_in_pages(get: Get, repo: txstore.Repository) -> None:
    graph(repo)
    whole = [commit["id"] for commit in get("/api/commits").json["commits"]]
    for limit in (1, 2, 3, 100):
        found: list[str] = []
        told = get(f"/api/commits?limit={limit}").json
        while True:
            found += [commit["id"] for commit in told["commits"]]
            assert len(told["commits"]) <= limit
            if told["next"] is None:
                break
            told = get(f"/api/commits?limit={limit}&before={told['next']}").json
        assert found == whole


def test_commits_from_a_name_and_of_a_path(get: Get, repo: txstore.Repository) -> None:
    old = repo.commit("v1").id
    assert [commit["id"] for commit in get("/api/commits?from=v1").json["commits"]] == [old]
    assert [commit["id"] for commit in get("/api/commits?path=three/strings").json["commits"]] == [old]
    assert len(get("/api/commits?path=three/plain").json["commits"]) == 2
    assert get("/api/commits?path=nothing").json["commits"] == []


def test_what_a_commit_has_changed(get: Get, repo: txstore.Repository) -> None:
    told = get("/api/commit/main").json
    assert {node["path"] for node in told["changed"]} == {"three/plain", "two/plain", "three/sharded"}
    [plain] = [node for node in told["changed"] if node["path"] == "three/plain"]
    assert plain["chunks"] == {"added": 4, "removed": 0, "changed": 0}
    first = get(f"/api/commit/{repo.commit('v1').id}").json
    assert {node["change"] for node in first["changed"]} == {"added"}


def test_the_tree_group_by_group(get: Get, repo: txstore.Repository) -> None:
    nodes = get("/api/tree/main").json["nodes"]
    assert [(node["name"], node["kind"]) for node in nodes] == [
        ("scalar", "array"),
        ("three", "group"),
        ("two", "group"),
    ]
    assert nodes[1]["children"] == 5
    three = {node["name"]: node for node in get("/api/tree/main?path=three").json["nodes"]}
    assert three["plain"]["shape"] == [20, 30]
    assert three["plain"]["logical_bytes"] == 20 * 30 * 4
    assert (three["sharded"]["chunks"], three["sharded"]["shards"]) == ([4, 4], [16, 16])
    assert three["strings"]["logical_bytes"] is None
    two = {node["name"]: node for node in get("/api/tree/main?path=two").json["nodes"]}
    assert (two["plain"]["zarr_format"], two["plain"]["logical_bytes"]) == (2, 96)
    names, after = [], ""
    while after is not None:
        page = get(f"/api/tree/main?path=three&limit=2&after={after}").json
        names += [node["name"] for node in page["nodes"]]
        after = page["next"]
    assert names == sorted(three)


def test_all_of_a_node(get: Get, repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        zarr.create_array(store, name="a", shape=(3,), chunks=(1,), dtype="i4")[:2] = 1
        zarr.create_array(store, name="b", shape=(3,), chunks=(1,), dtype="i4")
        store.constraints["equal"] = EqualLength(["a", "b"])
    node = get("/api/node/main/a").json
    mapping = repo.mapping()
    assert node["stored_bytes"] == sum(len(mapping[key]) for key in mapping.keys_below("a"))
    assert node["chunks_stored"] == {"present": 2, "total": 3}
    assert [each["name"] for each in node["constraints"]] == ["equal"]
    assert get("/api/node/main/three/plain").json["constraints"] == []
    with repo.transaction() as store:
        zarr.create_array(store, name="c", data=np.arange(4), dimension_names=["x"])
        store.views["sum"] = Reduce("c", "x", "max", "d")
        store.views["late"] = Reduce("c", "x", "min", "e", when="follow")
    assert get("/api/node/main/a").json["views"] == []
    assert get("/api/node/main/d").json["views"] == [
        {"name": "sum", "kind": "reduce", "when": "commit", "sources": ["c"], "outputs": ["d"], "current": True}
    ]
    behind = [(each["name"], each["current"]) for each in get("/api/node/main/c").json["views"]]
    assert behind == [("late", False), ("sum", True)]
    repo.views["late"].update()
    assert [each["current"] for each in get("/api/node/main").json["views"]] == [True, True]
    root = get("/api/node/main").json
    assert root["stored_bytes"] == repo.usage().live
    assert (root["path"], root["kind"]) == ("", "group")


def test_who_has_written_which_chunk(get: Get, repo: txstore.Repository) -> None:
    told = get("/api/chunks/main/three/plain").json
    blame = repo.blame("three/plain")
    assert told["grid"] == [3, 4]
    assert [None if cell < 0 else told["commits"][cell]["id"] for cell in told["cells"]] == [
        None if (commit := blame[at]) is None else commit.id for at in np.ndindex(3, 4)
    ]
    assert told["commits"][told["this"]]["id"] == repo.head().id  # type: ignore[union-attr]
    assert get("/api/chunks/v1/three/plain").json["cells"] == [0] * 8 + [-1] * 4
    part = get("/api/chunks/main/three/plain?from=1,1&shape=2,2").json
    assert (part["shape"], len(part["cells"])) == ([2, 2], 4)
    assert get("/api/chunks/main/scalar").json["cells"] == [0]


def test_a_map_of_many_chunks_is_coarser(get: Get, repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        array = zarr.create_array(store, name="many", shape=(600, 500), chunks=(1, 1), dtype="u1", fill_value=0)
        array[599, 499] = 1
    told = get("/api/chunks/main/many").json
    assert len(told["cells"]) == np.prod(told["shape"]) <= 1 << 16
    assert [-(-n // s) for n, s in zip((600, 500), told["step"], strict=True)] == told["shape"]
    assert [at for at, cell in enumerate(told["cells"]) if cell >= 0] == [len(told["cells"]) - 1]


def test_what_differs(get: Get, repo: txstore.Repository) -> None:
    told = get("/api/diff/v1/main").json
    expected = repo.diff("v1", "main").as_dict()
    assert [node["path"] for node in told["nodes"]] == [node["path"] for node in expected["nodes"]]
    for node, wanted in zip(told["nodes"], expected["nodes"], strict=True):
        assert {name: node[name] for name in wanted} == wanted
    assert not told["truncated"]
    assert get("/api/diff/main/main").json["nodes"] == []


def test_pictures_are_what_the_array_holds(get: Get, repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        zarr.create_array(
            store, name="cube", data=np.arange(4 * 600 * 700, dtype="f8").reshape(4, 600, 700), chunks=(1, 100, 100)
        )
        zarr.create_array(store, name="line", data=np.linspace(-5, 5, 10_000), chunks=(1000,))
        zarr.create_array(store, name="days", data=np.array(["2026-01-01", "NaT"], "M8[D]"), chunks=(2,))
        zarr.create_array(store, name="holes", data=np.array([np.nan, np.inf, 1, 2]), chunks=(2,))
    snapshot = repo.snapshot()

    def picture(path: str, selection: str = "") -> tuple[Any, dict[str, str]]:
        answer = get(f"/api/preview/main/{path}?selection={selection}")
        assert answer.status == 200, answer.body
        shape = tuple(int(each) for each in answer.headers["x-shape"].split(",") if each)
        return np.frombuffer(answer.body, "<f4").reshape(shape), answer.headers

    cube: Any = zarr.open_array(snapshot, path="cube", mode="r")[:]
    shown, about = picture("cube", "2,:,:")
    assert about["x-step"] == "2,2"
    np.testing.assert_array_equal(shown, cube[2, ::2, ::2].astype("f4"))
    assert (float(about["x-min"]), float(about["x-max"])) == (cube[2, ::2, ::2].min(), cube[2, ::2, ::2].max())
    np.testing.assert_array_equal(picture("cube")[0], cube[0, ::2, ::2].astype("f4"))
    np.testing.assert_array_equal(picture("cube", "1,100:200,5")[0], cube[1, 100:200, 5].astype("f4"))
    assert picture("cube", "1,2,3")[0] == np.float32(cube[1, 2, 3])
    line, about = picture("line")
    assert (line.shape, about["x-step"]) == ((3334,), "3")
    days, _ = picture("days")
    assert days[0] == 20454
    assert np.isnan(days[1])
    holes, about = picture("holes")
    assert (about["x-min"], about["x-max"]) == ("1.0", "2.0")
    assert np.isnan(holes[0])
    assert np.isinf(holes[1])
    np.testing.assert_array_equal(
        picture("three/sharded")[0], zarr.open_array(snapshot, path="three/sharded", mode="r")[:]
    )


def test_texts_are_told_as_they_are(get: Get, repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        zarr.create_array(store, name="bytes", data=np.array([b"ab", b"\xff"], "S2"))
        zarr.create_array(store, name="words", data=np.array([[f"{y} {x}" for x in range(300)] for y in range(4)], "T"))
        zarr.create_array(store, name="long", data=np.array(["x" * 10_000], "T"))
        pair = np.zeros(3, [("a", "i4"), ("b", "f8")])
        zarr.create_array(store, name="pairs", data=pair, zarr_format=2)

    def texts(path: str, selection: str = "") -> tuple[list[int], list[str]]:
        told = get(f"/api/preview/main/{path}?selection={selection}").json
        return told["shape"], told["values"]

    assert texts("bytes") == ([2], ["ab", "\\xff"])
    shape, values = texts("words")
    assert (shape, values[:2], values[-1]) == ([1, 200], ["0 0", "0 1"], "0 199")
    assert texts("words", ":,7") == ([4], ["0 7", "1 7", "2 7", "3 7"])
    assert texts("words", "1:3,0:50")[0] == [2, 50]
    assert texts("words", "3,299") == ([], ["3 299"])
    assert len(texts("long")[1][0]) < 3000
    assert texts("pairs") == ([3], ["(0, 0.0)"] * 3)
    assert texts("three/strings") == ([3], ["a", "", "größer"])


def test_how_many_chunks_of_a_picture_are_missing(get: Get, repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        array = zarr.create_array(store, name="gaps", shape=(40, 40), chunks=(10, 10), dtype="c8")
        array[:10, :20] = 1
    assert get("/api/preview/main/gaps").headers["x-missing-chunks"] == "14/16"
    assert get("/api/preview/main/gaps?selection=0:10,:").headers["x-missing-chunks"] == "2/4"


def test_bytes_by_array(get: Get, repo: txstore.Repository) -> None:
    told = get("/api/usage/main").json
    usage = repo.usage()
    assert {each["path"]: each["bytes"] for each in told["arrays"]} == {
        path: each.bytes for path, each in usage.arrays.items()
    }
    assert told["total"] == usage.live


def test_who_stages_what(get: Get, repo: txstore.Repository) -> None:
    assert get("/api/transactions").json == {"transactions": [], "visible": True}
    with repo.transaction("by day", name="days") as store:
        zarr.open_array(store, path="three/plain")[0, 0] = 3
        [told] = get("/api/transactions").json["transactions"]
        assert (told["name"], told["message"], told["branch"]) == ("days", "by day", "main")
        [process] = told["processes"]
        assert process["alive"]
        assert process["nodes"] == [{"path": "three/plain", "keys": 1}]
        zarr.open_array(store, path="three/sharded")[0, 0] = 3
        [told] = get("/api/transactions").json["transactions"]
        assert told["processes"][0]["keys"] == 2
    assert get("/api/transactions").json["transactions"][0]["processes"][0]["sealed"]
    repo.transaction(name="days").rollback()
    assert get("/api/transactions").json["transactions"] == []


def test_who_holds_locks(get: Get, repo: txstore.Repository) -> None:
    assert get("/api/locks").json["holders"] == []
    with repo.transaction(lock={"three/plain": (slice(0, 7), slice(0, 16))}):
        told = get("/api/locks").json
        if told["kind"] == "table":
            [holder] = told["holders"]
            assert holder["locks"] == 2
            assert holder["nodes"] == [{"path": "three/plain", "locks": 2}]
    assert [each for each in get("/api/locks").json["holders"] if each["locks"]] == []


def test_how_far_feeds_are_behind(get: Get, repo: txstore.Repository) -> None:
    assert get("/api/feeds").json == {"feeds": []}
    feed = repo.feeds.create("means", paths="three/plain")
    repo.branches["other"] = repo.head()
    repo.feeds.on("other").create("own")
    with repo.transaction() as store:
        zarr.open_array(store, path="three/plain")[0, 0] = 3
    first, second = get("/api/feeds").json["feeds"]
    assert (first["name"], first["behind"], first["pending"], first["kept_on"]) == ("means", 2, True, "main")
    assert (second["name"], second["behind"], second["pending"], second["kept_on"]) == ("own", 1, False, "other")
    feed.reset()
    assert not get("/api/feeds").json["feeds"][0]["pending"]


def test_json_is_compressed_for_whoever_can_read_that(get: Get, repo: txstore.Repository) -> None:
    import gzip

    plain = get("/api/tree/main?path=three")
    packed = get("/api/tree/main?path=three", headers={"accept-encoding": "br, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2


def test_no_question_needs_to_write(open_repo: Any, tmp_path: Any) -> None:
    """Where nothing may be written, all can be read."""
    repo = txstore.Repository(f"memory://{tmp_path}/far.tx", single_writer=True)
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(4))
    app = application(repo)
    for place in (
        "commits",
        "tree/main",
        "node/main/x",
        "chunks/main/x",
        "preview/main/x",
        "usage/main",
        "transactions",
        "locks",
        "feeds",
    ):
        assert ask(app, f"/api/{place}").status == 200, place


def test_a_constraint_that_is_none_is_told_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "wrong.tx"
    repo = txstore.Repository(path)
    with repo.transaction() as store:
        zarr.create_array(store, name="a", data=np.arange(3))
        store.constraints["equal"] = OnlyGrows("a")
    forge_header(path, 0, declared=Declarations({"equal": 5}))
    answer = ask(application(txstore.Repository(path)), "/api/node/main/a")
    assert answer.json["error"]["type"] == "CorruptionError"
