"""The launcher and worker of MPIJobs: their logic, and one real run over ssh on this machine."""

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests import patience, ports
from trainyard.core.exits import Exit, ExitError, UserError
from trainyard.pod import mpi, mpi_hosts, mpi_ranks, process


def places(folder: Path) -> mpi.Places:
    return mpi.Places(folder / "private" / "environment", folder, folder / "hostfile")


def write_hostfile(folder: Path, text: str) -> Path:
    path = folder / "hostfile"
    path.write_text(text)
    return path


# ---------------------------------------------------------------------------------------------- hosts


def test_hostfile_in_both_notations(tmp_path: Path) -> None:
    text = "# made by the operator\njob-worker-0.job.ns.svc slots=2\n\njob-worker-1.job.ns.svc:3\nplain\n"
    expected = {"job-worker-0.job.ns.svc": 2, "job-worker-1.job.ns.svc": 3, "plain": 1}
    assert mpi_hosts.read_hostfile(write_hostfile(tmp_path, text)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no host"),
        ("a slots=2\na slots=2\n", "line 2: a is named twice"),
        ("a slots=two\n", "expected `HOST slots=N`"),
    ],
)
def test_bad_hostfile_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        mpi_hosts.read_hostfile(write_hostfile(tmp_path, text))


def test_missing_hostfile(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mpi-operator mounts it"):
        mpi_hosts.read_hostfile(tmp_path / "hostfile")


@pytest.mark.parametrize(
    ("code", "error", "lost"),
    [
        (1, "", True),  # mpirun's own code may be one that nothing retries
        (138, "no progress for 60 s", True),
        (143, "", True),
        (1, "a program's own", False),
        (201, "the GPU failed", False),
        (2, "", False),
        (77, "", False),
        (0, "", False),
    ],
)
def test_a_worker_that_is_lost_is_named_unless_the_ranks_say_what_ended_them(code: int, error: str, lost: bool) -> None:
    named = mpi.lost_workers(mpi.Ended(code, error, False, 5), ["127.0.0.1"], ports.free())
    assert named == ("1 of 1 workers do not answer any more (127.0.0.1 (connection refused))" if lost else "")


def test_more_processes_than_slots(tmp_path: Path) -> None:
    mpi_hosts.check_slots({"a": 2, "b": 2}, 4, tmp_path)
    with pytest.raises(UserError, match=r"5 processes, but .* has 4 slots on 2 hosts"):
        mpi_hosts.check_slots({"a": 2, "b": 2}, 5, tmp_path)


def test_waiting_ends_when_all_answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(mpi_hosts, "SAY_EVERY", 0.0)

    def ask(host: str, _port: int) -> str:
        asked.append(host)
        return "" if host == "a" or asked.count(host) > 2 else "its name does not resolve"

    assert mpi_hosts.wait_for_ssh(["a", "b"], 2222, patience.IDLE, 2, ask) == ["a", "b"]
    assert asked.count("a") == 1
    assert "1 of 2 workers do not answer on port 2222 (b: its name does not resolve)" in capsys.readouterr().out


def test_no_more_hosts_are_waited_for_than_are_wanted() -> None:
    ask = lambda host, _port: "connection refused" if host == "a" else ""  # noqa: E731
    assert mpi_hosts.wait_for_ssh(["a", "b", "c", "d"], 2222, 0.0, 2, ask) == ["b", "c"]


def test_waiting_is_bounded() -> None:
    with pytest.raises(ExitError, match="b: connection refused") as caught:
        mpi_hosts.wait_for_ssh(["b"], 2222, 0.1, 1, lambda _host, _port: "connection refused")
    assert caught.value.code == Exit.HANG


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"code": "x"}', '{"message": "m"}', '{"code": 1e400}', "[" * 100_000]
)
def test_unreadable_note_is_no_failure(tmp_path: Path, content: str) -> None:
    (tmp_path / "failed.json").write_text(content)
    assert mpi_hosts.known_failure(tmp_path) is None


@pytest.mark.parametrize("code", [Exit.CONFIG, Exit.NAN])
def test_known_failure_ends_a_retry_of_the_same_job(tmp_path: Path, code: Exit) -> None:
    (tmp_path / "failed.json").write_text(f'{{"code": {code.value}, "message": "loss is NaN", "job": "run-1"}}')
    mpi_hosts.refuse_known_failure(tmp_path, "run-2")
    with pytest.raises(ExitError, match="loss is NaN") as caught:
        mpi_hosts.refuse_known_failure(tmp_path, "run-1")
    assert caught.value.code == code


def test_a_failure_that_came_of_files_is_left_to_the_ranks(tmp_path: Path) -> None:
    """They know by the settings which files these are, and whether they are as they were."""
    (tmp_path / "failed.json").write_text('{"code": 2, "message": "damaged", "job": "run-1", "inputs": "0123"}')
    mpi_hosts.refuse_known_failure(tmp_path, "run-1")


# ---------------------------------------------------------------------------------------------- environment


def test_environment_survives_as_it_is_and_stays_private(tmp_path: Path) -> None:
    path = tmp_path / "private" / "environment"
    odd = {"LINES": "one\ntwo\n", "QUOTES": "'a' \"b\" $HOME `c` \\", "EMPTY": "", "EQUALS": "a=b=c", "BYTES": "\udcff"}
    mpi_ranks.write_environment(path, {"OLD": "1"})
    mpi_ranks.write_environment(path, odd)
    assert mpi_ranks.read_environment(path) == odd
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_no_worker_here(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is `worker` running here"):
        mpi_ranks.read_environment(tmp_path / "environment")


# ---------------------------------------------------------------------------------------------- mpirun


@pytest.fixture
def fake_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "mpirun"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def test_mpirun_is_told_all_it_needs_and_no_secret(
    tmp_path: Path, fake_mpirun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "very-secret")
    monkeypatch.setenv("OMPI_MCA_btl", "tcp,self")
    command = mpi.mpirun_command(4, places(tmp_path), ["python", "-m", "trainers.hvd"])
    assert command[0] == str(fake_mpirun)
    assert command[-3:] == ["python", "-m", "trainers.hvd"]
    assert command[command.index("-np") + 1] == "4"
    assert "btl" not in command, "the user's own setting holds"
    assert command[command.index("pml") + 1] == "ob1"
    assert not any("very-secret" in part for part in command)


def test_mpirun_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="mpirun is not on PATH"):
        mpi.mpirun_command(4, places(tmp_path), ["true"])


def run_ranks(script: str, folder: Path) -> tuple[int, str]:
    """Run a script in place of mpirun; return its code and first error."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        ended = mpi.run_ranks(["sh", "-c", script], [], places(folder))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert not ended.stopped
    return ended.code, ended.error


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 77", 77), ("exit 138", 138), ("kill -9 $$", 137)])
def test_exit_codes_reach_the_caller(tmp_path: Path, script: str, code: int) -> None:
    assert run_ranks(script, tmp_path) == (code, "")


def test_first_error_of_the_ranks_becomes_the_pods_message(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = "echo step 1; echo 'half a lineerror: recipe is unknown' >&2; echo 'error: another'; exit 2"
    assert run_ranks(script, tmp_path) == (2, "recipe is unknown")
    assert "step 1" in capfd.readouterr().out


def test_an_error_of_several_nodes_is_passed_on_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = "for rank in 1 2 3; do echo step 1; echo 'error: seed = x: no number'; done; echo 'error: another'; exit 2"
    assert run_ranks(script, tmp_path) == (2, "seed = x: no number")
    lines = capfd.readouterr().out.splitlines()
    assert lines == ["step 1", "error: seed = x: no number", "step 1", "step 1", "error: another"]


def test_output_without_line_breaks_is_printed_in_pieces(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi, "LONGEST_LINE", 4)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb", buffering=0) as rank:
        thread = threading.Thread(target=mpi.pass_on_output, args=(stream, []))
        thread.start()
        rank.write(b"12345678")
        seen: list[str] = []
        patience.wait("nothing is printed", lambda: seen.append(capfd.readouterr().out) or "".join(seen) == "12345678",
                      patience.still)  # fmt: skip
        rank.close()
        thread.join()


@pytest.mark.parametrize(
    ("how", "place", "rank", "found"),
    [
        ({"process_group": 0}, "environment", "0", True),
        ({"process_group": 0}, "environment2", "0", False),  # of another worker
        ({"process_group": 0}, "environment", None, False),
        ({}, "environment", "0", False),  # a rank's own process, which ends with it
        ({"start_new_session": True}, "environment", "0", False),  # one that shall go on
    ],
)
def test_a_rank_whose_daemon_was_killed_is_found(
    tmp_path: Path, how: dict[str, Any], place: str, rank: str | None, found: bool
) -> None:
    env = {mpi_ranks.MARK: str(tmp_path / place)} | ({} if rank is None else {mpi_ranks.RANK: rank})
    with subprocess.Popen(["/bin/sleep", "3600"], env=env, **how) as process:
        try:
            assert (mpi_ranks.find(tmp_path / "environment") == {process.pid}) is found
        finally:
            process.kill()


# ---------------------------------------------------------------------------------------------- for real

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
    if not (shutil.which("mpirun") and shutil.which("ssh") and Path("/usr/sbin/sshd").exists()):
        pytest.skip("no OpenMPI or sshd here: hack/bootstrap mpi installs them")
    if os.getuid() == 0:
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
    write_hostfile(tmp_path, "127.0.0.2 slots=2\n")
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
    write_hostfile(tmp_path, "127.0.0.2 slots=2\n127.0.0.3 slots=2\n")
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


@pytest.mark.parametrize(
    ("hosts", "spares", "words"),
    [
        ("a slots=2\nb slots=2\n", 2, "--spares is 2, and .* names 2 hosts"),
        ("a slots=2\nb slots=2\n", -1, "--spares is -1"),
        ("a slots=2\nb slots=3\n", 1, "have different slots"),
    ],
)
def test_spare_workers_that_cannot_be(tmp_path: Path, hosts: str, spares: int, words: str) -> None:
    path = write_hostfile(tmp_path, hosts)
    with pytest.raises(UserError, match=words):
        mpi_hosts.count_wanted(mpi_hosts.read_hostfile(path), spares, path)


def test_a_spare_worker_takes_the_place_of_one_whose_gpu_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = mpi.Places(tmp_path / "pod/environment", tmp_path, write_hostfile(tmp_path, "a slots=2\nb slots=2\nc:2\n"))
    failures = iter(["rank 3: a GPU failed: Xid 79", "rank 3: a GPU failed: Xid 48"])
    started: list[str] = []

    def run(_command: list[str], hosts: list[str], _places: mpi.Places) -> mpi.Ended:
        assert list(mpi_hosts.read_hostfile(places.chosen)) == sorted(hosts)
        started.extend(hosts)
        return mpi.Ended(Exit.DEVICE, next(failures), False, 600.0)

    monkeypatch.setattr(mpi, "run_ranks", run)
    monkeypatch.setattr(mpi, "on_all", lambda *_: None)
    monkeypatch.setattr(mpi, "mpirun_command", lambda *_: [])
    monkeypatch.setattr(mpi_hosts, "wait_for_ssh", lambda hosts, _port, _seconds, wanted: hosts[:wanted])
    assert mpi.launch(mpi.Launch(4, 1, None, "wait"), ["train"], places) == Exit.DEVICE  # no other is left
    assert started == ["a", "b", "a", "c"]
    assert "a GPU of b failed; the ranks start again on the other workers" in capsys.readouterr().out


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


# ---------------------------------------------------------------------------------------------- programs of the user's


def become(*command: str, **env: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "trainyard", "mpi", "rank", "--", *command]
    return patience.run(line, env={**os.environ, **env})


def test_a_rank_becomes_the_users_program_unless_its_pods_checks_have_failed(tmp_path: Path) -> None:
    note = tmp_path / "preflight-failed"
    done = become("sh", "-c", "echo rank; exit 7", TRAINYARD_PREFLIGHT=str(note))
    assert (done.returncode, done.stdout) == (7, "rank\n")
    note.write_text('{"message": "the storage does not answer", "code": 200}')
    done = become("sh", "-c", "echo rank", TRAINYARD_PREFLIGHT=str(note))
    assert (done.returncode, done.stdout) == (200, "")
    assert "error: the storage does not answer" in done.stderr


def test_a_program_that_the_image_lacks_is_named_with_a_code_that_is_not_retried() -> None:
    done = become("no-such-program", "--epochs", "4")
    assert done.returncode == 2
    assert "error: no-such-program is not in this image: global.training.command starts with" in done.stderr
