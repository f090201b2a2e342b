"""What a run tells: Prometheus while it runs, W&B in its own file, progress lines, the launcher's environment."""

import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from conftest import ROOT, Trainer, environment, events, wait_for_step

from trainers.telemetry.clock import Clock, process_start
from trainers.telemetry.metrics import rewind


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def test_prometheus_and_offline_wandb_on_the_first_rank(trainer: Trainer, tmp_path: Path) -> None:
    run, port = tmp_path / "run", free_port()
    process = trainer.start(
        run, 2, {"STEP_SECONDS": "0.2", "WANDB_SILENT": "true"}, **{"metrics.port": port, "wandb.mode": "offline"}
    )
    wait_for_step(run, 10, process)
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["trainyard_train_step"]) >= 10
    assert 0 < float(values["trainyard_train_loss"]) < 3
    assert float(values["trainyard_validate_top1"]) == events(run, "validate")[0]["top1"]
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    files = list((run / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 1  # one process reports, and only one
    content = files[0].read_bytes()
    assert b"train/loss" in content
    assert b"validate/top1" in content


def test_progress_is_plain_lines_where_nobody_watches(trainer: Trainer, tmp_path: Path) -> None:
    code, output = trainer.run(tmp_path / "run", 1, max_steps=8, epochs=None)
    assert code == 0, output
    lines = output.splitlines()
    assert "\x1b" not in output
    assert lines[0].startswith("little_models:net on 58 samples of 4 classes: 8 steps of 8, single on 1 processes")
    assert lines[1].startswith("step 1/8  epoch 1/1  loss ")
    assert any(line.startswith("epoch 1/1  validated 1003 samples: top1 ") for line in lines)
    assert lines[-1].startswith("finished: top1 ")


def test_two_nodes_are_joined_by_the_operators_variables(trainer: Trainer, tmp_path: Path) -> None:
    run, port = tmp_path / "run", str(free_port())
    common = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port,
              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}  # fmt: skip
    (tmp_path / "base.yaml").write_text("max_steps: 4\n")
    settings = [f"--set={key}={value}" for key, value in trainer.settings(run).items() if key != "epochs"]
    options = ["--config", str(tmp_path / "base.yaml"), *settings]
    command = [sys.executable, "-m", "trainers.launch", "-m", "trainers.ddp", *options]
    nodes = []
    for node in ("0", "1"):
        env = environment({**common, "PET_NODE_RANK": node, "RANK": node})
        pipe = subprocess.PIPE
        nodes.append(subprocess.Popen(command, cwd=ROOT, env=env, text=True, stdout=pipe, stderr=subprocess.STDOUT))
        trainer.running.append(nodes[-1])
    outputs = [node.communicate(timeout=120)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert "ddp on 2 processes" in outputs[0]
    assert "processes" not in outputs[1]


def test_rewind_drops_what_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = ['{"event": "train", "step": 4}', '{"event": "checkpoint", "step": 4}']
    lines += ['{"event": "validate", "step": 4, "epoch": 1}', '{"event": "train", "step": 5}', '{"event": "train", "st']
    path.write_text("\n".join(lines))
    assert rewind(path, step=4, validated=0) == 1
    assert path.read_text() == "\n".join(lines[:2]) + "\n"


def test_every_second_has_a_cause() -> None:
    assert 0 < time.monotonic() - process_start() < 10_000
    began = time.monotonic()
    clock = Clock(began)
    clock.begin()
    with clock.spent("data_wait"):
        time.sleep(0.05)
        with clock.spent("checkpoint"):
            time.sleep(0.1)
    time.sleep(0.02)
    seconds = clock.read()
    assert seconds["data_wait"] >= 0.05
    assert seconds["checkpoint"] >= 0.1
    assert seconds["other"] >= 0.02
    assert abs(sum(seconds.values()) - (time.monotonic() - began)) < 0.02
