"""Run a plain function with the SDK's local backend, as processes of this machine, without a cluster.

    python examples/sdk/local.py --processes 2
    python examples/sdk/local.py --install      # the SDK's default: a fresh environment, with torch from the network

The backend creates a fresh virtual environment. Without `packages_to_install` it stays empty, and the job ends at
once with `torchrun: No such file`; with it, gigabytes are fetched for every job. Without --install this script puts a
link to its own torchrun there: the function then runs with the packages that the script itself has.
"""

import argparse
import os
import shlex
import sys
import tempfile
from collections import deque
from pathlib import Path

import text
from functions import train_ddp
from kubeflow.trainer import CustomTrainer, LocalProcessBackendConfig, TrainerClient


def environment(processes: int, folder: Path, torchrun: Path | None) -> dict[str, str]:
    """Return the job's whole environment: the backend passes none of this process's variables."""
    (folder / "start").write_text(f"unset BASH_ENV; mkdir -p bin; ln -s {shlex.quote(str(torchrun))} bin/torchrun\n")
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", str(folder)),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "PET_NPROC_PER_NODE": str(processes),  # read by torchrun; the backend itself starts one process
        "PET_STANDALONE": "1",
        # bash reads this file before the backend's script, in the folder of the new environment
        **({"BASH_ENV": str(folder / "start")} if torchrun else {}),
    }


def main() -> int:
    """Run the job and print its log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2, help="(default 2)")
    parser.add_argument("--global-batch", type=int, default=32, help="samples per step over all processes (default 32)")
    parser.add_argument(
        "--results", default="build/sdk", help="folder for weights and summary.json (default build/sdk)"
    )
    parser.add_argument("--install", action="store_true", help="fetch torch into the job's own environment")
    given = parser.parse_args()
    torchrun = Path(sys.executable).parent / "torchrun"
    if not given.install and not torchrun.exists():
        text.fail(
            f"{torchrun} is missing: start the script with the python of an environment with torch, or with --install"
        )
    arguments = {"global_batch": given.global_batch, "results": str(Path(given.results).resolve())}
    text.check(train_ddp, arguments)
    with tempfile.TemporaryDirectory(prefix="sdk-") as folder:
        tempfile.tempdir = folder  # where the backend works; it leaves its files when a job fails
        client = TrainerClient(LocalProcessBackendConfig())
        env = environment(given.processes, Path(folder), None if given.install else torchrun)
        trainer = CustomTrainer(train_ddp, arguments, env=env, packages_to_install=["torch"] if given.install else None)
        job = client.train(runtime="torch-distributed", trainer=trainer)
        deque(client.get_job_logs(job, follow=True), maxlen=0)  # it prints the lines itself, and also returns them
        state = client.wait_for_job_status(job, {"Complete", "Failed"}).status
        client.delete_job(job)
    print(f"{job}: {state}")
    return int(state == "Failed")


if __name__ == "__main__":
    raise SystemExit(main())
