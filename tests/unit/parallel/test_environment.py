"""What launchers put into the environment."""

import pytest

from trainyard.core.exits import UserError
from trainyard.parallel.environment import Place, under_mpi, under_torchrun

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}
OPENMPI = {f"OMPI_COMM_WORLD_{key}": value for key, value in
           {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}.items()}  # fmt: skip


def test_environment_is_read_whole_or_refused() -> None:
    place = Place(3, 4, 1, 2)
    assert under_torchrun(TORCHRUN) == place
    assert under_mpi(OPENMPI) == place
    assert under_torchrun({}) == under_mpi({}) == Place()
    for name in TORCHRUN:
        with pytest.raises(UserError, match=f"half set: .* but not {name}"):
            under_torchrun({key: value for key, value in TORCHRUN.items() if key != name})
    for wrong, said in [({"RANK": "4"}, "contradicts itself"), ({"WORLD_SIZE": "x"}, "holds no numbers")]:
        with pytest.raises(UserError, match=said):
            under_torchrun({**TORCHRUN, **wrong})
