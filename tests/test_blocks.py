"""Every block of every page runs, top to bottom, in an empty directory; or the page says why it does not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import blocks

pytestmark = pytest.mark.long

ROOT = blocks.ROOT
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
#: Pages whose blocks are run by a test of their own, which looks at what came of them, too.
ELSEWHERE = {
    "docs/how-to/dask.md": "tests/system/dask/test_documentation.py",
    "docs/how-to/import.md": "tests/interchange/test_docs.py",
    "docs/how-to/publishing.md": "tests/interchange/test_docs.py",
    "docs/how-to/training.md": "tests/loaders/test_documentation.py",
    "docs/how-to/virtual.md": "tests/interchange/test_docs.py",
    "docs/how-to/xarray.md": "tests/interchange/test_xarray.py",
}
#: For reading: pictures, layouts, what is printed.
READ = {"text", "json", "bash", "c", "js"}


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_block_has_a_language_and_is_run_or_says_why(page: Path) -> None:
    for block in blocks.read(page).blocks:
        directive = block.language.startswith("{") and not block.language.startswith("{code-cell}")
        assert block.language in blocks.RUN | READ or directive, f"line {block.line}: {block.language!r}"
        if block.language == "bash":
            assert block.left_out, f"line {block.line}: commands are of `console`, or say why they are not run"


@pytest.mark.parametrize("page", [page for page in PAGES if named(page) not in ELSEWHERE], ids=named)
def test_the_blocks_run(page: Path, tmp_path: Path) -> None:
    found = blocks.read(page)
    if not found.wanted:
        pytest.skip("nothing to run")
    for module in found.needs:
        pytest.importorskip(module)
    environment = blocks.environment(dict(os.environ), tmp_path / "home")
    work = tmp_path / "work"
    work.mkdir()
    script = tmp_path / f"{page.stem}.py"  # lines are those of the page
    script.write_text(found.script(), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, script], cwd=work, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, f"{named(page)}:\n{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}"


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_the_tests_of_other_pages_read_them(page: str, test: str) -> None:
    assert (ROOT / page).exists()
    assert re.search(rf"\b{Path(page).name}\b", (ROOT / test).read_text(encoding="utf-8"))
