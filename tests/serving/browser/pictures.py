"""The pictures of the page in the documents: `make bench WHAT=pictures`. Whoever changes the page looks at them."""

import argparse
import shutil
import sys
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import expect, sync_playwright

from tests.serving.browser import sample
from tests.serving.browser.conftest import CHROMIUM, PATIENCE, ROOT
from tests.serving.browser.staging import staging
from txstore.serving.entrance import listen
from txstore.serving.server import Server

WIDE = {"viewport": {"width": 1280, "height": 800}}
NARROW = {"viewport": {"width": 390, "height": 800}, "device_scale_factor": 1.5}
DARK = {"color_scheme": "dark"}
COLORS = 256
#: Where each is taken, what has to be seen by then, and on which screen.
PICTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "history": ("#/history", ".nodes li", WIDE),
    "preview": ("#/tree/main/surface/temperature?sel=6,0:181,0:360", ".figures .facts", WIDE),
    "chunks": ("#/tree/main/surface/moisture?view=chunks", ".legend li", WIDE | DARK),
    "compare": ("#/diff/v1.0/recalibrated", ".triple figure", WIDE),
    "work": ("#/work", ".work article tbody tr", WIDE | DARK),
    "narrow": ("#/tree/main/satellite/radiance", ".figures .facts", NARROW),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, default=Path("/tmp/data/weather.tx"), help="it is seen")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "images")
    given = parser.parse_args()
    shutil.rmtree(given.repository, ignore_errors=True)
    repo = sample.make(given.repository)
    server = Server(repo, listen(has_token=False))
    server.start()
    expect.set_options(timeout=PATIENCE)
    with ExitStack() as stack:
        stack.callback(server.close)
        for i in (1, 2):
            lock = ["satellite/radiance", "surface/relief"][i - 1]
            stack.enter_context(staging(repo.url, "ten-years", f"surface/wind-{i}", lock))
        chromium = stack.enter_context(sync_playwright()).chromium
        browser = chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM)
        for name, (place, seen, screen) in PICTURES.items():
            page = browser.new_context(**screen, reduced_motion="reduce").new_page()
            page.goto(server.address + place)
            expect(page.locator(seen).first).to_be_visible()
            expect(page.locator(".live.on")).to_be_visible()
            expect(page.locator(".waiting")).to_have_count(0)
            taken = Image.open(BytesIO(page.screenshot())).convert("RGB")
            taken.quantize(COLORS, Image.Quantize.MAXCOVERAGE).save(
                given.into / f"page-{name}.png", optimize=True
            )  # a third of the bytes
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
