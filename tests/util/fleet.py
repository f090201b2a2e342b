"""Runs on any number of processes, with the environment that torchrun or horovodrun gives each, without these."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import patience, ports

Environment = dict[str, str]
ROOT = Path(__file__).parents[2]


def environment(extra: Environment | None = None) -> Environment:
    """What a trainer's process sees: nothing of a launcher around this test."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("TRAINYARD_", "PET_", "WANDB"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # torch is quicker to import with its bytecode kept
    return {
        **kept,
        "PYTHONPATH": f"{ROOT}/tests/util:{ROOT}/src:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "STEP_SECONDS": "0",
        "TRAINYARD_GRACE_SECONDS": str(patience.IDLE),
        **(extra or {}),
    }


@dataclass
class Fleet:
    """Real runs on any number of processes without a launcher, with the settings that this folder's tests share."""

    trainer: Any

    def start(
        self,
        run: Path,
        world: int,
        module: str = "trainers.ddp",
        env: Environment | None = None,
        logs: Path | None = None,
        **over: Any,
    ) -> "tuple[list[subprocess.Popen[str]], Path]":
        """Start a run, with more in its environment; `wait` takes what this returns.

        Its output lies below `logs`, beside the configuration; without, both lie beside the run.
        """
        options = [f"--set={key}={json.dumps(value)}" for key, value in self.trainer.settings(run, **over).items()]
        base = (logs or run.parent) / "base.yaml"
        base.parent.mkdir(parents=True, exist_ok=True)
        base.write_text("{}\n")
        horovod = module == "trainers.hvd" or (env or {}).get("FAULT_UNDER") == "horovod"
        places = under_horovodrun(world) if horovod else under_torchrun(world)
        places = [{**place, **(env or {})} for place in places]
        return self.ranks(module, ["--config", str(base), *options], places, logs or run.parent / f"{run.name}-logs")

    def ranks(
        self, module: str, options: list[str], places: list[Environment], logs: Path
    ) -> "tuple[list[subprocess.Popen[str]], Path]":
        """Start a process for each place, running `python -m module options`."""
        logs.mkdir(parents=True, exist_ok=True)
        processes = []
        for rank, place in enumerate(places):
            with (logs / f"{rank}.log").open("w") as log:
                processes.append(self.trainer.python("-m", module, *options, env=place, stdout=log))
        return processes, logs

    def wait(self, job: "tuple[list[subprocess.Popen[str]], Path]") -> tuple[list[int], str]:
        """Exit codes and all that was written, by rank."""
        codes = [process.wait() for process in job[0]]
        return codes, "\n".join(path.read_text() for path in sorted(job[1].glob("*.log")))

    def inside(self, folder: Path, world: int, case: str, *arguments: str, **over: Any) -> list[Any]:
        """What the ranks of a case of inside_ranks.py saw."""
        results = folder / f"{case}-{world}-{len(list(folder.iterdir()))}"
        results.mkdir()
        options = [case, str(results), *arguments, *(f"{key}={json.dumps(value)}" for key, value in over.items())]
        places = under_horovodrun(world) if "horovod" in arguments else under_torchrun(world)
        codes, output = self.wait(self.ranks("inside_ranks", options, places, results))
        assert codes == [0] * world, output
        return [json.loads((results / f"{rank}.json").read_text()) for rank in range(world)]

    def train(self, run: Path, world: int, module: str = "trainers.ddp", **over: Any) -> Path:
        """Run to the end, which must succeed."""
        codes, output = self.wait(self.start(run, world, module, **over))
        assert codes == [0] * world, output
        return run


def under_torchrun(world: int) -> list[Environment]:
    """What torchrun would set for each rank."""
    port = str(ports.free())
    common = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]


def under_horovodrun(world: int) -> list[Environment]:
    """What `horovodrun --gloo` would set for each rank; its own rendezvous server runs in this process."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.gloo_run import create_slot_env_vars
    from horovod.runner.http.http_server import RendezvousServer

    plan = get_host_assignments(parse_hosts(f"localhost:{world}"), world)
    server = RendezvousServer(0)
    port = server.start()
    server.init(plan)
    common = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(round(patience.IDLE)),
    }  # fmt: skip
    return [{**common, **create_slot_env_vars(slot)} for slot in plan]
