"""The launcher, part by part."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import ROOT, environment
from forked import Forker

from tests import patience
from trainyard.core import exits
from trainyard.pod import launcher
from trainyard.pod.launcher import exit_code, explain_silent_exits


def test_launchers_exit_code_is_the_one_that_says_most() -> None:
    assert exit_code({0: (138, 1), 1: (77, 2)}) == 77
    assert exit_code({0: (1, 2), 1: (-9, 1)}) == 137
    assert exit_code({0: (-15, 1), 1: (138, 1), 2: (1, 5)}) == 1
    assert exit_code({0: (143, 1), 1: (143, 1)}) == 143
    assert exit_code({0: (-15, 1)}) == 143
    assert exit_code({}) == 1
    # NCCL aborts a process that waits for the one whose GPU failed
    assert exit_code({0: (-6, 1), 1: (201, 5)}) == 201
    assert exit_code({0: (-6, 1), 1: (1, 5)}) == 1
    assert exit_code({0: (-6, 1)}) == 134


def test_sigterm_ends_it_while_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time\nprint('importing', flush=True)\nwhile True: time.sleep(0.1)\n")
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    process = subprocess.Popen(
        [sys.executable, "-m", "trainyard", "launch", "-m", "trainers.ddp"], cwd=ROOT, env=env, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGTERM)
        patience.communicate(process)
        # the code of a handler: a container's first process would not even see a signal without one
        assert process.returncode == 143
    finally:
        process.kill()


def test_under_nohup_a_closed_terminal_ends_nothing(tmp_path: Path) -> None:
    program, begun, end = tmp_path / "program.py", tmp_path / "begun", tmp_path / "end"
    program.write_text(
        f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\n"
        f"while not pathlib.Path({str(end)!r}).exists(): time.sleep(0.01)\n"
    )
    command = ["nohup", sys.executable, "-m", "trainyard", "launch", "--nproc-per-node", "1", str(program)]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip

    def ignores() -> bool:  # again, after torch's agent has begun to handle it, which it does before the program begins
        if not begun.exists():
            return False
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        ignored = next(line for line in lines if line.startswith("SigIgn:")).split()[1]
        return bool(int(ignored, 16) >> (signal.SIGHUP - 1) & 1)

    try:
        patience.wait("it handles SIGHUP", ignores, lambda: patience.processor_seconds(process.pid))
        process.send_signal(signal.SIGHUP)
        end.touch()
        output, _ = patience.communicate(process)
        assert process.returncode == 0, output
    finally:
        process.kill()


def test_a_pod_that_lost_another_ends_after_it_so_that_the_cause_is_seen_first(forker: Forker, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, time\nprint('ended', time.time(), flush=True)\nos._exit(138)\n")
    code = (
        "import os, sys, time\nfrom trainyard.pod import launcher\ncode = launcher.main(sys.argv[1:])\n"
        "print('left', time.time(), code, flush=True)\nos._exit(0)\n"
    )
    command = [sys.executable, "-c", code, "--nproc-per-node", "1", str(program)]
    done = forker.run(command, cwd=ROOT, env={**environment(), "TRAINYARD_JOB": "demo"})
    said = dict(line.split()[:2] for line in done.stdout.splitlines() if line.startswith(("ended", "left")))
    assert done.stdout.split()[-1] == "138", done.stderr
    assert float(said["left"]) - float(said["ended"]) >= launcher.CAUSE_SECONDS


def test_a_spare_pod_whose_checks_fail_for_good_ends_with_a_code_that_is_tried_again(tmp_path: Path) -> None:
    """Its container starts after the checks, and finds their note."""
    note, program = tmp_path / "failed.json", "from trainyard.pod import launcher, peers\npeers.AGAIN = 0.0\n"
    note.write_text('{"message": "/data is empty", "code": 2}')
    program += "peers._others_train = lambda environ, host: True\nlauncher.main([])\n"
    command = [sys.executable, "-c", f"from trainyard.core.exits import guarded\nguarded(lambda: exec({program!r}))"]
    done = patience.run(command, cwd=ROOT, env={**environment(), "TRAINYARD_PREFLIGHT": str(note)})
    assert done.returncode == 138, done.stderr
    assert "error: /data is empty\npreflight: the other pods train without this one" in done.stderr


def launched(forker: Forker, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run the launcher to its end, in a process that has loaded torch already."""
    return forker.run([sys.executable, "-m", "trainyard", "launch", *words], cwd=ROOT, env=environment(env))


def test_a_stopped_process_is_told_to_end_as_the_others_are(forker: Forker, tmp_path: Path) -> None:
    told, program = tmp_path / "told", tmp_path / "program.py"
    program.write_text(
        "import os, pathlib, signal, sys, time\n"
        f"stopped, told = pathlib.Path({str(tmp_path / 'stopped')!r}), pathlib.Path({str(told)!r})\n"
        "if os.environ['RANK'] == '1':\n"
        "    signal.signal(signal.SIGTERM, lambda *_: (told.touch(), os._exit(143)))\n"
        "    stopped.write_text(f'{os.getpid()}.')\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    while True: time.sleep(0.1)\n"  # a handler that runs just before a long sleep is called after it
        "while not stopped.exists() or not stopped.read_text().endswith('.'): time.sleep(0.01)\n"
        "state = pathlib.Path('/proc', stopped.read_text()[:-1], 'stat')\n"
        "while state.read_text().rpartition(')')[2].split()[0] != 'T': time.sleep(0.01)\n"
        "os._exit(77)\n"
    )
    done = launched(forker, "--nproc-per-node", "2", str(program), TRAINYARD_GRACE_SECONDS="60")
    assert done.returncode == 77, done.stderr
    assert told.exists()  # else it would have been killed after all of the grace period


def test_processes_leave_no_core_dumps_and_record_their_collectives(forker: Forker, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, resource\nprint(resource.getrlimit(resource.RLIMIT_CORE)[0], os.environ['TORCH_FR_BUFFER_SIZE'])\n"
    )
    code = (
        "import resource, sys\nfrom trainyard.core.exits import guarded\nfrom trainyard.pod import launcher\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (1000000, 1000000))\nguarded(lambda: launcher.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "--nproc-per-node", "1", str(program)]
    done = forker.run(command, cwd=ROOT, env=environment())
    assert done.stdout.splitlines()[-1:] == ["0 2000"], done.stderr


def test_an_error_of_all_processes_is_shown_once_and_nothing_else(forker: Forker, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib, signal, sys, time\nfrom trainyard.core import exits\n"
        f"here, me, agent = pathlib.Path({str(tmp_path)!r}), os.environ['RANK'], os.getppid()\n"
        "(here / me).write_text(f'{os.getpid()}.')\n"
        "pids = lambda: [path.read_text()[:-1] for path in map(here.joinpath, '0123') if path.exists()]\n"
        "state = lambda pid: pathlib.Path('/proc', pid, 'stat').read_text().rpartition(')')[2].split()[0]\n"
        "if me == '3':\n"
        "    while len(list(filter(None, pids()))) < 4: time.sleep(0.01)\n"
        "    os.kill(agent, signal.SIGSTOP)\n"  # it would end those that fail after it has looked
        "    if os.fork() == 0:\n"
        "        while set(map(state, pids())) != {'Z'}: time.sleep(0.01)\n"
        "        os.kill(agent, signal.SIGCONT)\n        os._exit(0)\n"
        "    (here / 'last').touch()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "def main():\n"
        "    while not (here / 'last').exists(): time.sleep(0.01)\n"
        "    raise exits.UserError('seed = x: no number')\n"
        "exits.guarded(main)\n"
    )
    done = launched(forker, "--nproc-per-node", "4", str(program))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: seed = x: no number", "error: rank 3 was ended by SIGKILL, as the kernel does where memory is short",
    ]  # fmt: skip


def test_each_attempt_shows_its_errors_and_each_error_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*texts: str) -> list[str]:
        for text in texts:
            exits.show_once(text)
        return capsys.readouterr().err.splitlines()

    (tmp_path / "said").touch()
    monkeypatch.setenv(exits.SAID, str(tmp_path / "said"))
    assert shown("a", "b", "a", "b") == ["error: a", "error: b"]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert shown("a", "a") == ["error: a"]
    monkeypatch.setenv(exits.SAID, str(tmp_path / "gone"))
    assert shown("a", "a") == ["error: a", "error: a"]


def test_an_error_is_noted_only_when_it_has_been_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process that was to show it may be ended because of another one, which has found the note."""
    (tmp_path / "said").touch()
    monkeypatch.setenv(exits.SAID, str(tmp_path / "said"))
    with monkeypatch.context() as ended:
        ended.setattr(exits, "_show", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            exits.show_once("a")
    for _ in range(2):
        exits.show_once("a")
    assert capsys.readouterr().err == "error: a\n"


def test_processes_that_could_not_say_why_they_ended_are_named() -> None:
    assert explain_silent_exits({0: (2, 1), 1: (77, 1), 2: (-15, 1), 3: (0, 1)}) == []
    assert explain_silent_exits({5: (3, 1), 2: (-11, 1), 6: (-40, 1)}) == [
        "rank 2 was ended by SIGSEGV", "rank 5 ended with code 3", "rank 6 was ended by signal 40",
    ]  # fmt: skip


def test_a_program_of_the_users_runs_on_every_rank_and_one_that_ends_by_itself_is_not_counted(
    forker: Forker, tmp_path: Path
) -> None:
    """It says nowhere that it has connected: its first minutes count, so that lost nodes over weeks do not."""
    said = 'echo "rank $RANK of $WORLD_SIZE"; echo "notes $TORCHELASTIC_ERROR_FILE"; '
    said += f"ls {tmp_path}/run/*; touch {tmp_path}/$RANK"
    # the second one's failure ends the first one, which may be late
    program = f"{said}; while [ ! -e {tmp_path}/0 ]; do sleep 0.05; done; exit $((RANK * 3))"
    options = ["--nproc-per-node", "2", "--no-python", "sh", "-c", program, "--config", "its-own.json"]
    done = launched(forker, *options, TRAINYARD_JOB="demo", TRAINYARD_LOGS=str(tmp_path / "run" / "logs"))
    assert done.returncode == 3, done.stderr
    assert {"rank 0 of 2", "rank 1 of 2"} <= set(done.stdout.splitlines())
    notes = re.findall(r"(?m)^notes (\S+)/[^/]+/attempt_0/\d/error.json$", done.stdout)
    assert notes
    assert not Path(notes[0]).exists(), "of torch's, in /tmp"
    assert re.search(r"(?m)^launch-\S+\.note$", done.stdout)
    assert list((tmp_path / "run" / "restarts").iterdir()) == []


@pytest.mark.parametrize(("program", "notes"), [("true", 1), ("false", 0)])
def test_a_program_of_the_users_that_has_ended_leaves_a_note_for_spare_pods(
    forker: Forker, tmp_path: Path, program: str, notes: int
) -> None:
    env = {"TRAINYARD_JOB": "demo", "TRAINYARD_LOGS": str(tmp_path / "run" / "logs"), "TRAINYARD_SPARES": "1"}
    launched(forker, "--nproc-per-node", "1", "--no-python", program, **env)
    assert len(list((tmp_path / "run" / "restarts").glob("ended-*.note"))) == notes


def test_a_pod_that_ends_says_why_and_waits_for_no_process_that_goes_on_at_sigterm(tmp_path: Path) -> None:
    """As the one that keeps the logs does, which ends after all others."""
    (tmp_path / "note").touch()
    program = """
import subprocess, sys
from trainyard.pod import process
goes_on = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(3600)"
child = subprocess.Popen([sys.executable, "-c", goes_on], stdout=subprocess.PIPE)
child.stdout.readline()
process.end_with_children(138, 3600, "the first pod was replaced")
"""
    env = environment({"TRAINYARD_TERMINATION_LOG": str(tmp_path / "note")})
    ended = patience.run([sys.executable, "-c", program], cwd=ROOT, env=env)
    assert ended.returncode == 138, ended.stderr
    assert ended.stderr == "error: the first pod was replaced\n"
    assert (tmp_path / "note").read_text() == "the first pod was replaced\n"
