"""What a repository says is never taken for more than text, and the page asks nobody but its server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

import txstore
from tests.serving.browser import sample
from tests.serving.browser.conftest import SERVED
from tests.tools.forged_headers import forge_header
from txstore.cli.serve import redirecting_to
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
def test_lengths_that_no_array_has(
    look: Callable[..., Any], tmp_path: Path, shape: list[int], chunks: list[Any], seen: str
) -> None:
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
        mapping["close/c/0"] = np.array([0.3, np.nextafter(0.3, 1)], "<f8").tobytes()
    looking = look(repo)
    for path, seen in {
        "a": ".status[data-shows=all]",
        "digits": ".failure",
        "close": ".status[data-shows=all]",
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


CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}]


def grid(lengths: list[Any]) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": lengths}}


def document(**members: Any) -> dict[str, Any]:
    return {
        "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": grid([4]), "attributes": {}, "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "bytes"}],
    } | members  # fmt: skip


def repo_of(folder: Path, **arrays: dict[str, Any]) -> txstore.Repository:
    repo = txstore.Repository(folder / "hostile.tx")
    with repo.begin() as mapping:
        mapping["zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
        for path, told in arrays.items():
            mapping[f"{path}/zarr.json"] = json.dumps(told).encode()
    return repo
