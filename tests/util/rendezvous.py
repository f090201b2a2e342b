"""Nodes of one machine that meet in torch's rendezvous, and a model whose run is the same on any number of them."""

import math
from pathlib import Path
from typing import Any

from conftest import hold
from torch.distributed.elastic.rendezvous import RendezvousParameters, registry

from tests import patience

ELASTIC: dict[str, Any] = {"model.name": "little_models:groups", "epochs": 4}  # in fp64: equal on any world to rounding


def rendezvous(host: bool, missed: int = 8) -> str:
    """Settings of torch's rendezvous that are quick to notice that a node is gone, and as slow as this machine.

    So many signs of life may be missed: on a busy machine one that lives would be taken for lost by torch's three. Who
    waits for a lost node waits for less than the time after which a test takes it for one that hangs.
    """
    pace = min(8, max(2, math.ceil(patience.slowness())))
    return f"is_host={host},last_call_timeout={4 * pace},keep_alive_interval={pace},keep_alive_max_attempt={missed}"


def node(name: str, endpoint: str, places: Path) -> dict[str, str]:
    """Environment of one of two nodes, of which one is enough; none trains alone, nor both past 8 steps, until told."""
    return {
        "PET_NNODES": "1:2", "PET_NPROC_PER_NODE": "1", "PET_MAX_RESTARTS": "3", "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": endpoint, "PET_RDZV_ID": "elastic", "PET_LOCAL_ADDR": "127.0.0.1",
        "PET_RDZV_CONF": rendezvous(name == "first"), **hold(places, "0-of-1", "8-of-2"),
        "TRAINYARD_JOB": "elastic", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip


def handler(endpoint: str, run: str, nodes: int = 1, address: str = "127.0.0.1", **conf: str) -> Any:
    """Return torch's handler of the rendezvous of so many nodes, for the node of this address."""
    return registry.get_rendezvous_handler(RendezvousParameters("c10d", endpoint, run, nodes, nodes, address, **conf))
