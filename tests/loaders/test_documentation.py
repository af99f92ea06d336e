"""The examples of docs/how-to/training.md run, top to bottom; those that need a framework where it is installed."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.workers import TIMEOUT

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="an example forks")
@pytest.mark.parametrize("framework", [None, "torch", "tensorflow"])
def test_the_examples_run(tmp_path, framework):
    if framework is not None and importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    page = (ROOT / "docs/how-to/training.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    wanted = [code for code in found if "# needs " not in code or f"# needs {framework}\n" in code]
    assert len(wanted) >= 4 + (framework is not None)
    code = "\n".join(wanted).replace("/shared/group", str(tmp_path / "group"))
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=TIMEOUT,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
