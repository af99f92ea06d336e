"""axe-core finds nothing serious on any view, light, dark and narrow; and nothing is wider than the screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import txstore
from tests.serving.browser.conftest import SERVED

pytestmark = [pytest.mark.long, SERVED]

playwright_api = pytest.importorskip("playwright.sync_api")
expect = playwright_api.expect

SCREENS = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 740}, "has_touch": True},
}
#: Where every view is, and what is seen there when it is drawn.
PLACES = {
    "#/history": ".detail .nodes li",
    "#/tree/main/surface": ".members tbody tr",
    "#/tree/main/surface/temperature": ".figures .facts",
    "#/tree/main/stations/pressure": ".figures .facts",
    "#/tree/main/stations/names": ".values td",
    "#/tree/main/satellite/radiance?view=chunks": ".legend li",
    "#/tree/main/surface/temperature?view=details": "td pre",
    "#/diff/v1.0/recalibrated": ".triple figure",
    "#/work": ".notice",
    "#/usage/main": ".members tbody tr",
}


@pytest.mark.parametrize("screen", SCREENS)
def test_axe_finds_nothing_serious(look, weather, axe, screen):
    looking = look(weather, reduced_motion="reduce", **SCREENS[screen])
    found = []
    for place, seen in PLACES.items():
        page = looking.go(place)
        expect(page.locator(seen).first).to_be_visible()
        expect(page.locator(".waiting")).to_have_count(0)
        page.evaluate(axe)
        violations = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        found += [
            (place, each["id"], each["impact"], [node["target"] for node in each["nodes"][:3]])
            for each in violations
            if each["impact"] in ("serious", "critical")
        ]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
        assert page.evaluate("document.querySelector('main').scrollWidth <= innerWidth"), place
    assert found == []


def test_every_control_is_reached_by_tab(look: Callable[..., Any], weather: txstore.Repository) -> None:
    """From the address bar through the page: nothing that can be clicked is left out, and focus is seen."""
    page = look(weather, "#/tree/main/surface/temperature").page
    expect(page.locator(".figures .facts").first).to_be_visible()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        at = page.evaluate("""() => {
          const each = document.activeElement;
          const seen = getComputedStyle(each).outlineStyle !== "none";
          const name = each.getAttribute("aria-label") || each.textContent.slice(0, 30);
          return each === document.body ? null : [name, seen];
        }""")
        if at is None:
            break
        reached.append(at)
    assert all(seen for _, seen in reached), reached
    names = [name for name, _ in reached]
    for wanted in ("To the content", "Compare", "Colours: as the system", "Preview", "Nearer", "time", "Copy: Python"):
        assert wanted in names, names
    assert sum("temperature" in name for name in names) == 1, names  # one of the tree; arrows lead to the others
