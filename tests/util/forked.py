"""Trainers whose processes are forked from one that has imported torch: no run has to wait for imports.

They would be most of what a short run costs: 1.4 s of processor time for a rank and for its launcher, a second more
with FSDP or torch.compile, beside 0.3 s for the run. A process that is forked runs the real entry point and is the
test's own child, or its launcher's, with the session, environment, directory, streams and signal handlers that
`python -m MODULE` would have been started with. Only its command line is another; its name (/proc/PID/comm) is the
module's.

Started as a program, this file is the process that is forked.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import patience, ports

Environment = dict[str, str]
Job = dict[str, Any]
Spawn = Callable[[Job, Sequence[int]], int]
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36  # linux/prctl.h
RUNS = ("-m", "-c")  # python's options for what it runs
ROOT = Path(__file__).parents[2]


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
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


class Popen(subprocess.Popen[str]):
    """`subprocess.Popen` of [python, "-m", module, argument...] or [python, "-c", code...], whose process is forked."""

    def __init__(self, spawn: Spawn, args: Sequence[str], **options: Any) -> None:
        self._spawn = spawn
        super().__init__(args, **options)

    def _execute_child(self, *given: Any) -> None:
        """Fork where the original forks and executes; the arguments are the original's."""
        how = inspect.signature(subprocess.Popen._execute_child).bind(self, *given).arguments  # type: ignore[attr-defined]
        words = list(how["args"])
        place = next(index for index, word in enumerate(words) if word in RUNS)
        job = {
            "how": words[place], "what": words[place + 1], "arguments": words[place + 2 :],
            "unbuffered": "-u" in words[:place],
            "env": dict(os.environ if how["env"] is None else how["env"]), "cwd": str(how["cwd"] or Path.cwd()),
            "session": how["start_new_session"],
        }  # fmt: skip
        streams = [how["p2cread"], how["c2pwrite"], how["errwrite"]]
        try:
            self.pid = self._spawn(job, [own if stream == -1 else stream for own, stream in enumerate(streams)])
            self._child_created = True
        finally:
            self._close_pipe_fds(*(how[name] for name in (  # type: ignore[attr-defined]
                "p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"
            )))  # fmt: skip


class Forker:
    """The process that is forked, as the test's process sees it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._one_at_a_time = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], env=dict(environment), pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def popen(self, args: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
        """Start a process; arguments and result are those of `subprocess.Popen`."""
        return Popen(self._spawn, args, **options)

    def run(self, args: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run a process to its end; arguments and result are those of `patience.run`."""
        pipe = subprocess.PIPE
        with self.popen(args, text=True, stdout=pipe, stderr=pipe, **options) as process:
            out, err = patience.communicate(process)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def load(self, *modules: str, **env: str) -> None:
        """Import more modules once, which processes that are forked from now on need; `env` is what they read of it."""
        with self._one_at_a_time:
            self._ask({"load": modules, "env": env})

    def _spawn(self, job: Job, streams: Sequence[int]) -> int:
        with self._one_at_a_time:
            prctl(PR_SET_CHILD_SUBREAPER, 1)  # what is forked twice becomes our child
            try:
                return self._ask(job, streams)
            finally:
                prctl(PR_SET_CHILD_SUBREAPER, 0)

    def _ask(self, job: Job, streams: Sequence[int] = ()) -> int:
        socket.send_fds(self._control, [json.dumps(job).encode()], list(streams))
        reply = self._control.recv(100)
        assert reply, "the process to fork has ended"
        return int(reply)

    def close(self) -> None:
        """End it; what it has forked lives on."""
        self._control.close()
        self._process.wait()


@functools.cache
def shared() -> Forker:
    """The one of this process, for all files of tests; it ends with this process."""
    forker = Forker(environment())
    atexit.register(forker.close)
    return forker


def prctl(option: int, value: Any) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


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


# ------------------------------------------------------------------------------------------- the program


def serve(control: socket.socket) -> None:
    """Fork a process for each job, and reply with its number, until the other side closes."""
    while True:
        message, streams, _, _ = socket.recv_fds(control, 1 << 20, 3)
        if not message:
            return
        job = json.loads(message)
        if modules := job.get("load"):
            load(modules, job["env"])
            control.send(b"0")
            continue
        reading, writing = os.pipe()
        if (between := os.fork()) == 0:  # it ends at once, so that its child becomes the test's
            os.write(writing, str(fork(job, streams)).encode())
            os._exit(0)
        os.waitpid(between, 0)
        control.send(os.read(reading, 100))
        for descriptor in (reading, writing, *streams):
            os.close(descriptor)


def load(modules: Sequence[str], env: Environment) -> None:
    """Import modules; their pages stay shared with all that is forked."""
    os.environ.update(env)
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def fork(job: Job, streams: Sequence[int]) -> int:
    """Fork a process for a job; its process id, once it is what a new program would be.

    Before, it could be found neither by its session nor by its name, and a signal would meet another's handlers.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    waiting, begun = os.pipe()  # which the new process closes
    pid = os.fork()
    if pid:
        os.close(begun)
        os.read(waiting, 1)
        os.close(waiting)
        return pid
    try:
        as_started(job, streams)
        if job["how"] == "-m":
            sys.argv = [job["what"], *job["arguments"]]
            runpy.run_module(job["what"], run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *job["arguments"]]
            exec(compile(job["what"], "<string>", "exec"), {"__name__": "__main__"})
        leave(0)
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(99)  # most entry points leave by themselves
    return 0


def leave(code: int) -> None:
    """End with what has been written."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def as_started(job: Job, streams: Sequence[int]) -> None:
    """Leave what a new program would not have of the one that starts it, and take what it is given."""
    if job["session"]:
        os.setsid()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    prctl(PR_SET_NAME, (job["what"] if job["how"] == "-m" else "python")[:15].encode())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # last of what others see: who forks waits for it
    os.environ.clear()
    os.environ.update(job["env"])
    os.chdir(job["cwd"])
    launcher: Any = sys.modules.get("trainyard.pod.launcher")
    if launcher:
        launcher.STARTED = time.time()  # as importing it has
    sys.path[:0] = [path for path in job["env"].get("PYTHONPATH", "").split(":") if path and path not in sys.path]
    for name, number in (("stdout", 1), ("stderr", 2)):
        binary = io.FileIO(number, "w", closefd=False)
        buffered = binary if job["unbuffered"] else io.BufferedWriter(binary)
        text = io.TextIOWrapper(buffered, "utf-8", "backslashreplace", write_through=job["unbuffered"],
                                line_buffering=name == "stderr")  # fmt: skip
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def popen_of_ranks(args: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """What a launcher starts its ranks by: modules are forked from it."""
    return Popen(fork, args, **options) if "-m" in args[1:3] else subprocess.Popen(args, **options)


def main() -> None:
    """Import what any rank or launcher imports (test_imports.py says what most leave out), and serve."""
    import torchvision  # noqa: F401
    from torch.distributed import run  # noqa: F401
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    from trainyard import parallel  # noqa: F401
    from trainyard.parallel import (
        ddp,  # noqa: F401
        fsdp,  # noqa: F401
    )
    from trainyard.pod import launcher, log  # noqa: F401
    from trainyard.training import loop  # noqa: F401

    subprocess_handler.Popen = popen_of_ranks  # type: ignore[attr-defined,assignment]
    load([], {})
    serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # what was imported says a lot about frozen objects


if __name__ == "__main__":
    main()
