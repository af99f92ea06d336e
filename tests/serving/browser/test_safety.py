"""What a repository says is never taken for more than text, and the page asks nobody but its server."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from numcodecs import Shuffle

import txstore
from tests.serving.browser import sample
from tests.serving.browser.conftest import FILES, SERVED
from tests.serving.browser.hostile_table import document, grid
from tests.tools.forged_headers import forge_header
from txstore.cli.serve import redirecting_to
from txstore.format import encoding
from txstore.serving.server import Server

playwright_api = pytest.importorskip("playwright.sync_api")
expect = playwright_api.expect

HARMLESS = """() => [...document.querySelectorAll("main *")].every((each) => [...each.attributes].every(
  ({ name, value }) => !name.startsWith("on") && !/^\\s*javascript:/i.test(value)))"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> txstore.Repository:
    return sample.make_hostile(tmp_path_factory.mktemp("hostile") / "<i>data.tx")


def places(repo: txstore.Repository) -> dict[str, str]:
    """Return where every view is, and what has to be seen there."""
    name, head = quote(sample.HOSTILE_NAME, safe=""), repo.head()
    return {
        "#/history": ".row",
        f"#/history/{head.id}": ".nodes li",
        "#/tree/main/": ".members tbody tr",
        "#/tree/main/?view=details": "td pre",
        f"#/tree/main/{name}": ".status[data-shows=all]",
        f"#/tree/main/{name}?view=chunks": ".legend li",
        f"#/tree/main/{name}?view=details": "td pre",
        "#/tree/main/words": ".values td",
        f"#/diff/{head.parent}/{head.id}": ".triple figure",
        "#/work": ".notice",
        "#/usage/main": ".members tbody tr",
        f"#/tree/main/{quote(sample.HOSTILE, safe='')}": ".failure",
        f"#/diff/{quote(sample.HOSTILE, safe='')}/main": ".failure",
    }


def test_html_in_names_and_messages_is_text(look: Callable[..., Any], hostile: txstore.Repository) -> None:
    looking = look(hostile)
    for place, seen in places(hostile).items():
        page = looking.go(place)
        expect(page.locator(seen).first).to_be_visible()
        assert "stolen" not in page.title()
        assert page.locator("main :is(img, script, b, i, iframe, object, embed)").count() == 0, place
        # No attribute became a handler, and no link leads to where it would run something.
        assert page.evaluate(HARMLESS), place
    page = looking.go(f"#/history/{hostile.head().id}")
    expect(page.locator(".detail h2")).to_have_text(sample.HOSTILE)
    for each in page.locator(".row-title, .row-under .cut").all():
        assert each.inner_text() == sample.HOSTILE


def test_lines_of_python_stay_lines_of_python(look: Callable[..., Any], hostile: txstore.Repository) -> None:
    page = look(hostile, f"#/tree/main/{quote(sample.HOSTILE_NAME, safe='')}?sel=1,0:3").page
    expect(page.locator(".status[data-shows=all]")).to_be_visible()
    import zarr

    text = page.locator(".line:visible code").last.text_content()
    assert eval(text, {"txstore": txstore, "zarr": zarr}).tolist() == [3.0, 4.0, 5.0]


@SERVED
def test_a_line_of_a_shell_runs_nothing_else(look: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "it's; touch stolen"
    folder.mkdir()
    repo = repo_of(folder, a=document())
    line = look(repo, "#/tree/main/a?view=details").page.locator(".line code", has_text="--allow-origin").first
    assert shlex.split(line.text_content())[:3] == ["txstore", "serve", repo.url]


def test_the_token_is_exchanged_for_a_cookie(browser: Any, hostile: txstore.Repository) -> None:
    """Whether a link of a terminal leads to the page, or the file that `--open` makes."""
    server = Server(hostile)
    server.start()
    context = browser.new_context()
    try:
        for open_page in (lambda page, address: page.goto(address), go_from_a_file):
            context.clear_cookies()
            page = context.new_page()
            open_page(page, server.address)
            expect(page.locator(".row").first).to_be_visible()
            assert server.token is not None
            assert server.token not in page.url
            assert server.token not in json.dumps(context.cookies())
    finally:
        context.close()
        server.close()


def go_from_a_file(page: Any, address: str) -> None:
    with redirecting_to(address) as file:
        page.goto(file.as_uri())
        page.wait_for_url(f"{address.partition('?')[0]}**")


def test_a_page_that_is_framed_needs_no_cookie(browser: Any, hostile: txstore.Repository, tmp_path: Path) -> None:
    """As in a cell of a notebook, which comes from elsewhere."""
    with hostile.show() as shown:
        context = browser.new_context()
        page = context.new_page()
        (tmp_path / "notebook.html").write_text(shown._repr_html_())
        notebook = HTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
        threading.Thread(target=notebook.serve_forever, daemon=True).start()
        page.goto(f"http://localhost:{notebook.server_port}/notebook.html")
        expect(page.frame_locator("iframe").locator(".row").first).to_be_visible()
        assert context.cookies() == []
        context.close()
        notebook.shutdown()
        notebook.server_close()


@SERVED
def test_the_policy_allows_no_other_host(look: Callable[..., Any], hostile: txstore.Repository) -> None:
    looking = look(hostile)
    response = looking.page.request.get(looking.address)
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    ran = looking.page.evaluate("""async () => {
      const script = document.createElement("script");
      script.textContent = "window.ran = true";
      document.body.append(script);
      const answered = await fetch("http://127.0.0.2:9/").then(() => true, () => false);
      return [window.ran === true, answered];
    }""")
    assert ran == [False, False]
    assert looking.faults
    looking.faults.clear()  # what was tried is reported


@pytest.mark.parametrize(
    ("shape", "chunks", "seen"),
    [
        ([4], [-1], ".failure"),
        ([4], [1e-9], ".failure"),
        ([4], ["2"], ".failure"),
        ([1] * 20_000, [1] * 20_000, ".failure"),
    ],
    ids=["negative", "tiny", "text", "dimensions"],
)
def test_lengths_that_no_array_has(look, tmp_path, shape, chunks, seen):
    """They could make a page count for ever."""
    looking = look(repo_of(tmp_path, a=document(shape=shape, chunk_grid=grid(chunks))), "#/tree/main/a")
    expect(looking.page.locator(seen).first).to_be_visible()


def test_documents_and_values_that_a_page_could_work_on_for_ever(look: Callable[..., Any], tmp_path: Path) -> None:
    spaces = {"units": "days since 2000-01-01" + " " * 1_000_000 + "x"}
    repo = repo_of(
        tmp_path,
        x=document(attributes=spaces),
        a=document(dimension_names=["x"]),
        digits=document(data_type="1" * 1_000_000 + "x"),
        close=document(shape=[2], data_type="float64", chunk_grid=grid([2]), codecs=CODECS),
    )
    with repo.begin() as mapping:
        mapping["quotes/zarr.json"] = b'"' + b'\\"' * 100_000  # a text that does not end: each quote may begin one
        mapping["close/c/0"] = np.array([0.3, np.nextafter(0.3, 1)], "<f8").tobytes()
    looking = look(repo)
    for path, seen in {
        "a": ".status[data-shows=all]",
        "digits": ".failure",
        "close": ".status[data-shows=all]",
        "quotes": ".notice",
    }.items():
        page = looking.go(f"#/tree/main/{path}")
        expect(page.locator(seen).first).to_be_visible()
        assert page.title().startswith("hostile.tx"), "it answers"


def test_commits_that_name_one_another_as_parents(look: Callable[..., Any], tmp_path: Path) -> None:
    """The page looks for the commit that has written a chunk: it would go round for ever."""
    repo = repo_of(tmp_path, a=document())
    for branch in ("main", "Dev"):
        if branch == "Dev":
            repo.branches[branch] = 0
        with repo.begin(branch=branch) as mapping:
            mapping["a/c/0"] = bytes(4)
    main, other = repo.head(), repo.head("Dev")
    record = repo.engine.commits.branches.all()["Dev"]
    forge_header(tmp_path / "hostile.tx", 1, parent_id=bytes.fromhex(other.id), seq=100)
    forge_header(tmp_path / "hostile.tx", 1, record.id, parent_id=bytes.fromhex(main.id), seq=100)
    page = look(repo, "#/tree/main/a?view=chunks").page
    expect(page.locator(":is(.failure, .legend li)").first).to_be_visible()
    assert page.title().startswith("hostile.tx"), "it answers"


TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
SCALAR: dict[str, Any] = {"shape": [], "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": []}}}
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
FORMAT_2 = {"zarr_format": 2, "dtype": "<f8", "shape": [4], "chunks": [4], "compressor": None, "filters": None,
            "order": "C", "fill_value": 0}  # fmt: skip
SCALAR_2 = FORMAT_2 | {"shape": [], "chunks": []}


@FILES
@pytest.mark.parametrize(
    ("told", "seen"),
    [
        (SCALAR | {"data_type": "float32", "fill_value": "0x7fc00000", "codecs": [LITTLE]}, "NaN"),
        (SCALAR | {"data_type": "float64", "fill_value": "0x3ff8000000000000", "codecs": [LITTLE]}, "1.5"),
        (SCALAR | {"data_type": "uint64", "fill_value": 2**64 - 1, "codecs": [LITTLE]}, "1.8447e+19"),
        (SCALAR | {"data_type": "int64", "fill_value": 2**63 - 1, "codecs": [LITTLE]}, "9.2234e+18"),
        (SCALAR | {"data_type": "complex64", "fill_value": [0, "0x40400000"], "codecs": [LITTLE]}, "3"),
        (SCALAR | {"data_type": {"name": "null_terminated_bytes", "configuration": {"length_bytes": 4}},
                   "fill_value": "YWI="}, "ab"),
        (SCALAR_2 | {"dtype": "|S4", "fill_value": "YWI="}, "ab"),
        (SCALAR_2 | {"dtype": "|S4", "fill_value": None}, ""),
        (SCALAR_2 | {"dtype": "<U4", "fill_value": None}, ""),
        (SCALAR_2 | {"dtype": "|O", "fill_value": 0, "filters": [{"id": "vlen-utf8"}]}, ""),
        (SCALAR_2 | {"dtype": "<M8[s]", "fill_value": None}, "NaN"),
    ],
)  # fmt: skip
def test_fill_values_that_javascript_reads_otherwise(look, tmp_path, told, seen):
    page = look(repo_of(tmp_path, a=told if "zarr_format" in told else document(**told)), "#/tree/main/a").page
    expect(page.locator(":is(.scalar, .stage pre)")).to_have_text(seen)


def sharded(**told: Any) -> dict[str, Any]:
    index = [LITTLE, {"name": "crc32c"}]
    shards = {"chunk_shape": [2, 2], "codecs": [{"name": "bytes"}], "index_codecs": index, "index_location": "end"}
    codecs = [{"name": "sharding_indexed", "configuration": shards | told}]
    return document(shape=[2, 4], chunk_grid=grid([2, 4]), codecs=codecs)


def shard(*, at_start: bool = False, order: tuple[int, int] = (0, 1), checksum: int | None = None) -> bytes:
    begin = 36 if at_start else 0
    index = np.array([[begin + 4 * each, 4] for each in order], "<u8").tobytes()
    index += (encoding.crc32c(index) if checksum is None else checksum).to_bytes(4, "little")
    chunks = bytes([7] * 4 + [9] * 4)
    return index + chunks if at_start else chunks + index


@FILES
@pytest.mark.parametrize(
    ("told", "value", "seen"),
    [
        (document(), b"\7\7", "a chunk has 2 values instead of 4"),
        (document(), b"\7" * 5, "a chunk has 5 values instead of 4"),
        (document(data_type="v2:U10"), None, "this is no data type"),
        (FORMAT_2 | {"chunks": [1 << 26], "data_type": {"configuration": {"length_bytes": 1}}}, None,
         "too large for a picture"),
        (document(shape=[4, 4], chunk_grid=grid([4, 4]), codecs=[TRANSPOSE, TRANSPOSE, {"name": "bytes"}]), None,
         "it is transposed twice"),
        (document(storage_transformers=[{"name": "encrypted"}]), b"\7" * 4, "it has storage transformers"),
        (FORMAT_2 | {"filters": [{"id": "delta", "dtype": "<f8", "astype": "<i8"}]}, bytes(32), "delta makes <i8"),
        (FORMAT_2 | {"filters": [{"id": "fixedscaleoffset", "dtype": "<f8", "astype": ">i4", "scale": 1, "offset": 0}]},
         bytes(16), "fixedscaleoffset makes >i4"),
        (FORMAT_2 | {"filters": [{"id": "shuffle", "elementsize": 4}]},
         bytes(Shuffle(4).encode(np.array([7.0, 7, 9, 9]))), None),
        (sharded(), shard(order=(1, 0), checksum=1), "its checksum differs"),
        (sharded(index_location="start"), shard(at_start=True), None),
        (sharded(), shard(), None),
        (sharded() | {"codecs": [TRANSPOSE, *sharded()["codecs"]]}, shard(), "its shards have codecs of their own"),
    ],
    ids=["short", "long", "type", "length", "transposed", "transformers", "delta", "order", "shuffle", "index", "start",
         "end", "outer codec"],
)  # fmt: skip
def test_what_would_be_shown_as_something_else(look, tmp_path, told, value, seen):
    repo = repo_of(tmp_path, a=told)
    if value is not None:
        with repo.begin() as mapping:
            mapping["a/0" if told["zarr_format"] == 2 else "a/c" + "/0" * len(told["shape"])] = value
    page = look(repo, "#/tree/main/a").page
    if seen is None:
        expect(page.locator(".figures")).to_contain_text("Minimum7Maximum9Mean8")
        expect(page.locator(".figures")).to_contain_text("Missing chunksnone")
    else:
        expect(page.locator(".stage .failure")).to_contain_text(seen)


@FILES
@pytest.mark.parametrize("name", ["toString", "constructor", "__proto__"])
def test_a_view_that_every_object_has(look: Callable[..., Any], tmp_path: Path, name: str) -> None:
    page = look(repo_of(tmp_path), f"#/{name}").page
    expect(page.locator(".row").first).to_be_visible()


CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}]


def repo_of(folder: Path, **arrays: dict[str, Any]) -> txstore.Repository:
    repo = txstore.Repository(folder / "hostile.tx")
    with repo.begin() as mapping:
        mapping["zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
        for path, told in arrays.items():
            mapping[f"{path}/{'zarr.json' if told['zarr_format'] == 3 else '.zarray'}"] = json.dumps(told).encode()
    return repo
