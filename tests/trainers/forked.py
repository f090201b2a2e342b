"""Trainers whose processes are forked from one that has imported torch: no run has to wait for imports.

Started as a program, this file is that one: it reads a job a line (JSON), forks a process for each rank, and writes a
line when all of them have ended. The ranks run the real entry points, in the environment that a launcher would set.
"""

import json
import os
import runpy
import select
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Environment = dict[str, str]


class Forker:
    """The program's other side, in the test's process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], env=dict(environment), text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._ends: dict[int, list[int]] = {}
        self._count = 0

    def start(self, module: str, options: list[str], places: list[Environment], logs: Path) -> int:
        """Start a process for each place, running `python -m module options`; the job's number."""
        self._count += 1
        logs.mkdir(parents=True, exist_ok=True)
        job = {"number": self._count, "module": module, "options": options, "places": places, "logs": str(logs)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self._count

    def wait(self, job: int) -> list[int]:
        """Exit codes of a job's processes, by rank."""
        assert self._process.stdout is not None
        while job not in self._ends:
            line = self._process.stdout.readline()
            assert line, "the forking process has ended"
            end = json.loads(line)
            self._ends[end["number"]] = end["codes"]
        return self._ends.pop(job)

    def close(self) -> None:
        """End it, and whatever it has forked."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
        self._process.wait()


@dataclass
class Fleet:
    """Real runs on any number of processes, with the settings that the tests of this folder share."""

    trainer: Any
    forker: Forker

    def start(
        self,
        run: Path,
        world: int,
        module: str = "trainers.ddp",
        env: Environment | None = None,
        logs: Path | None = None,
        **over: Any,
    ) -> tuple[int, Path]:
        """Start a run, with more in its environment, its output below `logs`; `wait` takes what this returns."""
        options = [f"--set={key}={json.dumps(value)}" for key, value in self.trainer.settings(run, **over).items()]
        base = run.parent / "base.yaml"
        base.parent.mkdir(parents=True, exist_ok=True)
        base.write_text("{}\n")
        places = under_horovodrun(world) if module == "trainers.hvd" else under_torchrun(world)
        logs = logs or run.parent / f"{run.name}-logs"
        places = [{**place, **(env or {})} for place in places]
        return self.forker.start(module, ["--config", str(base), *options], places, logs), logs

    def wait(self, job: tuple[int, Path]) -> tuple[list[int], str]:
        """Exit codes and all that was written, by rank."""
        codes = self.forker.wait(job[0])
        return codes, "\n".join(path.read_text() for path in sorted(job[1].glob("*.log")))

    def inside(self, folder: Path, world: int, case: str, *arguments: str, **over: Any) -> list[Any]:
        """What the ranks of a case of inside_ranks.py saw."""
        results = folder / f"{case}-{world}-{len(list(folder.iterdir()))}"
        results.mkdir()
        options = [case, str(results), *arguments, *(f"{key}={json.dumps(value)}" for key, value in over.items())]
        places = under_horovodrun(world) if "horovod" in arguments else under_torchrun(world)
        job = self.forker.start("inside_ranks", options, places, results)
        codes, output = self.wait((job, results))
        assert codes == [0] * world, output
        return [json.loads((results / f"{rank}.json").read_text()) for rank in range(world)]

    def train(self, run: Path, world: int, module: str = "trainers.ddp", **over: Any) -> Path:
        """Run to the end, which must succeed."""
        codes, output = self.wait(self.start(run, world, module, **over))
        assert codes == [0] * world, output
        return run


def under_torchrun(world: int) -> list[Environment]:
    """What torchrun would set for each rank."""
    port = str(free_port())
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
    }  # fmt: skip
    return [{**common, **create_slot_env_vars(slot)} for slot in plan]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ------------------------------------------------------------------------------------------- the program


def serve() -> None:
    """Fork ranks as told, and report their ends, until the input ends."""
    running: dict[int, tuple[int, int]] = {}  # process id -> (job, rank)
    codes: dict[int, list[int | None]] = {}
    while True:
        if select.select([0], [], [], 0.02)[0]:
            line = read_line()
            if not line:
                return
            job = json.loads(line)
            codes[job["number"]] = [None] * len(job["places"])
            for rank, place in enumerate(job["places"]):
                running[fork(job, rank, place)] = (job["number"], rank)
        while running and (end := os.waitpid(-1, os.WNOHANG))[0]:
            number, rank = running.pop(end[0])
            codes[number][rank] = os.waitstatus_to_exitcode(end[1])
            if None not in codes[number]:
                print(json.dumps({"number": number, "codes": codes.pop(number)}), flush=True)


def read_line() -> str:
    """A line of the input, unbuffered, so that `select` sees what is left."""
    text = b""
    while not text.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return ""
        text += byte
    return text.decode()


def fork(job: dict[str, Any], rank: int, place: Environment) -> int:
    """Fork one rank; its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        log = os.open(Path(job["logs"]) / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.environ.update(place)
        sys.argv = [job["module"], *job["options"]]
        runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(99)  # entry points leave by themselves
    return 0


if __name__ == "__main__":
    import torchvision  # noqa: F401

    from trainers import parallel  # noqa: F401
    from trainers.parallel import (
        ddp,  # noqa: F401
        fsdp,  # noqa: F401
    )
    from trainers.training import loop  # noqa: F401

    serve()
