"""Who takes part."""

from __future__ import annotations

from benchmarks.peers.array_peers import ARRAY_PEERS
from benchmarks.peers.peer import Peer
from benchmarks.peers.remote_peers import REMOTE_PEERS
from benchmarks.peers.zarr_peers import ZARR_PEERS

PEERS: dict[str, type[Peer]] = {peer.name: peer for peer in [*ZARR_PEERS, *ARRAY_PEERS]}
REMOTE: dict[str, type[Peer]] = {peer.name: peer for peer in REMOTE_PEERS}
