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
    """Run the server as `mlflow server` would start it, which loads all of MLflow itself; its address.

    What an earlier one has kept in the folder is still there.
    """
    url, output = f"http://127.0.0.1:{port}", folder / "server.log"
    command = [
        sys.executable, "-m", "uvicorn", "--host", "127.0.0.1", "--port", str(port), "mlflow.server.fastapi_app:app"
    ]  # fmt: skip
    stores = dict.fromkeys(("FILE_STORE", "REGISTRY_STORE"), f"sqlite:///{folder}/mlflow.db")
    artifacts = {"SERVE_ARTIFACTS": "true", "ARTIFACT_ROOT": "mlflow-artifacts:/", "ARTIFACT_DESTINATION": str(folder)}
    # its job runners, which evaluate language models, poll all the time
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    given = {f"_MLFLOW_SERVER_{name}": value for name, value in (stores | artifacts).items()}
    environment = os.environ | quiet | given
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
