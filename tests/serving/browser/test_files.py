"""The files of the page: few bytes, nothing from another host, nothing that takes text for HTML."""

import re
from pathlib import Path

import txstore

PAGE = Path(txstore.__file__).parent / "serving" / "page"
READER = Path(txstore.__file__).with_name("reader_js")
CODE = [path for path in PAGE.rglob("*") if path.suffix in {".html", ".js", ".css", ".svg"}]
#: What the code of the page may have altogether.
MOST_BYTES = 250_000


def test_the_code_is_small_and_whole() -> None:
    sizes = {path.name: path.stat().st_size for path in CODE}
    assert sum(sizes.values()) <= MOST_BYTES, sizes
    assert (PAGE / "vendor" / "LICENSE").read_text().count("MIT License") >= 2


def test_nothing_is_taken_from_elsewhere_and_nothing_is_set_as_html() -> None:
    own = {path: path.read_text(encoding="utf-8") for path in CODE if path.parent.name != "vendor"}
    for path, text in own.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )
        assert not re.search(r"""(?:src|href|from|import\()\s*=?\s*["'(]\s*(?:https?:)?//""", text), path
        if path.suffix == ".css":
            assert "url(" not in text
    html = own[PAGE / "index.html"]
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|<style|\sstyle=", html)


def test_every_module_that_is_named_is_there() -> None:
    for path in CODE:
        if path.suffix == ".js":
            for name in re.findall(r"""(?:from|import\()\s*["'](\.[^"']+)["']""", path.read_text(encoding="utf-8")):
                place = (path.parent / name).resolve()
                if place.parent == PAGE / "reader":  # `txstore page` puts it there
                    place = READER / place.name
                assert place.is_file(), (path.name, name)
