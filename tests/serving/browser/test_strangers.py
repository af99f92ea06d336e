"""What a page does with what does not fit: another's repository, many names, odd siblings, parts that do not load."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serving.browser.conftest import FILES
from tests.serving.browser.test_safety import document, repo_of
from tests.tools.waiting import wait_until

expect = pytest.importorskip("playwright.sync_api").expect

Look = Callable[..., Any]


def test_a_page_that_was_made_for_one_repository_shows_no_other(look: Look, tmp_path: Path) -> None:
    repo = repo_of(tmp_path, own=document())
    looking = look(repo, "?repository=http://127.0.0.2:9/other.tx#/tree/main/")
    expect(looking.page.locator("#main .failure")).to_contain_text("shows no other one")
    page = looking.go("#/tree/main/")
    expect(page.locator("#host")).to_have_text(looking.address.split("/")[2])
    expect(page.get_by_role("treeitem", name="own")).to_be_visible()


@FILES
def test_of_many_names_few_are_read(look: Look, tmp_path: Path) -> None:
    """Each takes requests. The newest, which come last, are read; all may be chosen."""
    repo = repo_of(tmp_path, a=document())
    for number in range(120):
        repo.tags[f"v{number:03}"] = repo.head()
        repo.branches[f"b{number:03}"] = repo.head()
    looking = look(repo, "")
    expect(looking.page.locator(".row .chip", has_text="v119")).to_be_visible()
    asked: list[str] = []
    looking.page.on("request", lambda request: asked.append(request.url))
    page = looking.go("#/usage/main")
    expect(page.locator(".members tbody tr").first).to_be_visible()
    assert sum("/tags/" in each for each in asked) in range(10, 60)
    assert sum("/branches/" in each for each in asked) in range(10, 60)
    page.get_by_label("At").select_option("b003")
    expect(page.locator(".members tbody tr").first).to_be_visible()
    assert page.url.endswith("#/usage/b003")
    page.get_by_label("At").select_option("v003")
    expect(page.locator(".members tbody tr").first).to_be_visible()


@FILES
def test_a_tag_or_a_branch_that_cannot_be_read_hides_no_other(look: Look, tmp_path: Path) -> None:
    repo = repo_of(tmp_path, a=document())
    repo.tags["bad"] = repo.tags["good"] = repo.head()
    repo.branches["odd"] = repo.branches["even"] = repo.head()
    for name in ("tags/bad", "branches/odd"):
        (Path(repo.url) / name).write_bytes(b"damaged")
    looking = look(repo, "")
    row = looking.page.locator(".row[role=option]").first
    expect(row.locator(".chip")).to_have_text(["main", "even", "good"])
    expect(looking.go("#/tree/bad/").locator(".failure")).to_contain_text("tags/bad")


def test_one_odd_document_hides_none_of_its_siblings(look: Look, tmp_path: Path) -> None:
    repo = repo_of(tmp_path, a=document(), b=document(), bad=document())
    with repo.begin() as mapping:
        mapping["bad/zarr.json"] = json.dumps(document(attributes={"long": "x" * 999})).encode()
        mapping["far/zarr.json"] = b" " * (17 << 20)
    path = Path(repo.url) / "commits" / "main" / f"{repo.head().version:010}"
    path.write_bytes(path.read_bytes().replace(b"x" * 999, b"y" * 999))
    looking = look(repo, "#/tree/main/")
    rows = looking.page.locator(".members tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(2)).to_contain_text("wrong checksum")
    expect(rows.nth(3)).to_contain_text("Its document has 17 MiB, and this page reads at most 16 MiB")
    expect(looking.page.get_by_role("treeitem")).to_have_count(5)
    expect(looking.go("#/tree/main/bad").locator(".node .failure")).to_contain_text("wrong checksum")
    expect(looking.go("#/usage/main").locator(".members tbody tr")).to_have_count(5)
    changed = looking.go("#/diff").locator(".diff summary")
    expect(changed).to_have_count(2)
    expect(changed.first).to_contain_text("bad")
    changed.first.click()
    expect(looking.page.locator(".diff tr", has_text="can't be read")).to_contain_text("wrong checksum")


@pytest.mark.parametrize(
    ("part", "seen"),
    [
        ("parts.js", "A part of this page could not be loaded"),
        ("main.js", "A part of this page could not be loaded"),
        ("tree.js", "Failed to fetch"),
        ("answers/worker.js", "could not be started"),
    ],
)
@FILES
def test_a_module_that_does_not_load_is_told(look: Look, tmp_path: Path, part: str, seen: str) -> None:
    looking = look(repo_of(tmp_path, a=document()))
    expect(looking.page.locator(".row[role=option]").first).to_be_visible()
    looking.page.route(f"**/page/{part}", lambda route: route.abort())
    page = looking.go("#/tree/main/")
    expect(page.locator("main")).to_contain_text(seen)
    looking.faults.clear()


@FILES
def test_a_commit_before_a_branch_by_its_name(look: Look, tmp_path: Path) -> None:
    repo = repo_of(tmp_path, a=document())
    for name in ("b", "c"):
        with repo.begin(name) as mapping:
            mapping[f"{name}/zarr.json"] = json.dumps(document()).encode()
    looking = look(repo)
    for ref, many in {"main": 4, "main~": 3, "main~1": 3, "main~2": 2}.items():
        expect(looking.go(f"#/tree/{ref}/").get_by_role("treeitem")).to_have_count(many)
    expect(looking.go("#/tree/main~9/").locator(".failure")).to_contain_text("Not here.")
    expect(looking.go("#/diff/main~2/main~1").locator(".diff summary")).to_contain_text("b")


@FILES
@pytest.mark.parametrize("leaves", [True, False])
def test_a_worker_that_never_answers_is_ended(look: Look, tmp_path: Path, leaves: bool) -> None:
    looking = look(repo_of(tmp_path, a=document()), "#/tree/main/")
    page = looking.page
    expect(page.get_by_role("treeitem", name="a")).to_be_visible()
    (stuck,) = page.workers
    stuck.evaluate("() => void setTimeout(() => { for (;;); })")
    page.get_by_role("treeitem", name="a").click()
    if leaves:
        page.get_by_role("link", name="History").click()
        expect(page.locator(".row[role=option]").first).to_be_visible()
    else:
        expect(page.locator(".node .failure")).to_contain_text("It takes more than 10 s")
    page.get_by_role("link", name="Usage").click()
    expect(page.locator(".members tbody tr").first).to_be_visible()
    wait_until(lambda: page.evaluate("1") == len(page.workers))


@FILES
def test_what_lies_below_an_array_that_became_a_group(look: Look, tmp_path: Path) -> None:
    repo = repo_of(tmp_path, a=document())
    with repo.begin() as mapping:
        mapping["a/c/0"] = bytes(4)
    with repo.begin() as mapping:
        mapping.delete_dir("a")
        mapping["a/zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
        mapping["a/b/zarr.json"] = json.dumps(document()).encode()
        mapping["a/b/c/0"] = bytes(4)
    told = look(repo, "#/diff").page.locator(".diff summary :is(.badge, .strong)")
    expect(told).to_have_text(["removed", "a", "added", "a", "added", "a/b"])


@FILES
def test_a_parent_that_is_no_longer_kept(look: Look, tmp_path: Path) -> None:
    """Its file is there, since values in it are read, and that of one of its runs is gone."""
    repo = repo_of(tmp_path, a=document())
    for name in ("a", "b", "c"):
        with repo.begin(name) as mapping:
            mapping["a/zarr.json"] = json.dumps(document(attributes={"by": name})).encode()
            mapping[f"{name}/zarr.json"] = json.dumps(document()).encode()
    repo.vacuum(keep=1)
    oldest = repo.log()[-1]
    detail = look(repo, f"#/history/{oldest.id}").page.locator(".detail")
    expect(detail).to_contain_text("its parent is not kept")
