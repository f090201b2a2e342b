"""Energy from counters: over their wrap, over starts, over processes, and unknown where any of them cannot be read."""

import json
import math
from pathlib import Path

import pytest
import torch
from conftest import Trainer, events

from tests import patience
from trainyard.run.card import _energy
from trainyard.telemetry import energy
from trainyard.telemetry.stragglers import pack, unpack

CPU = torch.device("cpu")
RANGE = 262_143.328850  # joules, of a package's 32-bit counter


def zone(root: Path, name: str, joules: float, label: str = "package-0") -> Path:
    """A zone as Linux shows it."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(f"{label}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE * 1e6:.0f}\n")
    (folder / "energy_uj").write_text(f"{joules * 1e6:.0f}\n")
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "powercap")
    return tmp_path / "powercap"


def test_packages_are_summed_over_their_wrap_and_their_parts_are_not(root: Path) -> None:
    zone(root, "intel-rapl:0", 100.0)
    zone(root, "intel-rapl:1", RANGE - 10, "package-1")
    zone(root, "intel-rapl:0:0", 50.0, "core")
    meter = energy.meter(CPU, first_on_node=True)
    zone(root, "intel-rapl:0", 130.0)
    zone(root, "intel-rapl:1", 20.0, "package-1")  # begun again
    zone(root, "intel-rapl:0:0", 90.0, "core")
    assert meter.read() == [0.0, pytest.approx(60.0)]
    zone(root, "intel-rapl:0", 135.0)
    assert meter.read() == [0.0, pytest.approx(65.0)]


def test_one_process_of_a_node_counts_its_processors(root: Path) -> None:
    package = zone(root, "intel-rapl:0", 0.0)
    first, second = (energy.meter(CPU, first_on_node=first) for first in (True, False))
    zone(root, "intel-rapl:0", 7.0)
    assert (first.read(), second.read()) == ([0.0, 7.0], [0.0, 0.0])
    (package / "energy_uj").unlink()
    assert math.isnan(first.read()[1])


def test_what_cannot_be_read_is_unknown_for_all(root: Path) -> None:
    zone(root, "intel-rapl:0", 0.0)
    (zone(root, "intel-rapl:1", 0.0, "package-1") / "energy_uj").write_text("\n")
    mine = energy.meter(CPU, first_on_node=True).read()
    assert math.isnan(mine[1])
    rows = [pack(torch.zeros(2).double(), dict.fromkeys(("data_wait", "compute", "communication"), 1.0), 8.0, joules,
                 rank=rank, world=2) for rank, joules in enumerate(([10.0, mine[1]], [5.0, 3.0]))]  # fmt: skip
    told = unpack(rows[0] + rows[1], 2)
    assert (told.seconds, told.memory) == ([[1.0] * 3] * 2, [8.0, 8.0])
    assert energy.known(dict(zip(energy.KINDS, told.joules, strict=True))) == {"gpus": 15}


def test_the_card_names_what_was_counted() -> None:
    assert _energy({}) == "not measured"
    assert _energy({"gpus": 7.2e6, "processors": 3.6e5}) == (
        "2 kWh of the GPUs' boards, 0.1 kWh of the nodes' CPUs, all that ran there included"
    )


def test_a_run_counts_over_all_of_its_starts(trainer: Trainer, tmp_path: Path) -> None:
    run, env = tmp_path / "run", {"POWERCAP": str(tmp_path / "powercap")}
    zone(tmp_path / "powercap", "intel-rapl:0", 0.0)
    (tmp_path / "base.yaml").write_text("{}\n")
    for steps in (4, 8):
        code, output = finished(trainer, run, env, steps)
        assert code == 0, output
    counted = [event["joules"]["processors"] for event in events(run, "train") if "joules" in event]
    assert len(counted) == 8
    assert counted == sorted(set(counted))  # the second start continues the first one's sum
    summary = json.loads((run / "summary.json").read_text())
    assert summary["joules"]["processors"] == counted[-1]
    assert "kWh of the nodes' CPUs" in (run / "published" / "README.md").read_text()


def finished(trainer: Trainer, run: Path, env: dict[str, str], steps: int) -> tuple[int, str]:
    process = trainer.start(run, env=env, module="metered", max_steps=steps)
    output, _ = patience.communicate(process)
    return process.returncode, output
