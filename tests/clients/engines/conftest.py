"""What workers need that an engine starts by a command: the path of the jobs, and the programs of this environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["PYTHONPATH"] = str(Path(__file__).parents[3])
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
