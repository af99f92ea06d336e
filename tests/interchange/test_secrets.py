"""What bridges raise shows no credentials: not in words, arguments, notes or pickles, nor in what it was made of."""

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import txstore
from tests.cli.test_hostile import KEY, SECRET, WITH_SECRETS, no_secret_in, quick  # noqa: F401 - a fixture
from txstore.errors import SourceError
from txstore.interchange.concealing import concealed
from txstore.interchange.manifests import is_manifest
from txstore.serving.files import put_page
from txstore.storage.foreign_values import canonical
from txstore.storage.objects.errors import Secrets

OPTIONS = {"secret": SECRET, "token": {"deep": [KEY]}}


@pytest.fixture
def filled(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction() as store:
        zarr.open_group(store).create_array("x", data=np.arange(4), chunks=(2,))
    repo.tags["v1"] = 0
    return repo


def all_of(error: BaseException) -> Iterator[str]:
    """Everything that can be got from an exception."""
    waiting, seen = [error], []
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.append(each)
        yield from (str(each), repr(each), repr(each.args), repr(vars(each)))
        yield f"{getattr(each, 'filename', '')} {getattr(each, 'strerror', '')}"
        yield from getattr(each, "__notes__", ())
        waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
    yield "".join(traceback.format_exception(error))
    yield repr(pickle.dumps(error))
    yield str(pickle.loads(pickle.dumps(error)))


def check(error: BaseException | None, name: str = "") -> None:
    # Some file systems say of a place that they can't reach that nothing is there, and so it is no manifest.
    assert error is not None or name == "look whether it is a manifest"
    for text in () if error is None else all_of(error):
        no_secret_in(text)


def raised_by(bridge: Callable[[], object]) -> Exception | None:
    try:
        bridge()
    except Exception as error:  # noqa: BLE001 - of any kind
        return error
    return None


def bridges(repo: txstore.Repository, url: str, **options: Any) -> dict[str, Callable[[], object]]:
    manifest = {"version": 1, "refs": {".zgroup": "{}", "x/0": [url, 0, 1]}}
    template = {"version": 1, "templates": {"u": "{{f(1)}}" + url}, "refs": {".zgroup": "{}", "x/0": ["{{u}}", 0, 1]}}
    return {
        "import": lambda: repo.import_from(url, "new", **options),
        "import several": lambda: repo.import_from([url, url], "new", concat=0, **options),
        "import a pattern": lambda: repo.import_from(url + "/*.nc", "new", **options),
        "import as HDF5": lambda: repo.import_from(url, "new", format="hdf5", **options),
        "import references": lambda: repo.import_references(url, "new", **options),
        "import references to it": lambda: repo.import_references(manifest, "new"),
        "a template": lambda: repo.import_references(template, "new"),
        "look whether it is a manifest": lambda: is_manifest(url, options.get("storage_options")),
        "export": lambda: repo.export(url, **options),
        "page": lambda: put_page(url, options=options.get("storage_options")),
        "sources": lambda: txstore.Repository(repo.url, sources=[url]).import_references(manifest, "new"),
        "publish": lambda: repo.publish(url, **options),
        "follow": lambda: repo.publish(url, follow=True, timeout=0, **options),
        "references as JSON": lambda: repo.references(url + ".json", tag="v1", **options),
        "references as Parquet": lambda: repo.references(url + ".parquet", tag="v1", **options),
        "open": lambda: txstore.Repository(url, create=False, **options).snapshot(),
        "txstore::": lambda: fsspec.filesystem("txstore", fo=url, **options.get("storage_options", {})),
    }


@pytest.mark.parametrize("url", WITH_SECRETS)
@pytest.mark.usefixtures("quick")
def test_no_bridge_shows_what_a_url_holds(filled, url, caplog):
    caplog.set_level(logging.DEBUG, logger="txstore")
    for name, bridge in bridges(filled, url).items():
        if "s3:" in url and name not in ("import references to it", "a template"):
            continue  # it would ask Amazon
        check(raised_by(bridge), name)
    no_secret_in(caplog.text)
    assert len(list(filled.log())) == 1


@pytest.mark.parametrize("scheme", ["http", "ftp", "sftp", "smb", "nosuch"])
@pytest.mark.usefixtures("quick")
def test_no_bridge_shows_what_options_hold(filled: txstore.Repository, scheme: str) -> None:
    options = {"client_kwargs": {"headers": {"X-Key": SECRET}}} if scheme == "http" else dict(OPTIONS)
    url = f"{scheme}://127.0.0.1:1/share/data.tx"
    for name, bridge in bridges(filled, url, storage_options=options).items():
        check(raised_by(bridge), name)


def test_xarray(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    for url in WITH_SECRETS:
        if "s3:" not in url:
            with pytest.raises(Exception) as caught:
                xarray.open_dataset(url, engine="txstore", storage_options=dict(OPTIONS))
            check(caught.value)


def raising(error: BaseException, *, cause: BaseException | None = None, note: str = "") -> Callable[[], None]:
    def work() -> None:
        if note:
            error.add_note(note)
        try:
            raise KeyError(SECRET) if cause is None else cause
        except BaseException as inner:
            raise error from inner

    return work


class OddError(Exception):
    def __init__(self, one: object, other: object) -> None:
        super().__init__(one)
        self.other = other


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"no {SECRET}"),
        OSError(5, f"no {KEY}:{SECRET}@bucket", f"s3://{KEY}:{SECRET}@bucket/x"),
        FileNotFoundError(f"{KEY}:{SECRET}@bucket"),
        SourceError(f"s3://{KEY}:{SECRET}@bucket/x", f"it is not there {SECRET}"),
        ModuleNotFoundError(f"no module {SECRET}"),
        OddError("well", {"kept": [SECRET]}),
        KeyError("innocent, but for its context"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("note", ["", f"try {SECRET}"])
def test_whatever_a_library_raises(error: Exception, note: str) -> None:
    url = f"s3://{KEY}:{SECRET}@bucket/x"
    with pytest.raises(Exception) as caught:
        concealed(raising(error, note=note), [url], {})
    check(caught.value)
    for kind in (SourceError, FileNotFoundError, OSError, ValueError, ModuleNotFoundError):
        if isinstance(error, kind):
            assert isinstance(caught.value, kind)
            break


def test_what_shows_nothing_is_left_as_it_is() -> None:
    error = OddError("well", 1)
    with pytest.raises(OddError) as caught:
        concealed(raising(error, cause=KeyError("x")), [f"s3://{KEY}:{SECRET}@bucket/x"], OPTIONS)
    assert caught.value is error
    assert isinstance(error.__cause__, KeyError)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"s3://{KEY}:{SECRET}@bucket/x", f"at {KEY}, with {SECRET}, s3cr3t%2FVal%2Bue, {KEY}:{SECRET}@bucket"),
        ("sftp://ana:pass%20word@host/x", "pass word and pass%20word"),
        ("https://host/x?sig=abcdefgh&other=1", "abcdefgh"),
        ("simplecache::s3://aa:bbbb@bucket", "aa:bbbb"),
    ],
)
def test_what_a_url_holds(url: str, shown: str) -> None:
    hidden = Secrets({}, (url,)).hide(shown)
    for part in (KEY, SECRET, "s3cr3t", "pass", "abcdefgh", "bbbb"):
        assert part not in hidden


def test_names_are_no_secrets() -> None:
    assert Secrets({}, ("sftp://ana:secret@host/x", "s3://bucket/a:b@c")).hide("ana at host, b@c") == "ana at host, b@c"
    with pytest.raises(SourceError):
        canonical("s3://bucket:x/a@c")
