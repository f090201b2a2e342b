"""MLflow's own tracking server, on loopback, with its records in a folder."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import patience


@contextmanager
def running(folder: Path, port: int) -> Iterator[str]:
    """Run the server; its address. What an earlier one has kept in the folder is still there."""
    url, output = f"http://127.0.0.1:{port}", folder / "server.log"
    command = [
        str(Path(sys.executable).with_name("mlflow")), "server", "--host", "127.0.0.1", "--port", str(port),
        "--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip
    # its job runners, which evaluate language models, poll all the time
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment = os.environ | quiet
    with output.open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        patience.wait(
            lambda: f"MLflow's server does not answer: {output.read_text()}",
            lambda: process.poll() is not None or _answers(url), lambda: patience.processor_seconds(process.pid),
        )  # fmt: skip
        assert process.poll() is None, output.read_text()
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{url}/health", timeout=patience.IDLE).status == 200)
    except (OSError, urllib.error.URLError):
        return False
