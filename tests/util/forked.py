"""Python processes that are forked from one that has imported torch: no run has to wait for imports.

They would be most of what a short run costs: 1.4 s of processor time for a rank and for its launcher, a second more
with FSDP or torch.compile, beside 0.3 s for the run. A process that is forked runs the real entry point and is the
test's own child, or its launcher's, with the session, environment, directory, streams and signal handlers that
`python -m MODULE` would have been started with; only its command line is another, and its name (/proc/PID/comm) is the
module's. Started as a program, this file is the process that is forked.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36  # linux/prctl.h
READERS = ThreadPoolExecutor(256)
prctl = ctypes.CDLL(None).prctl


class Process:
    """A child that a forker has started, to be used like a `subprocess.Popen` with text."""

    def __init__(self, args: Sequence[str], pid: int, pipes: Mapping[str, int]) -> None:
        self.args, self.pid, self.returncode = args, pid, None
        self.stdout, self.stderr = (os.fdopen(pipes[one]) if one in pipes else None for one in ("stdout", "stderr"))
        self._said: list[Future[str]] = []
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
                self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            ended = os.pidfd_open(self.pid)
            select.select([ended], [], [], timeout)
            os.close(ended)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def communicate(self, _: None = None, timeout: float | None = None) -> list[str]:
        self._said = self._said or [READERS.submit(one.read if one else str) for one in (self.stdout, self.stderr)]
        try:
            said = [one.result(timeout) for one in self._said]
        except TimeoutError:
            raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
        self.wait(timeout)
        return said

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    kill = functools.partialmethod(send_signal, signal.SIGKILL)
    terminate = functools.partialmethod(send_signal, signal.SIGTERM)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in filter(None, (self.stdout, self.stderr)):
            stream.close()
        self.wait()


class Forker:
    """The process that is forked, as the test's process sees it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command, own = [sys.executable, __file__, str(theirs.fileno())], {"pass_fds": [theirs.fileno()]}
            self._process = subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True, **own
            )

    def popen(self, args: Sequence[str], text: bool = True, **options: Any) -> Process:
        """Start [python, "-m", module, argument...] or [python, "-c", code...]; options are those of Popen."""
        given = [options.pop(name, None) for name in ("stdout", "stderr")]
        pipes = {name: os.pipe() for name, to in zip(("stdout", "stderr"), given, strict=True) if to == subprocess.PIPE}
        out = pipes["stdout"][1] if "stdout" in pipes else getattr(given[0], "fileno", lambda: given[0] or 1)()
        err = pipes["stderr"][1] if "stderr" in pipes else out if given[1] == subprocess.STDOUT else 2
        job = {"args": list(args), "env": dict(os.environ), **options, "cwd": str(options.get("cwd") or Path.cwd())}
        with self._lock:
            prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what is forked twice becomes our child
            pid = self._ask(job, [0, out, err])
            prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for _, theirs in pipes.values():
            os.close(theirs)
        return Process(args, pid, {name: ours for name, (ours, _) in pipes.items()})

    def run(self, args: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run a process to its end; arguments and result are those of `patience.run`."""
        from tests import patience

        with self.popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
            out, err = patience.communicate(process)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def load(self, *modules: str, **env: str) -> None:
        """Import more modules once, which processes that are forked from now on need; `env` is what they read of it."""
        with self._lock:
            self._ask({"load": modules, "env": env})

    def _ask(self, job: dict[str, Any], streams: Sequence[int] = ()) -> int:
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
    from tests.util.fleet import environment

    forker = Forker(environment())
    atexit.register(forker.close)
    return forker


# ------------------------------------------------------------------------------------------- the program


def serve(control: socket.socket) -> None:
    """Fork a process for each job, and reply with its number, until the other side closes."""
    while (message := socket.recv_fds(control, 1 << 20, 3))[0]:
        job, streams = json.loads(message[0]), message[1]
        if "load" in job:
            load(job["load"], job["env"])
            control.send(b"0")
            continue
        reading, writing = os.pipe()
        if (between := os.fork()) == 0:  # it ends at once, so that its child becomes the test's
            places = dict(zip(("stdin", "stdout", "stderr"), streams, strict=True))
            os.write(writing, str(start(**job, **places).pid).encode())
            os._exit(0)
        os.waitpid(between, 0)
        control.send(os.read(reading, 100))
        for descriptor in (reading, writing, *streams):
            os.close(descriptor)


def load(modules: Sequence[str], env: Mapping[str, str]) -> None:
    """Import modules; their pages stay shared with all that is forked."""
    os.environ.update(env)
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def start(args: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """Start a process: a module or code by a fork in which nothing is executed, else as Popen does.

    It returns once the new process is what a new program would be: before, it could be found neither by its session
    nor by its name, and a signal would meet another's handlers.
    """
    python = args[0] == sys.executable and any(word in ("-m", "-c") for word in args[1:3])
    forked = functools.partial(go_on, list(args), dict(options.get("env") or os.environ))
    return subprocess.Popen(args, preexec_fn=forked if python else None, **options)  # noqa: PLW1509


def go_on(args: list[str], env: dict[str, str]) -> None:
    """Be the program, in a process that Popen has just forked and given its streams, session and directory."""
    place, code = next(index for index, word in enumerate(args) if word in ("-m", "-c")), 99
    how, what, *words = args[place:]
    try:
        as_started(what if how == "-m" else "python", env, unbuffered="-u" in args[:place])
        sys.argv = [what if how == "-m" else how, *words]
        if how == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:  # most entry points leave by themselves
        sys.stdout.flush()
        os._exit(code)


def as_started(name: str, env: Mapping[str, str], unbuffered: bool) -> None:
    """Leave what a new program would not have of the one that starts it."""
    gc.enable()  # Popen has it off while it forks
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    prctl(PR_SET_NAME, name[:15].encode(), 0, 0, 0)
    os.environ.clear()
    os.environ.update(env)
    if launcher := sys.modules.get("trainyard.pod.launcher"):
        launcher.STARTED = time.time()  # type: ignore[attr-defined]  # as importing it has
    sys.path[:0] = [path for path in env.get("PYTHONPATH", "").split(":") if path and path not in sys.path]
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "closefd": False}
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", buffering=1 if unbuffered else -1, **how)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, **how)  # type: ignore[misc]
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # with it the pipe by which Popen waits


def main() -> None:
    """Import what any rank or launcher imports (test_imports.py says what most leave out), and serve."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    subprocess_handler.Popen = start  # type: ignore[attr-defined,assignment]
    load(["torchvision", "torch.distributed.run", "trainyard.parallel.ddp", "trainyard.parallel.fsdp",
          "trainyard.pod.launcher", "trainyard.pod.log", "trainyard.training.loop"], {})  # fmt: skip
    serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # what was imported says a lot about frozen objects


if __name__ == "__main__":
    main()
