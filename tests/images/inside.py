"""Runs inside an image, as its user; prints what it finds as JSON.

inside.py facts     who runs, what is installed, which compilers are there
inside.py ranks     starts two Horovod ranks over ssh as an MPIJob would, and prints what they print
"""

import importlib.metadata
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "nvcc", "cmake", "make", "ld")
SECRET = "two\nlines, 'quotes' and $HOME"
RANK = """
import json, os, torch, horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.ones(3) * (hvd.rank() + 1), op=hvd.Sum).tolist()
found = {"rank": hvd.rank(), "size": hvd.size(), "sum": total, "secret": os.environ.get("SECRET"),
         "prefix": os.environ.get("OPAL_PREFIX"), "uid": os.getuid(), "ssh": "SSH_CLIENT" in os.environ}
print("RANK " + json.dumps(found) + chr(10), end="", flush=True)
hvd.shutdown()
"""


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def decoder() -> str | None:
    if version("trainyard-kubernetes") is None:
        return None
    from trainyard.data import decode

    return decode.choose("auto").description


def facts() -> None:
    spec = importlib.util.find_spec("torch")
    found = {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "home": os.environ.get("HOME"),
        "cwd": str(Path.cwd()),
        "torch": [version("torch"), spec.origin if spec else None],
        "trainyard": version("trainyard-kubernetes"),
        "horovod": version("horovod"),
        "numpy": version("numpy"),
        "decoder": decoder(),
        "compilers": [name for name in COMPILERS if shutil.which(name)],
        "mpi_in_usr": [str(path) for path in Path("/usr").glob("**/mpirun")],
    }
    print("FACTS " + json.dumps(found))


def ranks() -> None:
    keys = Path.home() / ".ssh"
    keys.mkdir(mode=0o700, exist_ok=True)
    subprocess.check_call(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(keys / "id_rsa")])
    shutil.copy(keys / "id_rsa.pub", keys / "authorized_keys")
    Path("/tmp/hostfile").write_text("127.0.0.2 slots=2\n")  # this machine, but mpirun takes it for another
    Path("/tmp/rank.py").write_text(RANK)
    common = os.environ | {
        "TRAINYARD_HOSTFILE": "/tmp/hostfile",
        "TRAINYARD_WAIT_SECONDS": "600",
        # This container sees the processes of the cluster: by a pod's path the worker would stop ranks of pods
        "TRAINYARD_MPI_ENVIRONMENT": "/tmp/ranks-of-a-test/environment",
    }
    worker = subprocess.Popen([sys.executable, "-m", "trainyard", "mpi", "worker"], env=common | {"SECRET": SECRET})
    try:
        command = [
            sys.executable,
            "-m",
            "trainyard",
            "mpi",
            "launch",
            "--np",
            "2",
            "--",
            sys.executable,
            "/tmp/rank.py",
        ]
        begin = time.monotonic()
        code = subprocess.run(command, env=common | {"OMPI_MCA_oob_tcp_if_include": "lo"}, check=False)
        print(f"CODE {code.returncode} {time.monotonic() - begin:.1f}", flush=True)
    finally:
        worker.send_signal(signal.SIGTERM)
        print(f"WORKER {worker.wait()}", flush=True)


if __name__ == "__main__":
    {"facts": facts, "ranks": ranks}[sys.argv[1]]()
