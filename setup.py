"""The C extensions, and the types of `txstore.aio`; everything else about the package is said in pyproject.toml.

All extensions are optional: where they can't be built (no compiler, no headers), the package runs on their pure Python
fallbacks.
TXSTORE_WERROR=1 is for whoever works on the C: warnings are errors then, and so is a build that fails.
"""

import os
import runpy
import sys
from glob import glob

from setuptools import Extension, setup

strict = os.environ.get("TXSTORE_WERROR") == "1"


def extension(name: str) -> Extension:
    return Extension(
        f"txstore._native.{name}",
        sources=[f"txstore/_native/{name}.c"],
        depends=sorted(glob("txstore/_native/*.h")),
        extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra", *(["-Werror"] if strict else [])],
        optional=not strict,
    )


EXTENSIONS = ["_chunks", "_index", "_local"]
if sys.platform == "linux":
    EXTENSIONS += ["_locktable"]

# Into the source, so that editable installations and the sdist have it, too.
runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "aio_stub.py"), run_name="__main__")
setup(ext_modules=[extension(name) for name in EXTENSIONS])
