"""The launcher and worker of MPIJobs under a real mpirun, over ssh on this machine."""

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import patience, ports
from trainyard.core.exits import Exit
from trainyard.pod import mpi, mpi_hosts, mpi_ranks, process

pytestmark = pytest.mark.root

RANK = """
import contextlib, glob, os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
about = os.environ["OMPI_COMM_WORLD_RANK"], repr(os.environ.get("SECRET")), "SSH_CLIENT" in os.environ
daemon = os.getppid()  # of the same launcher
def meet(place):  # the other rank: mpirun kills it once one has failed
    open(f"{sys.argv[0]}.{place}-{daemon}-{about[0]}", "w").close()
    while len(glob.glob(f"{sys.argv[0]}.{place}-{daemon}-*")) < 2:
        time.sleep(0.05)
print("RANK", *about, flush=True)
alive = f"{sys.argv[0]}.alive-{daemon}"
if set(glob.glob(sys.argv[0] + ".alive-*")) - {alive}:
    print("TOO EARLY", flush=True)
open(alive, "w").close()
meet("begun")
for _ in range(int(sys.argv[1]) * 10):
    if stop:
        time.sleep(2)
        with contextlib.suppress(FileNotFoundError):  # both ranks have it
            os.unlink(alive)
        print("SAVED", flush=True)
        meet("saved")
        sys.exit(143)
    time.sleep(0.1)
sys.exit(int(sys.argv[2]))
"""
SSH = Path(mpi.__file__).parents[3] / "images/horovod/ssh"
SECRET = "two\nlines, 'quotes' and $HOME"


@pytest.fixture
def pod(tmp_path: Path) -> dict[str, str]:
    """Keys and settings as a pod has them, with a host that is this machine but counts as another."""
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd asks root for it
    port = ports.free()
    keys, me = tmp_path / "ssh", pwd.getpwuid(os.getuid()).pw_name
    keys.mkdir()
    # The files that mpi-operator mounts
    like_the_operators = ["-t", "ecdsa", "-b", "521", "-C", ""]
    subprocess.check_call(["ssh-keygen", "-q", *like_the_operators, "-N", "", "-f", str(keys / "id_rsa")])
    shutil.copy(keys / "id_rsa.pub", keys / "authorized_keys")
    for name in ("sshd_config", "ssh_config"):
        text = (SSH / name).read_text().replace("/home/trainer/.ssh", str(keys)).replace("Port 2222", f"Port {port}")
        text = text.replace("User trainer", f"User {me}").replace("AllowUsers trainer", f"AllowUsers {me}")
        own = "ListenAddress 127.0.0.2\nPermitRootLogin yes\n" if name == "sshd_config" else ""
        (tmp_path / name).write_text(own + text)
    (tmp_path / "hostfile").write_text("127.0.0.2 slots=2\n")
    (tmp_path / "rank.py").write_text(RANK)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": f"{Path(mpi.__file__).parents[2]}:{Path(mpi.__file__).parents[3]}",
        mpi_ranks.MARK: str(tmp_path / "private" / "environment"),
        "TRAINYARD_SSH_FOLDER": str(tmp_path),
        "TRAINYARD_HOSTFILE": str(tmp_path / "hostfile"),
        "TRAINYARD_WAIT_SECONDS": str(patience.IDLE),
        "TRAINYARD_GRACE_SECONDS": str(patience.IDLE),
        "TRAINYARD_TERMINATION_LOG": str(tmp_path / "none"),
        "OMPI_MCA_oob_tcp_if_include": "lo",
    }


def start(pod: dict[str, str], *arguments: str, **more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "trainyard", "mpi", *arguments]
    return subprocess.Popen(
        command, env=pod | more, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def read_until(process: "subprocess.Popen[str]", word: str, times: int) -> str:
    assert process.stdout is not None
    seen = ""
    while seen.count(word) < times:
        line = process.stdout.readline()
        assert line, f"ended early: {seen}"
        seen += line
    return seen


def wait_for_ssh(tmp_path: Path) -> None:
    """Wait until the worker serves ssh: it says that it does before sshd listens."""
    mpi_hosts.wait_for_ssh(["127.0.0.2"], mpi_hosts.ssh_port(tmp_path / "ssh_config"), patience.IDLE, 1)


def launch_ranks(pod: dict[str, str], tmp_path: Path, seconds: int, code: int) -> "subprocess.Popen[str]":
    rank = [sys.executable, str(tmp_path / "rank.py"), str(seconds), str(code)]
    return start(pod, "launch", "--np", "2", "--", *rank)


def test_ranks_get_the_workers_environment_and_their_code_comes_back(tmp_path: Path, pod: dict[str, str]) -> None:
    worker = start(pod, "worker", SECRET=SECRET)
    try:
        launcher = launch_ranks(pod, tmp_path, 0, 77)
        out = patience.communicate(launcher)[0]
        for rank in range(2):
            assert f"RANK {rank} {SECRET!r} False" in out
        assert launcher.returncode == 77, out
        assert "error: the ranks ended with code 77" in out
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(patience.IDLE) == 0


FAILING = """
import sys
from trainyard.core import exits
def main():
    raise exits.UserError("seed = x: no number\\nsecond line")
exits.guarded(main)
"""


@pytest.mark.parametrize("by", ["mpirun", "launcher"])
def test_an_error_of_all_ranks_is_shown_once(tmp_path: Path, pod: dict[str, str], by: str) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    (tmp_path / "none").touch()
    worker = start(pod, "worker")
    try:
        read_until(worker, "ssh is served", 1)  # mpirun does not wait for it; a SIGTERM before it listens would kill it
        failing = ["--np", "2", "--", sys.executable, str(tmp_path / "failing.py")]
        if by == "launcher":
            process = start(pod, "launch", *failing)
        else:
            root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            process = subprocess.Popen(
                ["mpirun", "--oversubscribe", "-np", "3", *failing[3:]], env=pod | root, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        out = patience.communicate(process)[0]
        assert process.returncode == 2, out
        assert (out.count("seed = x: no number"), out.count("second line")) == (1, 1), out
        assert (tmp_path / "none").read_text() == "seed = x: no number\nsecond line\n" if by == "mpirun" else True
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(patience.IDLE) == 0


@pytest.mark.parametrize("told", ["launcher", "worker"])
def test_ranks_save_before_they_end(tmp_path: Path, pod: dict[str, str], told: str) -> None:
    worker = start(pod, "worker", SECRET=SECRET)
    launcher = launch_ranks(pod, tmp_path, 600, 0)
    try:
        read_until(launcher, "RANK", 2)
        settling = start(pod, "settle", pod[mpi_ranks.MARK])  # what the next launcher asks for first
        with pytest.raises(subprocess.TimeoutExpired):
            settling.wait(1.5)
        os.kill(min(mpi_ranks.find(Path(pod[mpi_ranks.MARK]))), signal.SIGSTOP)  # as somebody does who looks at it
        (launcher if told == "launcher" else worker).send_signal(signal.SIGTERM)
        # Kubernetes makes the next launcher while this one still ends: its ranks must wait until the others have saved
        follower = launch_ranks(pod, tmp_path, 0, 0) if told == "launcher" else None
        if told == "worker":  # the launcher waits for another one
            assert read_until(launcher, "when all workers answer", 1).count("SAVED") == 2
            launcher.send_signal(signal.SIGTERM)
        out = patience.communicate(launcher)[0]
        assert out.count("SAVED") == (2 if told == "launcher" else 0), out
        assert settling.wait(patience.IDLE) == 0
        assert launcher.returncode == Exit.STOPPED
        if follower is not None:
            out = patience.communicate(follower)[0]
            assert follower.returncode == 0, out
            assert "TOO EARLY" not in out
    finally:
        launcher.kill()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(patience.IDLE) == 0
    assert mpi_ranks.find(Path(pod[mpi_ranks.MARK])) == set()


def test_without_a_number_of_processes_every_slot_has_one(tmp_path: Path, pod: dict[str, str]) -> None:
    worker = start(pod, "worker")
    try:
        launcher = start(pod, "launch", "--", sys.executable, str(tmp_path / "rank.py"), "0", "0")
        out = patience.communicate(launcher)[0]
        assert launcher.returncode == 0, out
        assert out.count("RANK") == 2
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(patience.IDLE) == 0


def die(pod: dict[str, str], worker: "subprocess.Popen[str]") -> None:
    """Kill a worker with its ranks and MPI's daemon, as the loss of its node does."""
    ranks = mpi_ranks.find(Path(pod[mpi_ranks.MARK]))
    daemons = {parent for pid, parent, *_ in mpi_ranks.processes() if pid in ranks}
    process.signal_all([*patience.family(worker.pid), *daemons, *ranks], signal.SIGKILL)
    worker.wait(patience.IDLE)


@pytest.mark.parametrize("loss", ["dies", "is deleted"])
def test_the_ranks_start_again_when_another_worker_takes_the_place_of_one_that(
    tmp_path: Path, pod: dict[str, str], loss: str
) -> None:
    """The launcher waits for it: Kubernetes' own retry of the launcher waits longer each time."""
    worker = start(pod, "worker")
    launcher = launch_ranks(pod, tmp_path, 600, 0)
    try:
        read_until(launcher, "RANK", 2)
        if loss == "dies":
            die(pod, worker)
        else:
            worker.send_signal(signal.SIGTERM)
        said = read_until(launcher, "start again in their pods when all workers answer", 1)
        assert "workers do not answer any more (127.0.0.2 (connection refused))" in said
        assert worker.wait(patience.IDLE) == (-signal.SIGKILL if loss == "dies" else 0)
        (tmp_path / "rank.py").write_text("print('AGAIN', flush=True)")
        worker = start(pod, "worker")
        out = patience.communicate(launcher)[0]
        assert launcher.returncode == 0, out
        assert out.count("AGAIN") == 2
    finally:
        launcher.kill()
        worker.send_signal(signal.SIGTERM)
        worker.wait(patience.IDLE)


def test_a_launcher_that_nobody_sends_another_worker_ends_when_one_is_lost(tmp_path: Path, pod: dict[str, str]) -> None:
    worker = start(pod, "worker")
    rank = [sys.executable, str(tmp_path / "rank.py"), "600", "0"]
    launcher = start(pod, "launch", "--np", "2", "--on-loss", "end", "--", *rank)
    try:
        read_until(launcher, "RANK", 2)
        die(pod, worker)
        out = patience.communicate(launcher)[0]
        assert launcher.returncode == Exit.HANG, out
        assert "error: 1 of 1 workers do not answer any more (127.0.0.2 (connection refused)), and mpirun ended" in out
    finally:
        launcher.kill()


SPARED = """
import os, sys, time
first = os.environ["OMPI_COMM_WORLD_RANK"] == "0"
if first and not os.path.exists(sys.argv[1]):
    print("AGAIN", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
if first and not os.path.exists(sys.argv[1] + ".failed"):
    open(sys.argv[1] + ".failed", "w").close()
    sys.exit(138)
"""


def test_a_spare_worker_takes_the_place_of_one_that_is_lost_and_keeps_it(tmp_path: Path, pod: dict[str, str]) -> None:
    (tmp_path / "hostfile").write_text("127.0.0.2 slots=2\n127.0.0.3 slots=2\n")
    shutil.copytree(tmp_path, tmp_path / "other")
    settings = (tmp_path / "sshd_config").read_text()
    (tmp_path / "other/sshd_config").write_text(settings.replace("127.0.0.2", "127.0.0.3"))
    worker = start(pod, "worker")
    wait_for_ssh(tmp_path)  # else the ranks may start on the other one; and both would write one environment at once
    spare = start(pod, "worker", TRAINYARD_SSH_FOLDER=str(tmp_path / "other"))
    rank = [sys.executable, str(tmp_path / "rank.py"), str(tmp_path / "go"), "0"]
    (tmp_path / "rank.py").write_text("import time; print('RANK', flush=True); time.sleep(600)")
    launcher = start(pod, "launch", "--np", "2", "--spares", "1", "--", *rank, PET_MAX_RESTARTS="1")
    try:
        said = read_until(launcher, "RANK", 2)
        assert "2 processes on 1 nodes; 1 more may take a lost one's place (127.0.0.3)" in said
        (tmp_path / "rank.py").write_text(SPARED)
        die(pod, worker)
        read_until(launcher, "AGAIN", 1)
        worker = start(pod, "worker")
        read_until(worker, "ssh is served", 1)
        (tmp_path / "go").touch()
        out = patience.communicate(launcher)[0]
        assert launcher.returncode == 0, out
        assert "2 processes on 1 nodes; 1 more may take a lost one's place (127.0.0.2)" in out
    finally:
        launcher.kill()
        for one in (worker, spare):
            one.send_signal(signal.SIGTERM)
            one.wait(patience.IDLE)


@pytest.mark.parametrize("by", ["SIGTERM", "SIGINT", "the end of its patience"])
def test_a_launcher_that_waits_for_a_lost_worker_ends_at_once_by(tmp_path: Path, pod: dict[str, str], by: str) -> None:
    worker = start(pod, "worker")
    codes = {"SIGTERM": Exit.STOPPED, "SIGINT": Exit.INTERRUPTED}
    more = {} if by in codes else {"TRAINYARD_WAIT_SECONDS": "1"}
    wait_for_ssh(tmp_path)  # the launcher has as little patience at its begin
    launcher = start(pod, "launch", "--np", "2", "--", sys.executable, str(tmp_path / "rank.py"), "600", "0", **more)
    try:
        read_until(launcher, "RANK", 2)
        die(pod, worker)
        read_until(launcher, "when all workers answer", 1)
        if by in codes:
            launcher.send_signal(signal.Signals[by])
        out = patience.communicate(launcher)[0]
        assert launcher.returncode == codes.get(by, Exit.HANG), out
        assert ("error: after 1 s 1 of 1 workers do not answer" in out) == (by not in codes)
    finally:
        launcher.kill()
        worker.wait(patience.IDLE)


COUNTED = """
import os, sys, time
from pathlib import Path
counted = Path(sys.argv[1], f"start-{os.getppid()}")  # each start has a daemon of its own
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    counted.touch()
while not counted.exists():  # mpirun kills the other rank once one has failed
    time.sleep(0.05)
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(("code", "starts"), [(138, 3), (77, 1), (201, 1)])
def test_ranks_that_may_recover_are_started_again_in_their_pods(
    tmp_path: Path, pod: dict[str, str], code: int, starts: int
) -> None:
    (tmp_path / "counted.py").write_text(COUNTED)
    (tmp_path / "starts").mkdir()
    worker = start(pod, "worker")
    try:
        rank = [sys.executable, str(tmp_path / "counted.py"), str(tmp_path / "starts"), str(code)]
        launcher = start(pod, "launch", "--np", "2", "--", *rank, PET_MAX_RESTARTS="2")
        out = patience.communicate(launcher)[0]
        assert launcher.returncode == code, out
        assert len(list((tmp_path / "starts").iterdir())) == starts, out
        assert out.count("they are started again in their pods") == starts - 1
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(patience.IDLE) == 0


def test_ranks_that_something_stops_at_each_start_are_left_to_the_jobs_back_off(
    tmp_path: Path, pod: dict[str, str]
) -> None:
    (tmp_path / "counted.py").write_text(COUNTED)
    (tmp_path / "starts").mkdir()
    worker = start(pod, "worker")
    try:
        rank = [sys.executable, str(tmp_path / "counted.py"), str(tmp_path / "starts"), str(Exit.STOPPED)]
        launcher = start(pod, "launch", "--np", "2", "--", *rank)
        out = patience.communicate(launcher)[0]
        assert launcher.returncode == Exit.HANG, out
        assert len(list((tmp_path / "starts").iterdir())) == 1 + mpi.BRIEF_STARTS, out
        assert "error: a worker was stopped, and mpirun ended with 143: look at" in out
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(patience.IDLE) == 0


def test_a_worker_without_the_jobs_key_is_refused(tmp_path: Path, pod: dict[str, str]) -> None:
    """Another process at a worker's address, with a host key of its own, gets no command and no rank."""
    other = tmp_path / "other"
    subprocess.check_call(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(other)])
    config = tmp_path / "sshd_config"
    config.write_text(re.sub(r"HostKey .*", f"HostKey {other}", config.read_text()))
    worker = start(pod, "worker", SECRET=SECRET)
    try:
        launcher = launch_ranks(pod, tmp_path, 0, 0)
        out = patience.communicate(launcher)[0]
        assert launcher.returncode not in (0, Exit.CONFIG), out
        assert "Host key verification failed" in out
        assert "RANK" not in out
    finally:
        worker.send_signal(signal.SIGTERM)
        said = patience.communicate(worker)[0]
    assert "Accepted" not in said


def test_workers_log_who_logs_in_and_no_probe(tmp_path: Path, pod: dict[str, str]) -> None:
    worker = start(pod, "worker")
    try:
        wait_for_ssh(tmp_path)  # connects and leaves, as the probe does
        launcher = launch_ranks(pod, tmp_path, 0, 0)
        assert "RANK" in patience.communicate(launcher)[0]
    finally:
        worker.send_signal(signal.SIGTERM)
        said = patience.communicate(worker)[0]
    assert re.search(r"Accepted publickey for \S+ from 127.0.0.1 port \d+ ssh2: ECDSA SHA256:", said), said
    assert "onnection" not in said


def test_worker_says_why_sshd_ended(tmp_path: Path, pod: dict[str, str]) -> None:
    (tmp_path / "sshd_config").write_text("NoSuchSetting yes\n")
    worker = start(pod, "worker")
    out = patience.communicate(worker)[0]
    assert worker.returncode == Exit.FAILED
    assert "sshd ended with code" in out


def test_launcher_waits_no_longer_than_told(tmp_path: Path, pod: dict[str, str]) -> None:
    launcher = start(pod, "launch", "--np", "2", "--", "true", TRAINYARD_WAIT_SECONDS="1")
    out = patience.communicate(launcher)[0]
    assert launcher.returncode == Exit.HANG
    assert re.search(r"after 1 s 1 of 1 workers do not answer on port \d+ \(127.0.0.2: connection refused\)", out)
