"""Fixtures that every test shares. Each repository that a test used is verified when the test ends."""

import os
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import zarr
import zarr.core.codec_pipeline

import txstore
from tests.tools.far_away import far, requests  # noqa: F401 - fixtures
from tests.tools.faults import before  # noqa: F401 - a fixture

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # the shell has started us in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def open_repo(tmp_path: Path) -> Iterator[Callable[..., txstore.Repository]]:
    """Open repositories below the test's folder, by name; what exists of them at the end must verify."""
    opened: list[txstore.Repository] = []

    def open_repo(name: str = "data.tx", **options: object) -> txstore.Repository:
        repo = txstore.Repository(tmp_path / name, **options)  # type: ignore[arg-type]
        opened.append(repo)
        return repo

    yield open_repo
    for repo in opened:
        if repo.exists:
            assert repo.verify().faults == []


@pytest.fixture
def repo(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    """A repository that does not exist yet; verified when the test ends."""
    return open_repo()


PIPELINES = [name for name in ("Batched", "Fused") if hasattr(zarr.core.codec_pipeline, f"{name}CodecPipeline")]


@pytest.fixture(params=PIPELINES)
def pipeline(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each of zarr's codec pipelines; the fused one, of zarr 3.2 and later, uses the store from threads."""
    with zarr.config.set({"codec_pipeline.path": f"zarr.core.codec_pipeline.{request.param}CodecPipeline"}):
        yield request.param


#: Of the long tests, TXSTORE_LONG_SHARE=2 runs one half, =3 a third, and so on; of the others, TXSTORE_SHARE does.
#: TXSTORE_LONG_SEED draws which ones. Those of ALWAYS run in any share.
ALWAYS = ("tests/test_blocks.py",)
LONG_SHARE, SHARE = (int(os.environ.get(name, "1")) for name in ("TXSTORE_LONG_SHARE", "TXSTORE_SHARE"))
SEED = os.environ.get("TXSTORE_LONG_SEED", "")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, left = [], []
    for item in items:
        share = LONG_SHARE if item.get_closest_marker("long") is not None else SHARE
        is_drawn = zlib.crc32((SEED + item.nodeid).encode()) % share == 0 or item.nodeid.startswith(ALWAYS)
        (kept if is_drawn else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
