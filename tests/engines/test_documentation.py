"""The examples of docs/how-to/engines.md run, from top to bottom, as they stand there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.engines.conftest import ROOT
from tests.tools import blocks


def test_the_examples_run(tmp_path: Path) -> None:
    wanted = blocks.read(ROOT / "docs/how-to/engines.md").wanted
    assert len(wanted) == 4
    body = [f"    {line}" for block in wanted for line in block.code]
    script = tmp_path / "examples.py"  # workers import it: what it does is done by the process that is run
    script.write_text("\n".join(["def main():", *body, "if __name__ == '__main__':", "    main()"]))
    ran = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert ran.returncode == 0, ran.stderr
