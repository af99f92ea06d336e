"""The examples of docs/how-to/dask.md run, from top to bottom, as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.workers import TIMEOUT

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]


def test_the_examples_run(tmp_path):
    pytest.importorskip("distributed")
    page = (ROOT / "docs/how-to/dask.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    assert len(found) > 5
    lines = "\n".join(found).splitlines()
    script = tmp_path / "examples.py"  # a script's workers import it: what it does is done by the one that is run
    body = [f"    {line}" for line in lines]
    script.write_text("\n".join(["def main():", *body, "if __name__ == '__main__':", "    main()"]))
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert ran.returncode == 0, ran.stderr
