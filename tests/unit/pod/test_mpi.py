"""The launcher and worker of MPIJobs: their logic; test_mpi_over_ssh.py runs them."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests import patience, ports
from trainyard.core.exits import Exit, ExitError, UserError
from trainyard.pod import mpi, mpi_hosts, mpi_ranks


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


# ---------------------------------------------------------------------------------------------- spare workers


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
