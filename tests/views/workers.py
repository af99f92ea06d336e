"""What other processes do to images with views."""

import os
import pickle
import signal
from typing import Any

import numpy as np
import zarr

import txstore
from tests.views.images import put
from txstore.deriving.derivation import Derivation


def die_while_deriving(url: str, chunks: int) -> None:
    """Commit, and be killed after so many chunks of outputs."""
    run, left = Derivation._chunk, [chunks]

    def counted(self: Derivation, *arguments: Any) -> Any:
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return run(self, *arguments)

    Derivation._chunk = counted  # type: ignore[method-assign]
    with txstore.Repository(url).transaction("killed") as store:
        put(np.s_[:], 5)(store)


def write_part(store: bytes, row: int) -> None:
    with pickle.loads(store) as participant:
        zarr.open_array(participant, path="image/0")[row] = row
