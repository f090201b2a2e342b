"""Machines that lack what most have (odd_places.py): programs work there, or end with 2 and the remedy in one line."""

import errno
import json
import os
import resource
import subprocess
from pathlib import Path

import odd_places
import pytest
from conftest import Trainer, picture

from tests import patience
from trainyard import native
from trainyard.cluster import connection
from trainyard.core import exits, files
from trainyard.core.exits import Exit, UserError
from trainyard.core.storage import storage
from trainyard.shards import reader
from trainyard.training import compiled

PLACES = ("stranger", "without_shm", "tiny_shm", "read_only", "missing_tmp", "full_tmp", "plain_locale")


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    output, _ = patience.communicate(process)
    if process.returncode == odd_places.UNABLE:
        pytest.skip(f"no such place can be made here: {output}")
    return process.returncode, output


def at(trainer: Trainer, place: str, kept: Path, *words: str, forked: bool = True) -> tuple[int, str]:
    """Run a module in a place where only `kept` can be written, if anything is said of that."""
    kept.mkdir(exist_ok=True)
    env = {"KEPT": str(kept)}
    return ended(trainer.python("-m", "odd_places", place, *words, env=env, forked=forked))


def options(trainer: Trainer, run: Path) -> list[str]:
    (base := run.parent / "base.yaml").parent.mkdir(exist_ok=True)
    base.write_text("{}\n")
    over = {"epochs": None, "max_steps": 1, "schedule.warmup_epochs": 0, "batch.global": 58, "validate.batch": 512}
    settings = trainer.settings(run, **over)
    return ["--config", str(base), *(f"--set={key}={json.dumps(value)}" for key, value in settings.items())]


@pytest.mark.parametrize("place", PLACES)
def test_training_and_prediction_work(trainer: Trainer, tmp_path: Path, place: str) -> None:
    kept = tmp_path / "kept"
    code, output = at(trainer, place, kept, "trainers.ddp", *options(trainer, kept / "run"))
    assert code == 0, output
    pictures = kept / "pictures"
    pictures.mkdir()
    (pictures / "a.jpg").write_bytes(picture(0, 1))
    words = ["--model", str(kept / "run"), "--data", str(pictures), "--out", str(kept / "out"), "--device", "cpu"]
    code, output = at(trainer, place, kept, "trainyard", "predict", *words)
    assert code == 0, output
    assert (kept / "out" / "predictions.csv").exists()


@pytest.mark.parametrize("place", ["stranger", "read_only"])
def test_a_preparation_works(trainer: Trainer, tmp_path: Path, place: str) -> None:
    kept = tmp_path / "kept"
    for split in ("train", "val"):
        (folder := kept / "source" / split / "one").mkdir(parents=True)
        (folder / "a.jpg").write_bytes(picture(0, 1))
    source = ("--set=source.kind=path", f"--set=source.path={kept / 'source'}", "--set=layout=imagefolder")
    words = ("trainyard", "prepare", "build", *source, f"--set=out={kept / 'data'}", "--set=workers=1")
    code, output = at(trainer, place, kept, *words)
    assert code == 0, output
    assert (kept / "data" / "manifest.json").exists()


def test_the_sample_set_needs_a_home(trainer: Trainer, tmp_path: Path) -> None:
    run = options(trainer, tmp_path / "kept" / "run")
    code, output = at(trainer, "stranger", tmp_path / "kept", "trainers.ddp", *run, '--set=data.dir="sample"')
    said = "there is no home: HOME is not set, and uid 123456 has no entry in /etc/passwd; set HOME or TRAINYARD_CACHE"
    assert (code, said in output, "Traceback" in output) == (2, True, False), output


def test_a_launcher_without_a_place_for_temporary_files_says_so(trainer: Trainer, tmp_path: Path) -> None:
    launched = ("trainyard", "launch", "--nproc-per-node", "1", "-m", "trainers.ddp")
    run = options(trainer, tmp_path / "kept" / "run")
    code, output = at(trainer, "read_only", tmp_path / "kept", *launched, *run)
    assert code == 2, output
    assert "temporary files can be written nowhere; set TMPDIR to a folder that can be written (" in output
    assert "Traceback" not in output


def test_too_few_open_files_are_named_and_not_retried(trainer: Trainer, tmp_path: Path) -> None:
    run = options(trainer, tmp_path / "kept" / "run")
    code, output = at(trainer, "few_files", tmp_path / "kept", "trainers.ddp", *run)
    assert (code, "retried" in output, "Traceback" in output) == (2, False, False), output
    assert "too many open files: this process may open 6 (6 at most); raise the limit (`ulimit -n 65536`" in output
    assert "failed.json" not in output, "what cannot be recorded either is not what is said"


def test_a_split_with_more_shards_than_may_be_open_is_refused() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(UserError, match=r"^train: too many open files: this process may open .*`ulimit -n 65536`"):
        reader._allow_open_files(hard, "train")
    reader._allow_open_files(min(hard // 2, 500), "train")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("number", exits.LIMITS)
def test_a_limit_of_open_files_is_no_fault_of_storage(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither at the first look nor while storage is waited for."""
    faults = [errno.EIO, number]

    def fails() -> None:
        raise OSError(faults.pop(0), "x")

    with pytest.raises(UserError, match=r"shard: too many open files: .*fs\.file-max"):
        storage.recover("shard", fails)
    faults[:] = [number]
    capsys.readouterr()
    with pytest.raises(UserError, match="too many open files"):
        storage.recover("shard", fails)
    assert not capsys.readouterr().err
    for error in (OSError(number, "Too many open files"), RuntimeError("gloo/x.cc: socket: Too many open files")):
        assert (exits.cause_of(error).name, exits.cause_of(error).code) == ("files", Exit.CONFIG)


def test_a_user_without_a_name_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch asks for it; a name that is there stays."""
    import pwd

    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setenv("USER", "ada")
    compiled.name_user()
    assert os.environ["USER"] == "ada"
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME", "HOME", "TRAINYARD_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    compiled.name_user()
    assert os.environ["USER"] == f"uid-{os.getuid()}"
    assert files.home() is None
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(connection, "ROOT", tmp_path)
    assert connection.kubeconfig() == "/.kube/config", "which is not there, and that is said"
    assert native.library_path() is None or native.library_path() == native.HERE / "jpeg.so"
