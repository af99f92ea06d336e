"""Opens a repository of 10,000 commits, 1,000 arrays and a million chunks over HTTP, and reads one chunk.

    python -m tests.reader_js.scale [--commits 10000] [--delay 0.03]

Its head cache is one of an object store; that of a directory takes one request more. Each answer comes after a delay.
Prints requests, time and bytes of the reader in JavaScript, in Node and in Chromium: the median of several processes
that have read nothing before. The exit status is 1 on a miss.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import txstore
from tests.reader_js.node import Node, served
from txstore.history.object_head_caches import TAIL

ARRAYS = 1000
ROUNDS = 5
REQUESTS, MILLISECONDS, BYTES = 11, 400, 400_000


def filled(path: Path, commits: int) -> int:
    """Give each array a chunk for ten commits, a hundred keys in a commit; return the length of the chunk to read."""
    repo = txstore.Repository(path, durability="none")
    for number in range(commits):
        with repo.begin(f"{number}") as transaction:
            for each in range(100):
                array = (number * 100 + each) % ARRAYS
                transaction[f"group/{array:04}/c/{number // 10}"] = bytes([number % 256] * 16)
    repo.optimize()
    with repo.begin("last") as transaction:
        transaction["group/0000/c/0"] = b"last"
    head = repo.engine.commits.head("main")
    with open(path / "heads/main", "ab") as file:  # as on an object store
        file.write((path / head.path).read_bytes()[-TAIL:])
    return len(repo.mapping()["group/0500/c/7"])


Sample = tuple[float, float, float]  # requests, milliseconds, bytes


def in_node(base: str, key: str, expected: int) -> Sample:
    node = Node()
    length, _ = node.ask("get", f"{base}/data.tx", at="main", key=key)
    assert length == expected
    node.end()
    return node.requests["count"], node.milliseconds, node.requests["bytes"]


_IN_CHROMIUM = """async ([url, key]) => {
  const { openRepository } = await import("/reader/index.js");
  const told = { count: 0, bytes: 0 };
  const counted = async (input, init) => {
    told.count += 1;
    const response = await fetch(input, init);
    told.bytes += Number(response.headers.get("Content-Length"));
    return response;
  };
  const begun = performance.now();
  const repo = await openRepository(url, { fetch: counted });
  const value = await (await repo.at("main")).get(key);
  return [told.count, performance.now() - begun, told.bytes, value.length];
}"""


def in_chromium(browser: Any) -> Callable[[str, str, int], Sample]:
    def sample(base: str, key: str, expected: int) -> Sample:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{base}/index.html")
        requests, milliseconds, size, length = page.evaluate(_IN_CHROMIUM, [f"{base}/data.tx", key])
        assert length == expected
        context.close()
        return requests, milliseconds, size

    return sample


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--delay", type=float, default=0.03, help="seconds before each answer")
    given = parser.parse_args(arguments)
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        raise SystemExit("Chromium is missing: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    key = "group/0500/c/7"
    with tempfile.TemporaryDirectory(dir=".") as name, sync_playwright() as playwright:
        folder = Path(name)
        expected = filled(folder / "data.tx", given.commits)
        shutil.copytree(Path(txstore.__file__).with_name("reader_js"), folder / "reader")
        (folder / "index.html").write_text("<!doctype html><title>scale</title>")
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        with served(folder, delay=given.delay) as base:
            samples = {
                place: [sample(base, key, expected) for _ in range(ROUNDS)]
                for place, sample in {"Node": in_node, "Chromium": in_chromium(browser)}.items()
            }
        browser.close()
    print(
        f"{given.commits:,} commits, {given.commits * 100:,} chunks, {given.delay * 1e3:.0f} ms a request: open at main"
    )
    print("and read one chunk")
    is_met = True
    for place, found in samples.items():
        requests, milliseconds, size = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{place + ':':<17} {requests:.0f} requests, {milliseconds:.0f} ms, {size / 1e3:.0f} KB")
        is_met &= requests <= REQUESTS and milliseconds <= MILLISECONDS and size <= BYTES
    print(f"must be at most:  {REQUESTS} requests, {MILLISECONDS} ms, {BYTES / 1e3:.0f} KB")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
