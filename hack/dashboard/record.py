"""Make docs/dashboard.svg: train the demo on this machine under a real Prometheus, stop it once, draw what was seen.

hack/bootstrap python sample servers && python -m hack.dashboard.record docs/dashboard.svg
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hack.dashboard.draw import picture
from hack.dashboard.server import Prometheus, running

ROOT = Path(__file__).resolve().parents[2]
RUN, PROCESSES, EPOCHS = "demo", 2, 6
AWAY = 10.0  # seconds between the stop and the next start
ALERTS = "deploy/prometheus/rules.yaml"


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start or resume the run."""
    settings = {
        "run.dir": str(folder / RUN), "epochs": EPOCHS, "metrics.port": port, "log.every_steps": 2,
    }  # fmt: skip
    options = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
    launcher = [
        "-m",
        "trainyard",
        "launch",
        "--nproc-per-node",
        str(PROCESSES),
        "-m",
        "trainers.ddp",
        "--recipe",
        "demo",
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "4000000000",
    }
    return subprocess.Popen([sys.executable, *launcher, *options], cwd=ROOT, env=environment)


def progress(server: Prometheus) -> float:
    """Share of the run's steps that are done, from Prometheus."""
    found = server.query("max(trainyard_step) / max(trainyard_steps_planned)")
    return found[0][1] if found else 0.0


def main() -> int:
    """Record a run and draw it."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "dashboard.svg"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.time()
        scrape = [{"job_name": "trainyard", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]
        with running(folder / "prometheus", scrape, [ROOT / ALERTS], interval="2s") as server:
            process = start(folder, port)
            try:
                while process.poll() is None and progress(server) < 0.45:
                    time.sleep(1)
                process.send_signal(signal.SIGTERM)
                process.wait(120)
                time.sleep(AWAY)
                process = start(folder, port)
                code = process.wait(1800)
            finally:
                process.kill()
            values = {"namespace": ".*", "run": RUN, "__rate_interval": "20s"}
            text = picture(server, values, (began, time.time()))
        out.write_text(text)
        print(f"{out}: {len(text):,} bytes; the run ended {code}")
        return code


if __name__ == "__main__":
    sys.exit(main())
