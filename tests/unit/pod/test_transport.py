"""RDMA that was requested and does not work: the kernel's files, laid out under a folder."""

import pytest

from tests import patience
from trainyard.core.exits import Exit, ExitError
from trainyard.pod import transport

RDMA = {"TRAINYARD_TRANSPORT": "rdma"}
CAPABLE = "Name:\tpython\nCapEff:\t0000000000004000\n"
# As NCCL 2.x prints it with NCCL_DEBUG=INFO: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
ON_TCP = """node-1:57:82 [0] NCCL INFO NET/IB : No device found.
node-1:57:82 [0] NCCL INFO NET/Socket : Using [0]eth0:10.1.2.3<0>
node-1:57:82 [0] NCCL INFO Using network Socket
"""
ON_IB = """node-1:57:82 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.1.2.3<0>
node-1:57:82 [0] NCCL INFO Using network IB
"""


def machine(tmp_path, ports: dict[str, str], status: str = CAPABLE):
    for name, state in ports.items():
        device, port = name.split("/")
        folder = tmp_path / "sys/class/infiniband" / device / "ports" / port
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(status)
    return tmp_path


def test_active_devices_are_named(tmp_path, capsys):
    transport.check(RDMA, machine(tmp_path, {"mlx5_0/1": "4: ACTIVE", "mlx5_1/1": "1: DOWN"}))
    assert "RDMA: mlx5_0/1" in capsys.readouterr().out


def test_nothing_is_asked_of_a_pod_without_rdma(tmp_path):
    transport.check({}, tmp_path)


@pytest.mark.parametrize(
    ("ports", "environ", "words"),
    [
        ({}, {}, "no RDMA device is in this pod.*device plugin"),
        ({"mlx5_0/1": "1: DOWN"}, {}, r"no port .* is active \(mlx5_0/1 1: DOWN\)"),
        ({"mlx5_0/1": "4: ACTIVE"}, {"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE=1 turns RDMA off"),
        ({"mlx5_0/1": "4: ACTIVE"}, {"NCCL_NET": "Socket"}, "NCCL_NET=Socket turns RDMA off"),
    ],
)
def test_rdma_that_would_fall_back_ends_with_the_cause(tmp_path, ports, environ, words):
    with pytest.raises(ExitError, match=words) as caught:
        transport.check(RDMA | environ, machine(tmp_path, ports))
    assert caught.value.code == Exit.CONFIG
    assert "\n" not in str(caught.value)


def test_memory_must_be_lockable():
    assert transport.may_lock(8 << 20, CAPABLE)
    assert transport.may_lock(transport.resource.RLIM_INFINITY, "")
    assert not transport.may_lock(8 << 20, "CapEff:\t0000000000000000\n")


def test_ncc_on_tcp_is_told_from_its_log():
    assert transport.fell_back(ON_TCP)
    assert not transport.fell_back(ON_IB)


def test_a_fallback_is_said_while_it_trains(tmp_path, capsys):
    environ = dict(RDMA)
    thread = transport.watch(environ, tmp_path, every=0.05)
    assert environ["NCCL_DEBUG"] == "INFO"
    assert environ["NCCL_DEBUG_FILE"].startswith(str(tmp_path))
    (tmp_path / "nccl.node-1.57.log").write_text(ON_TCP)
    thread.join(patience.IDLE)
    assert "RDMA was asked for, and NCCL uses TCP" in capsys.readouterr().err
    assert transport.watch({}, tmp_path) is None
