"""Keep what a pod prints beside its run, so that it outlives the pod: the last traceback too, and within bounds.

`kept` hands the pod's output to a process of its own, which passes it on and writes it to a file as well, so that
what a crashing process said last is not lost with it. The file is named after the pod's part in the job (worker-1.log),
not after the job: a later job writes on. When it is half of what may be kept it becomes worker-1.log.1, and the one
before it goes. A file system that is slow or full costs lines in the file, never the training.

    TRAINYARD_LOGS        folder to keep them in; unset, nothing is kept
    TRAINYARD_LOG_BYTES   most bytes to keep of a pod, both files together
"""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

DEFAULT_BYTES = 64 << 20
CHUNK = 1 << 16
WAITING = 256  # chunks that may wait for the file system
LAST_SECONDS = 20.0  # that the end of a pod may wait for a slow file system


def kept(main: Callable[[], int]) -> int:
    """Run a program's main function, keeping what this process and its children print; returns what it returns."""
    folder = os.environ.get("TRAINYARD_LOGS")
    if not folder:
        return main()
    path = Path(folder) / f"{part(socket.gethostname(), os.environ.get('TRAINYARD_JOB', ''))}.log"
    streams = os.dup(1), os.dup(2)
    tee = _start_tee(path, *streams)
    last_word = ""
    try:
        print(f"log: {socket.gethostname()} starts, {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}", flush=True)
        return main()
    except BaseException:
        # whoever ends the program prints it to the pod's log once this is over; the file must get it here
        last_word = traceback.format_exc()
        raise
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, saved in zip((1, 2), streams, strict=True):
            os.dup2(saved, number)
        try:
            tee.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            tee.kill()  # a process left behind still holds the pipe
        if last_word:
            with contextlib.suppress(OSError), path.open("a") as file:
                file.write(last_word)


def _start_tee(path: Path, out: int, err: int) -> "subprocess.Popen[bytes]":
    """Start the process that keeps the output, and let this one and its children to come print to it."""
    reading, writing = os.pipe()
    line = [sys.executable, "-I", __file__, str(path), os.environ.get("TRAINYARD_LOG_BYTES", str(DEFAULT_BYTES))]
    tee = subprocess.Popen(line, stdin=reading, stdout=out, stderr=err)
    for number in (1, 2):
        os.dup2(writing, number)
    os.close(reading)
    os.close(writing)
    return tee


def part(hostname: str, job: str) -> str:
    """A pod's part in its job: `worker-1` of `demo-pytorchjob-0123abcd-worker-1`; launchers have a random end."""
    name = hostname.removeprefix(f"{job}-") if job else hostname
    return "launcher" if name.startswith("launcher") else name


class Kept:
    """The file and the one before it, written by a thread of its own."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._half = path, max(limit // 2, 1)
        self._chunks: queue.Queue[bytes | None] = queue.Queue(WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, chunk: bytes) -> None:
        """Keep a chunk, or count it as lost when the file system does not keep up."""
        try:
            self._chunks.put_nowait(chunk)
        except queue.Full:
            self._lost += len(chunk)

    def close(self, seconds: float) -> None:
        """Write what waits, for at most so long."""
        with contextlib.suppress(queue.Full):
            self._chunks.put(None, timeout=seconds)
            self._thread.join(seconds)

    def _gap(self) -> bytes:
        """A line in place of what was lost, if anything was."""
        lost, self._lost = self._lost, 0
        return f"[{lost} bytes were not kept: the file system is slow]\n".encode() if lost else b""

    def _run(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._path.open("ab", buffering=0)
            while (chunk := self._chunks.get()) is not None:
                chunk = self._gap() + chunk
                if file.tell() and file.tell() + len(chunk) > self._half:
                    file.close()
                    with contextlib.suppress(FileNotFoundError):  # the run was moved aside meanwhile
                        self._path.replace(self._path.with_name(self._path.name + ".1"))
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    file = self._path.open("ab", buffering=0)
                file.write(chunk)
            file.write(self._gap())
        except OSError as error:
            os.write(1, f"log: {self._path} cannot be kept ({error.strerror}); training goes on\n".encode())


def tee(path: Path, limit: int) -> None:
    """Pass standard input on to standard output, and keep it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when those who write have ended
    file = Kept(path, limit)
    while chunk := os.read(0, CHUNK):
        file.put(chunk)
        view = memoryview(chunk)
        while view:
            view = view[os.write(1, view) :]
    file.close(LAST_SECONDS - 1)


if __name__ == "__main__":
    tee(Path(sys.argv[1]), int(sys.argv[2]))
