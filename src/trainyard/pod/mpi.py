"""The pods of an MPIJob, or of a TrainJob with an MPI policy: workers that serve ssh, and the launcher.

    trainyard mpi worker
    trainyard mpi launch [--np 4] [--spares 1] [--run-dir RUN] -- python -m trainers.hvd --config FILE
    trainyard mpi rank -- COMMAND

ssh starts a rank with nearly no environment, so variables of the image and the pod would not reach it. Each worker
therefore writes its environment to a private file, and mpirun starts its daemon (orted) through this module, which
adopts that environment first. No command line holds a secret, and ranks see their own pod's settings.

A program of the user's (global.training.command) is started by `rank`, which ends instead where its pod's checks have
failed, as our trainers do by themselves.

A worker that receives SIGTERM signals its ranks and stays until they have saved and ended. A launcher that receives
SIGTERM makes all workers do so.
"""

import argparse
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trainyard.core.exits import (
    CURED_BY_RETRY,
    Exit,
    ExitError,
    UserError,
    end_on_failed_preflight,
    may_pass_in_place,
    no_core_dumps,
    write_termination_message,
)
from trainyard.core.variables import GRACE_SECONDS, MAX_RESTARTS, WAIT_SECONDS, read_number
from trainyard.pod import log, mpi_hosts, mpi_ranks, process, transport

ENVIRONMENT_FILE = "/tmp/trainyard-mpi/environment"  # each pod has its own /tmp
SSH_FOLDER = "/etc/trainyard-ssh"
HOSTFILE = "/etc/mpi/hostfile"
BRIEF_SECONDS, BRIEF_STARTS = 60.0, 3  # after more starts in a row that a worker's loss ends so early, the Job retries
LONGEST_LINE = 1 << 16  # bytes that are printed at a time: some programs print for hours without a line break

# OMPI_MCA_<name>, where the pod or the user sets it, takes precedence.
MCA = {
    "pml": "ob1",  # Horovod moves tensors by NCCL, or by MPI over TCP; MPI itself needs no InfiniBand
    "btl": "^openib",
    "btl_vader_single_copy_mechanism": "none",  # restricted pods may not read another process's memory
    "orte_keep_fqdn_hostnames": "true",
}


@dataclass(frozen=True)
class Places:
    """Paths of the files that a worker keeps; tests use others."""

    environment: Path
    ssh: Path
    hostfile: Path

    @property
    def chosen(self) -> Path:
        """The hostfile of the workers on which the ranks start, which the launcher writes."""
        return self.environment.with_name("hostfile")

    @classmethod
    def here(cls) -> "Places":
        """Return the paths in a pod, unless the environment sets others."""
        return cls(
            Path(os.environ.get(mpi_ranks.MARK, ENVIRONMENT_FILE)),
            Path(os.environ.get("TRAINYARD_SSH_FOLDER", SSH_FOLDER)),
            Path(os.environ.get("TRAINYARD_HOSTFILE", HOSTFILE)),
        )


# ---------------------------------------------------------------------------------------------- worker


def become(command: Sequence[str]) -> int:
    """Become a program of the user's; end instead with what the checks of this pod found, or where there is none."""
    end_on_failed_preflight()
    program = shutil.which(command[0])
    if program is None:
        raise UserError(f"{command[0]} is not in this image: global.training.command starts with a program of it")
    os.execv(program, list(command))


def start_daemon(path: Path, arguments: Sequence[str]) -> int:
    """Become MPI's daemon, in the worker's environment; mpirun asks for this over ssh."""
    mpi_ranks.take_on_environment(path)
    program = shutil.which(mpi_ranks.DAEMONS[0])
    if program is None:
        raise UserError(f"{mpi_ranks.DAEMONS[0]} is not on PATH ({os.environ.get('PATH')}): the image needs OpenMPI 4")
    os.execv(program, [program, *arguments])


def listen_for(*numbers: signal.Signals) -> "queue.SimpleQueue[int]":
    """Return a queue of the signals that arrive; a wait on it wakes up at each."""
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in numbers:
        signal.signal(number, lambda got, _: arrived.put(got))
    return arrived


def next_signal(arrived: "queue.SimpleQueue[int]", seconds: float) -> int | None:
    """Return the next signal, or None after that time."""
    try:
        return arrived.get(timeout=seconds)
    except queue.Empty:
        return None


def grace_seconds() -> float:
    """How long ranks may take to save: the pod's grace period less the time to report before the kubelet kills."""
    return max(1.0, read_number(GRACE_SECONDS) - 3)


def worker(places: Places) -> int:
    """Serve ssh until SIGTERM; then let the ranks save and end first. Returns the exit code.

    SIGUSR1 stops the ranks alone; the launcher sends it when it receives SIGTERM itself.
    """
    arrived = listen_for(signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # first: the files let the launcher signal
    mpi_ranks.write_environment(places.environment, dict(os.environ))
    places.environment.with_name("worker.pid").write_text(str(os.getpid()))
    program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if program is None:
        raise UserError("sshd is not in this image: MPI needs the image that images/horovod/Dockerfile builds")
    sshd = subprocess.Popen([program, "-D", "-e", "-f", str(places.ssh / "sshd_config")])
    print(f"worker: ssh is served; ranks get this pod's {len(os.environ)} environment variables", flush=True)
    signalled: set[int] = set()
    deadline = float("inf")
    while True:
        got = next_signal(arrived, 0.2 if signalled or deadline < float("inf") else 1.0)
        ended = mpi_ranks.reap()
        if sshd.pid in ended and deadline == float("inf"):
            raise ExitError(f"sshd ended with code {ended[sshd.pid]}; its message is above", Exit.FAILED)
        running = mpi_ranks.find(places.environment) if got or deadline < float("inf") else set()
        if got in (signal.SIGTERM, signal.SIGINT) and deadline == float("inf"):
            deadline = time.monotonic() + grace_seconds()
            print(f"worker: SIGTERM received; {len(running)} ranks are stopping", flush=True)
            process.signal_all({sshd.pid}, signal.SIGTERM)  # it takes no new ranks; those that run keep their session
        process.signal_all(running - signalled, *process.TOLD_TO_END)
        signalled |= running
        if deadline < float("inf") and (not running or time.monotonic() > deadline):
            break
    if running:
        print(f"worker: {len(running)} ranks did not end within the grace period", flush=True)
    return Exit.DONE


def pass_on_stop(path: Path) -> int:
    """Signal this pod's worker to stop its ranks; the launcher runs this over ssh."""
    os.kill(int(path.with_name("worker.pid").read_text()), signal.SIGUSR1)
    return Exit.DONE


def wait_for_earlier_ranks(path: Path) -> int:
    """Return when no rank of an earlier launcher runs in this pod; ranks that outlive their grace period are killed.

    The next launcher runs this over ssh. Kubernetes creates it as soon as its predecessor is asked to stop, while that
    one's ranks still save; new ranks would take the run directory and the GPUs from them.
    """
    mpi_ranks.take_on_environment(path)
    deadline = time.monotonic() + grace_seconds()
    while running := mpi_ranks.find(path):
        if time.monotonic() > deadline:
            process.signal_all(running, signal.SIGKILL)
        time.sleep(0.2)
    return Exit.DONE


# ---------------------------------------------------------------------------------------------- launcher


def ssh_command(places: Places) -> list[str]:
    """How ssh is called, with this project's settings."""
    return ["ssh", "-F", str(places.ssh / "ssh_config")]


def mpirun_command(np: int, places: Places, command: Sequence[str]) -> list[str]:
    """Return the command that starts the ranks, on the hosts of the hostfile that `launch` writes."""
    program = shutil.which("mpirun")
    if program is None:
        raise UserError("mpirun is not on PATH: MPI needs the image that images/horovod/Dockerfile builds")
    settings = MCA | {
        "plm_rsh_agent": " ".join(ssh_command(places)),
        "orte_launch_agent": f"{sys.executable} -m trainyard mpi orted {places.environment}",
    }
    chosen = [part for k, v in settings.items() if f"OMPI_MCA_{k}" not in os.environ for part in ("--mca", k, v)]
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    # --noprefix: with a prefix mpirun would look for the launch agent in its own folder
    return [program, "--noprefix", *root, "-np", str(np), "--hostfile", str(places.chosen),
            "--bind-to", "none", "--map-by", "slot", *chosen, *command]  # fmt: skip


def stop_ranks(hosts: Sequence[str], places: Places) -> None:
    """Make the workers stop their ranks: mpirun would kill them a second after its own SIGTERM."""
    on_all(hosts, places, "stop", 10)


def on_all(hosts: Sequence[str], places: Places, command: str, seconds: float) -> None:
    """Run one of this module's commands on every worker, all at once, for at most so long."""
    remote = f"{sys.executable} -m trainyard mpi {command} {places.environment}"

    def tell(host: str) -> None:
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            subprocess.run([*ssh_command(places), host, remote], timeout=seconds, check=False, capture_output=True)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(tell, hosts))


def pass_on_output(stream: IO[bytes], errors: list[str]) -> None:
    """Print what the ranks print, each error once, and add their errors to the list."""
    while line := stream.readline(LONGEST_LINE):
        start = line.find(b"error: ")
        error = line[start + 7 :].decode(errors="replace").strip() if start >= 0 else ""
        if start == 0 and error in errors:  # of another node: those of one node note what they have said (exits.py)
            continue
        errors += [error] if error else []
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


@dataclass(frozen=True)
class Ended:
    """How the ranks ended: mpirun's exit code, the first error of a rank, whether this launcher was asked to stop."""

    code: int
    error: str
    stopped: bool
    seconds: float  # for which they ran


def run_ranks(command: list[str], hosts: Sequence[str], places: Places) -> Ended:
    """Run mpirun to its end, and stop the ranks on SIGTERM."""
    begun = time.monotonic()
    arrived = listen_for(signal.SIGTERM, signal.SIGINT)
    # In its own session, so that a terminal's ^C stops the ranks through us
    mpirun = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert mpirun.stdout is not None
    errors: list[str] = []
    reader = threading.Thread(target=pass_on_output, args=(mpirun.stdout, errors), daemon=True)
    reader.start()
    deadline = float("inf")
    while mpirun.poll() is None:
        got = next_signal(arrived, 0.5)
        if got and deadline == float("inf"):
            deadline = time.monotonic() + grace_seconds()
            print("launch: SIGTERM received; the ranks are stopping", flush=True)
            stop_ranks(hosts, places)
        if time.monotonic() > deadline:
            print("launch: the ranks did not end within the grace period", flush=True)
            mpirun.terminate()
            deadline += 10
    reader.join(5)
    process.end_on_sigterm()  # nothing runs that would have to save
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stopped = deadline < float("inf") or not arrived.empty()
    code = mpirun.returncode if mpirun.returncode >= 0 else 128 - mpirun.returncode
    return Ended(Exit.STOPPED if stopped and code else code, next(iter(errors), ""), stopped, time.monotonic() - begun)


def lost_workers(ended: Ended, hosts: Sequence[str], port: int) -> str:
    """Name the workers that are lost where the ranks ended of that; the empty string where they ended by themselves.

    The ranks of a worker that is stopped, or drained, save and end with 143, and so do the others. Where no rank says
    why it ended, mpirun's code may be ssh's.
    """
    final = ended.error and (ended.code < CURED_BY_RETRY or ended.code == Exit.DEVICE)
    if ended.code in (Exit.DONE, Exit.CONFIG, Exit.NAN) or final:
        return ""
    lost = mpi_hosts.name_lost(hosts, port)
    return lost or ("a worker was stopped" if ended.code == Exit.STOPPED else "")


@dataclass(frozen=True)
class Launch:
    """Settings of a launcher.

    `np` is the number of ranks (None: one in every slot of the workers that are not spare); `on_loss` is `wait` where
    another worker takes a lost one's place, as mpi-operator has it, and `end` where all pods are recreated.
    """

    np: int | None
    spares: int
    run_dir: Path | None
    on_loss: str


def launch(asked: Launch, command: Sequence[str], places: Places) -> int:
    """Wait until every worker but the spare ones answers, start the ranks, and return their exit code.

    Ranks that failed and may recover are started again in the same workers, PET_MAX_RESTARTS times at most; where a
    worker is lost, this waits for one that takes its place: a spare worker does so at once, also of one whose GPU has
    failed. Kubernetes' own retry of a launcher waits longer each time, and counts for as long as the job lives.
    """
    if asked.run_dir is not None:
        mpi_hosts.refuse_known_failure(asked.run_dir, os.environ.get("TRAINYARD_JOB", ""))
    slots = mpi_hosts.read_hostfile(places.hostfile)
    wanted = mpi_hosts.count_wanted(slots, asked.spares, places.hostfile)
    usable = dict(list(slots.items())[:wanted])  # any others have as many
    np = sum(usable.values()) if asked.np is None else asked.np
    mpi_hosts.check_slots(usable, np, places.hostfile)
    mpirun = mpirun_command(np, places, command)
    hosts: list[str] = []
    port = mpi_hosts.ssh_port(places.ssh / "ssh_config")
    left, brief = int(read_number(MAX_RESTARTS)), 0
    while True:
        # first those that trained before
        first = sorted(slots, key=lambda host: host not in hosts)
        hosts = mpi_hosts.wait_for_ssh(first, port, read_number(WAIT_SECONDS), wanted)
        chosen = {host: slots[host] for host in slots if host in hosts}
        mpi_hosts.write_hostfile(places.chosen, chosen)
        on_all(hosts, places, "settle", grace_seconds() + 20)
        print(f"launch: {np} processes on {len(hosts)} nodes{others(hosts, slots)}", flush=True)
        ended = run_ranks(mpirun, hosts, places)
        if ended.stopped:
            return ended.code
        brief = brief + 1 if ended.seconds < BRIEF_SECONDS else 0
        if lost := lost_workers(ended, hosts, port):
            if brief > BRIEF_STARTS or asked.on_loss == "end":
                raise ExitError(f"{lost}, and mpirun ended with {ended.code}: {mpi_hosts.LOOK}", Exit.HANG)
            print(f"launch: {lost}; the ranks start again in their pods when all workers answer", flush=True)
        elif ended.code == Exit.DEVICE and len(slots) > wanted and (failed := mpi_hosts.host_of(ended.error, chosen)):
            del slots[failed]
            print(f"launch: a GPU of {failed} failed; the ranks start again on the other workers", flush=True)
        elif left and may_pass_in_place(ended.code):
            left -= 1
            print(f"launch: the ranks ended with code {ended.code}; they are started again in their pods", flush=True)
        else:
            return report(ended)


def others(hosts: Sequence[str], slots: Mapping[str, int]) -> str:
    """Say which workers wait as spare ones; the empty string where none does."""
    waiting = [host for host in slots if host not in hosts]
    return f"; {len(waiting)} more may take a lost one's place ({', '.join(waiting[:5])})" if waiting else ""


def report(ended: Ended) -> int:
    """Return the exit code of ranks that are not started again; raises ExitError where none has said why."""
    if ended.code == Exit.DONE:
        return ended.code
    if not ended.error:
        raise ExitError(f"the ranks ended with code {ended.code}; their last lines are above", ended.code)
    write_termination_message(ended.error)  # a rank has printed it
    return ended.code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="trainyard mpi", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("worker", help="serve ssh for the launcher")
    launcher = commands.add_parser("launch", help="wait for the workers, then start the ranks")
    launcher.add_argument("--np", type=int, help="number of processes, over all nodes; default: one in every slot")
    launcher.add_argument("--spares", type=int, default=0, help="workers that wait for another one to be lost")
    launcher.add_argument(
        "--on-loss", choices=("wait", "end"), default="wait", help="of a worker: wait for the next, or end"
    )
    launcher.add_argument("--run-dir", type=Path, help="run directory, where a permanent failure is recorded")
    launcher.add_argument("rank_command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what each rank runs")
    ranks = commands.add_parser("rank", help="become a program of the user's, unless this pod's checks have failed")
    ranks.add_argument("rank_command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program")
    for name in ("orted", "stop", "settle"):
        internal = commands.add_parser(name)
        internal.add_argument("environment", type=Path)
        internal.add_argument("rest", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    no_core_dumps()
    if options.command == "orted":
        return start_daemon(options.environment, options.rest)
    if options.command == "stop":
        return pass_on_stop(options.environment)
    if options.command == "settle":
        return wait_for_earlier_ranks(options.environment)
    if options.command == "worker":
        transport.check()
        return log.keep_output(lambda: worker(Places.here()))
    command = options.rank_command[1:] if options.rank_command[:1] == ["--"] else options.rank_command
    if not command:
        raise UserError("nothing to run: give the ranks' command after --")
    if options.command == "rank":
        return become(command)
    process.end_on_sigterm()  # until mpirun runs: the workers may take minutes to come
    asked = Launch(options.np, options.spares, options.run_dir, options.on_loss)
    return log.keep_output(lambda: launch(asked, command, Places.here()))
