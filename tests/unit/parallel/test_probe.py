"""The probe of the transport before training: over gloo, with a process that is really late; and its arithmetic."""

import re
from pathlib import Path

import pytest
from fleet import Fleet

from tests import patience
from trainyard.parallel import probe
from trainyard.parallel.probe import UNKNOWN, LinkRate

pytestmark = [pytest.mark.takes(40), pytest.mark.ranks(4)]


def pace() -> str:
    """By how much this machine is slow just now, so that a rank that is late stays far later than all others."""
    return str(patience.slowness())


def test_a_late_node_is_named_and_no_other(fleet: Fleet, tmp_path: Path) -> None:
    found = fleet.inside(tmp_path, 4, "probed", "fsdp", "2", pace())
    assert [one["error"] for one in found] == [""] * 4
    assert [one["said"] for one in found[1:]] == [""] * 3
    warning = next(line for line in found[0]["said"].splitlines() if line.startswith("warning:"))
    assert re.findall(r"\(ranks (\d) to", warning) == ["2"], warning
    assert "far slower than the others" in warning
    assert re.search(r"^transport: all-reduce of \d+ MiB over 4 processes: [\d.]+ GB/s on the bus; ", found[0]["said"])
    assert "the slowest" in found[0]["said"]


def test_by_key_it_is_refused_on_all(fleet: Fleet, tmp_path: Path) -> None:
    found = fleet.inside(tmp_path, 3, "probed", "ddp", "1", pace(), **{"comm.probe_least": 0.4})
    for one in found:
        assert re.match(r"201 far slower .*\(ranks 1 to 1\).*comm.probe_least = 0.4 refuses it$", one["error"]), one


def test_one_node_compares_its_processes(fleet: Fleet, tmp_path: Path) -> None:
    found = fleet.inside(tmp_path, 3, "probed", "ddp", "0", pace(), "no")
    assert re.findall(r"process (\d) of", found[0]["said"].partition("warning:")[2]) == ["0"]


def test_two_nodes_are_measured_and_none_is_named(fleet: Fleet, tmp_path: Path) -> None:
    found = fleet.inside(tmp_path, 2, "probed", "ddp", "1", pace(), **{"comm.probe_least": 1.0})
    assert found[0]["error"] == ""
    assert "GB/s each way" in found[0]["said"]
    assert "warning" not in found[0]["said"]


@pytest.mark.parametrize("wanted", ["auto", "never"])
def test_without_gpus_it_is_off_by_default(fleet: Fleet, tmp_path: Path, wanted: str) -> None:
    assert fleet.inside(tmp_path, 2, "probed", "ddp", "9", pace(), **{"comm.probe": wanted})[0]["said"] == ""


@pytest.mark.parametrize("count", range(2, 12))
def test_every_unit_meets_its_neighbours_once_and_one_at_a_time(count: int) -> None:
    found = probe.rounds(count)
    assert len(found) <= 3
    for pairs in found:
        units = [unit for pair in pairs for unit in pair]
        assert len(units) == len(set(units))
    ring = {frozenset((index, (index + 1) % count)) for index in range(count)}
    assert sum(map(len, found)) == len(ring)
    assert {frozenset(pair) for pairs in found for pair in pairs} == ring


def unit(number: int, *ranks: int) -> probe.Unit:
    return probe.Unit(f"node-{number}", ranks or (number,), LinkRate(50.0, "4 RDMA ports"))


@pytest.mark.parametrize("count", range(3, 9))
def test_each_slow_unit_is_named_alone(count: int) -> None:
    units = [unit(number) for number in range(count)]
    for slow in range(count):
        pairs = {pair: 5.0 if slow in pair else 40.0 + sum(pair) for one in probe.rounds(count) for pair in one}
        assert probe.too_slow(units, pairs, 0.5) == [slow]
        assert f"node-{slow}: 5.00 GB/s" in probe.describe_slow(units, pairs, [slow])
        assert probe.too_slow(units, dict.fromkeys(pairs, 40.0), 0.9) == []


def test_gpus_meet_their_counterparts() -> None:
    units = [unit(0, 0, 1, 2), unit(1, 3, 4)]
    assert [probe.counterpart(units, (0, 1), rank) for rank in range(5)] == [3, 4, None, 0, 1]
    assert probe.counterpart([*units, unit(2, 5, 6)], (1, 2), 0) is None


def test_all_of_it_takes_about_as_long_on_any_link() -> None:
    assert probe.size_for(1e-5, "cuda", 8) == probe.MOST["cuda"]
    assert probe.size_for(100.0, "cuda", 8) == probe.FIRST
    slow = probe.size_for(0.1, "cuda", 8)
    assert probe.FIRST < slow < probe.MOST["cuda"]
    assert slow / probe.FIRST * 0.1 * 4 * (probe.REPEATS + 1) <= probe.SECONDS


def test_what_is_said_has_the_link_beside_it() -> None:
    units = [unit(0, 0, 1), unit(1, 2, 3)]
    text = probe.describe_rates(4, 64 << 20, 30.0, units, {(0, 1): 40.0})
    assert text.endswith("the link should do 50 GB/s (4 RDMA ports), this is 80%")
    assert "between nodes 40.00 GB/s" in text
    unknown = [probe.Unit("a", (0,), UNKNOWN), probe.Unit("b", (1,), UNKNOWN)]
    assert "is not known here" in probe.describe_rates(2, 1 << 20, 1.0, unknown, {(0, 1): 1.0})


def test_links_say_what_they_should_do(tmp_path: Path) -> None:
    assert probe.between_nodes(tmp_path) == UNKNOWN
    veth, card, down = (tmp_path / "sys/class/net" / name for name in ("eth0", "ens1", "ens2"))
    for path, speed in ((veth, "10000\n"), (card, "25000\n"), (down, "-1\n")):
        path.mkdir(parents=True)
        (path / "speed").write_text(speed)
    for path in (card, down):
        (path / "device").mkdir()
    assert probe.between_nodes(tmp_path) == LinkRate(3.125, "a network card of 25 Gb/s")
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "4: ACTIVE"), ("mlx5_2", "1: DOWN")):
        port = tmp_path / "sys/class/infiniband" / name / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    assert probe.between_nodes(tmp_path) == LinkRate(100.0, "2 RDMA ports, 800 Gb/s in all")
    assert probe.between_gpus("NVIDIA H100 80GB HBM3").rate == 450
    assert probe.between_gpus("NVIDIA H200").rate == 450
    assert probe.between_gpus("NVIDIA A100-SXM4-80GB").rate == 300
    assert probe.between_gpus("NVIDIA H100 PCIe") == UNKNOWN
