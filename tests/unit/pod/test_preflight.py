import errno
import json
import math
import os
import shutil
import subprocess
import sys
import types

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests import patience
from trainyard.core.exits import ExitError, UserError, end_on_failed_preflight
from trainyard.pod import gpus, preflight
from trainyard.run import checkpoint
from trainyard.shards import heartbeat, manifest


@pytest.fixture
def clock(monkeypatch):
    """Preflight's clock, whose time passes only as it sleeps: the seconds now, and what happens in each sleep."""
    now, meanwhile = [0.0], []

    def sleep(seconds):
        now[0] += seconds
        for happens in meanwhile:
            happens()

    monkeypatch.setattr(preflight, "time", types.SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return types.SimpleNamespace(now=now, meanwhile=meanwhile)


def test_all_is_well(prepared, tmp_path, capsys):
    results = tmp_path / "runs" / "one"
    assert preflight.main(["--data", str(prepared), "--results", str(results), "--shm", "4096"]) == 0
    said = capsys.readouterr().out
    assert "300 train samples, 90 val samples, 3 classes" in said
    assert list(tmp_path.iterdir()) == []


def test_it_starts_fast_and_without_torch(prepared):
    script = (
        f"import sys; from trainyard.pod import preflight; preflight.main(['--data', {str(prepared)!r}]); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'pydantic', 'requests')))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_it_waits_in_words_until_the_manifest_is_there(prepared, tmp_path, capsys, clock):
    out = tmp_path / "little"

    def prepare():
        if out.exists():
            shutil.copy(prepared / "manifest.json", out)
        else:
            shutil.copytree(prepared, out, ignore=shutil.ignore_patterns("manifest.json"))

    clock.meanwhile.append(prepare)
    assert preflight.main(["--data", str(out), "--timeout", "60", "--every", "1"]) == 0
    assert clock.now == [2.0]
    said = capsys.readouterr().out
    assert "the preparation has not started" in said
    assert "3 shards are finished" in said


def test_it_waits_in_words_for_the_weights_that_the_settings_name(tmp_path, capsys, clock):
    folder = tmp_path / "weights" / "resnet50-IMAGENET1K_V1"
    settings = {"recipe": "finetune", "data": {"dir": str(tmp_path / "pets")}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"these weights are not in .*trainyard prepare weights.*waited \d+ s"):
        preflight.main(["--weights", str(path), "--timeout", "0.2", "--every", "0.1"])

    def appear():
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"trainyard": {"file": "model.pth"}}))

    clock.meanwhile.append(appear)
    assert preflight.main(["--weights", str(path), "--timeout", "60", "--every", "0.1"]) == 0
    said = capsys.readouterr().out
    assert f"waiting for the weights in {folder}" in said
    assert f"weights: {folder / 'model.pth'}" in said
    path.write_text(json.dumps({**settings, "model": {"pretrained": "/data/mine.pth"}}))
    assert preflight.main(["--weights", str(path), "--timeout", "0"]) == 0


def test_a_run_that_resumes_waits_for_no_weights(tmp_path, capsys):
    settings = {"recipe": "finetune", "data": {"dir": str(tmp_path / "pets")}, "run": {"dir": str(tmp_path / "run")}}
    path = tmp_path / "config.json"
    checkpoint.save(tmp_path / "run" / "checkpoints", 5, {"model": {}}, {"config": settings})
    path.write_text(json.dumps(settings))
    assert preflight.main(["--weights", str(path), "--timeout", "0"]) == 0
    assert "not needed: the run resumes from a checkpoint" in capsys.readouterr().out
    path.write_text(json.dumps({**settings, "resume": "never"}))
    with pytest.raises(UserError, match="these weights are not in"):
        preflight.main(["--weights", str(path), "--timeout", "0"])


def test_waiting_is_bounded_and_ends_2_with_one_line(tmp_path):
    log = tmp_path / "termination"
    log.touch()
    line = [sys.executable, "-m", "trainyard", "preflight", "--data", str(tmp_path / "x"), "--timeout", "0.3"]
    environment = {**os.environ, "TRAINYARD_TERMINATION_LOG": str(log)}
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "did not appear within 0 s" in done.stderr
    assert "dataset's Job" in done.stderr
    assert log.read_text().strip() == done.stderr.strip().removeprefix("error: ")


def test_in_a_queue_it_waits_only_while_somebody_prepares(prepared, tmp_path, clock):
    """Otherwise trainers would hold the quota that the preparation needs."""
    now, meanwhile = clock.now, clock.meanwhile
    out = tmp_path / "little"
    wait = ["--data", str(out), "--timeout", "60", "--idle", "3"]
    with pytest.raises(UserError, match=r"nobody has prepared .* for 3 s .*the folder is not there yet.*upgrade its"):
        preflight.main(wait)
    shutil.copytree(prepared, out, ignore=shutil.ignore_patterns("manifest.json"))

    def prepare():
        before = heartbeat.signs(out)
        patience.wait("a heartbeat", lambda: heartbeat.signs(out) != before, patience.still)
        if now[0] > began + 10:
            shutil.copy(prepared / "manifest.json", out)

    began = now[0]
    with heartbeat.beating(out, 0.05):
        meanwhile.append(prepare)
        assert preflight.main(wait) == 0
    assert 10 < now[0] - began < 12
    meanwhile.clear()
    (out / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"nobody has prepared .*3 shards are finished"):
        preflight.main(wait)


def test_shards_that_appear_are_a_sign_too(prepared, tmp_path):
    shutil.copytree(prepared / "train", tmp_path / "train", ignore=shutil.ignore_patterns("*00001.tar"))
    before = heartbeat.signs(tmp_path)
    assert heartbeat.signs(tmp_path) == before
    shutil.copy(prepared / "train" / "shard-00001.tar", tmp_path / "train")
    assert heartbeat.signs(tmp_path) != before


def test_a_preparation_may_end_while_its_shards_are_counted(prepared, tmp_path, monkeypatch):
    out, scandir = tmp_path / "little", os.scandir
    shutil.copytree(prepared, out)
    (out / manifest.WORK).mkdir(exist_ok=True)

    def ending(folder):
        if folder == out / manifest.WORK:
            shutil.rmtree(folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", ending)
    assert preflight.progress(out) == "3 shards are finished"
    assert heartbeat.signs(out)[1] == 3


def test_a_failure_is_handed_to_the_main_container_where_that_is_asked_for(tmp_path, monkeypatch):
    handover = tmp_path / "preflight-failed"
    handover.write_text("from an earlier start")
    monkeypatch.setenv("TRAINYARD_PREFLIGHT", str(handover))
    assert preflight.main(["--data", str(tmp_path / "x"), "--timeout", "0.1"]) == 0
    note = json.loads(handover.read_text())
    assert (note["code"], note["message"].partition(" did not appear")[0]) == (2, f"{tmp_path}/x/manifest.json")
    assert preflight.main([]) == 0
    assert not handover.exists()


def test_a_shard_of_the_wrong_size_is_named(prepared, tmp_path):
    out = tmp_path / "little"
    shutil.copytree(prepared, out)
    os.truncate(out / "train/shard-00001.tar", 1024)
    with pytest.raises(UserError, match=r"shard-00001.tar has 1,024 bytes instead of .*prepar"):
        preflight.main(["--data", str(out)])


def test_shared_memory_and_space_that_are_too_small(tmp_path):
    with pytest.raises(UserError, match=r"instead of .* GiB: mount a memory-backed emptyDir"):
        preflight.check_shared_memory(tmp_path, 1 << 60)
    with pytest.raises(UserError, match="free space or enlarge the claim"):
        preflight.check_results(tmp_path, 1 << 60)


def test_results_that_cannot_be_written_name_the_user(tmp_path, monkeypatch):
    def refuse(self, mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(preflight.Path, "open", refuse)
    with pytest.raises(UserError, match=rf"cannot be written as uid {os.getuid()}.*fsGroup"):
        preflight.check_results(tmp_path / "runs" / "one", 0)


def test_missing_gpus_are_counted(monkeypatch):
    cuda = types.SimpleNamespace(device_count=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    with pytest.raises(UserError, match="2 GPUs can be used here instead of 99"):
        gpus.check(99, 0)


class Broken(TorchFunctionMode):
    """Torch on a device that fails, or computes wrong."""

    def __init__(self, error=None):
        super().__init__()
        self.error = error

    def __torch_function__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        if function is not torch.Tensor.__matmul__ and function is not torch.Tensor.matmul:
            return result
        if self.error:
            raise self.error
        result[3, 5] += 1
        return result


def test_a_gpu_must_compute_and_compute_right():
    gpus.try_device(torch.device("cpu"))
    with Broken(), pytest.raises(ExitError, match=r"cpu on .* computes wrong numbers.*cordon") as caught:
        gpus.try_device(torch.device("cpu"))
    assert caught.value.code == 201
    failed = torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")
    with Broken(failed), pytest.raises(ExitError, match=r"cannot compute .*ECC.*nvidia-smi -q") as caught:
        gpus.try_device(torch.device("cpu"))
    assert caught.value.code == 201
    unfit = RuntimeError("CUDA error: no kernel image is available for execution on the device")
    with Broken(unfit), pytest.raises(UserError, match="the image does not fit the node's GPU or driver"):
        gpus.try_device(torch.device("cpu"))


CHUNK = 4096


def test_memory_that_keeps_what_is_written_is_told(monkeypatch):
    text = gpus.try_memory(torch.device("cpu"), 10 * CHUNK + 100, patience.IDLE, CHUNK)
    assert text.startswith("memory: 0.0 GiB written and compared in ")
    assert "of the test" not in text
    assert "no memory is free" in gpus.try_memory(torch.device("cpu"), CHUNK - 1, patience.IDLE, CHUNK)


@pytest.mark.parametrize("inverted", [False, True])
def test_a_bit_that_flips_and_a_word_at_another_address_are_found(inverted):
    chunks = gpus.allocate(torch.device("cpu"), 6 * CHUNK, CHUNK)
    assert [len(chunk) for chunk in chunks] == [CHUNK // 4] * 6
    assert gpus.write(chunks, inverted, math.inf) == 6
    assert gpus.count_wrong(chunks, inverted) == 0
    chunks[4][17] ^= 1 << 20
    assert gpus.count_wrong(chunks, inverted) == 1
    chunks[2].copy_(chunks[3])  # two addresses that are the same cells
    chunks[1][:8] = chunks[1][8:16].clone()
    assert gpus.count_wrong(chunks, inverted) == 1 + CHUNK // 4 + 8
    assert gpus.count_wrong(chunks, not inverted) == 6 * CHUNK // 4


def test_each_bit_is_written_as_0_and_as_1():
    chunk = gpus.allocate(torch.device("cpu"), CHUNK, CHUNK)[0]
    gpus.fill(chunk, 5, False)
    plain = chunk.clone()
    gpus.fill(chunk, 5, True)
    assert torch.equal(chunk, ~plain)
    assert len(plain.unique()) == len(plain)


def test_memory_that_does_not_keep_it_ends_the_start(monkeypatch):
    written = gpus.write

    def flip(chunks, inverted, until):
        count = written(chunks, inverted, until)
        if inverted:
            chunks[3][7] ^= 1
        return count

    monkeypatch.setattr(gpus, "write", flip)
    with pytest.raises(ExitError, match=r"memory of cpu on .* does not keep.*: 1 of 6,144 words.*cordon") as caught:
        gpus.try_memory(torch.device("cpu"), 6 * CHUNK, patience.IDLE, CHUNK)
    assert caught.value.code == 201


def test_the_test_of_memory_ends_in_time_and_says_how_much_it_did():
    text = gpus.try_memory(torch.device("cpu"), 10 * CHUNK, 1e-9, CHUNK)
    assert "5% of the test: more seconds would test the rest" in text


def test_an_error_of_the_gpu_in_the_test_of_memory_is_the_gpus(monkeypatch):
    def fail(*_):
        raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")

    monkeypatch.setattr(gpus, "fill", fail)
    with pytest.raises(ExitError, match=r"fails in a test of its memory .*ECC") as caught:
        gpus.try_memory(torch.device("cpu"), CHUNK, patience.IDLE, CHUNK)
    assert caught.value.code == 201


def test_what_may_heal_keeps_its_code_and_is_bounded(tmp_path, monkeypatch):
    """The main container ends as the checks did: the pod is recreated, but not forever."""
    handover = tmp_path / "preflight-failed"
    monkeypatch.setenv("TRAINYARD_PREFLIGHT", str(handover))
    monkeypatch.setenv("TRAINYARD_STORAGE_SECONDS", "0.1")

    def refuse(path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    line = ["--data", str(tmp_path / "data"), "--results", str(tmp_path / "run"), "--timeout", "5"]
    tries = []
    for _ in range(4):
        with monkeypatch.context() as broken:
            broken.setattr(preflight.manifests, "exists", refuse)
            assert preflight.main(line) == 0
        tries.append(json.loads(handover.read_text())["code"])
    assert tries == [200, 200, 200, 1]
    with pytest.raises(ExitError) as ended:
        end_on_failed_preflight()
    assert ended.value.code == 1
    assert preflight.main(line[2:4]) == 0  # it passes, and earlier failures are forgotten
    assert not handover.exists()
    assert list((tmp_path / "run" / "restarts").iterdir()) == []


def test_sigterm_ends_the_wait_at_once(tmp_path):
    waiting = subprocess.Popen(
        [sys.executable, "-m", "trainyard", "preflight", "--data", str(tmp_path), "--timeout", "86400",
         "--every", "0.1"], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert waiting.stdout is not None
    waiting.stdout.readline()  # it waits now
    waiting.terminate()
    assert waiting.wait() == 143


def test_it_waits_for_a_secret_that_an_operator_makes(tmp_path, capsys, clock):
    key = tmp_path / "secrets" / "wandb" / "WANDB_API_KEY"

    def appear():
        key.parent.mkdir(parents=True)
        key.write_text("key")

    clock.meanwhile.append(appear)
    assert preflight.main(["--secret", str(key), "--secret-timeout", "60", "--every", "0.1"]) == 0
    assert f"waiting for {key}, a Secret that an operator creates" in capsys.readouterr().out


def test_a_secret_that_does_not_come_is_named_with_what_to_look_at(tmp_path):
    with pytest.raises(UserError, match=r"did not appear within 0 s: .*externalsecrets.*secrets\.external\.wait"):
        preflight.main(["--secret", str(tmp_path / "none"), "--secret-timeout", "0.2", "--every", "0.1"])


def test_memory_that_others_use_is_not_tested() -> None:
    gib = 1 << 30
    assert gpus.why_not_tested(79 * gib, 80 * gib, 0, {}) == ""
    assert gpus.why_not_tested(60 * gib, 80 * gib, 0, {}) == (
        "memory: not tested, since other processes hold 20.0 of its 80.0 GiB"
    )
    assert "MPS" in gpus.why_not_tested(79 * gib, 80 * gib, 0, {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"})
