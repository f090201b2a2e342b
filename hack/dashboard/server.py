"""A real Prometheus: started on a free port of loopback, asked over its HTTP API, and ended again."""

import contextlib
import functools
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HANGS = 180.0  # seconds without an answer of a process on this machine after which it hangs
# requests to loopback must not go through a proxy from the environment
_open = functools.partial(urllib.request.build_opener(urllib.request.ProxyHandler({})).open, timeout=HANGS)
Series = list[tuple[float, float]]  # (Unix time, value)


def program(name: str) -> str:
    """Path of `prometheus` or `promtool`: unpacked into the cache, else this machine's."""
    cache = Path(os.environ.get("TRAINYARD_CACHE") or Path.home() / ".cache/trainyard")
    unpacked = cache / "prometheus" / "usr" / "bin" / name
    found = str(unpacked) if unpacked.exists() else shutil.which(name)
    if not found:
        raise RuntimeError(f"{name} is missing: run hack/bootstrap servers")
    return found


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its HTTP API."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with _open(url) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{parameters}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that an expression has now."""
        found = self.get("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def matrix(
        self, expression: str, start: float, end: float, step: float = 1.0
    ) -> list[tuple[dict[str, str], Series]]:
        """Labels and (time, value) of each series that an expression had in a range."""
        found = self.get("query_range", query=expression, start=str(start), end=str(end), step=str(step))["result"]
        return [(one["metric"], [(float(at), float(value)) for at, value in one["values"]]) for one in found]


@contextlib.contextmanager
def running(
    home: Path,
    scrape: Sequence[dict[str, Any]],
    rules: Sequence[Path] = (),
    *,
    interval: str = "1s",
    within: Sequence[str] = (),
    address: str = "127.0.0.1",
    port: int = 0,
) -> Iterator[Prometheus]:
    """Run a server with these scrape_configs; `within` is a command that starts it elsewhere, where `address` is ours.

    A port of 0 is one that is free just now.
    """
    with socket.socket() as probe:
        probe.bind(("", port))
        port = probe.getsockname()[1]
    home.mkdir(parents=True, exist_ok=True)
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": "1s"},
        "scrape_configs": list(scrape),
        "rule_files": [str(path) for path in rules],
    }
    (home / "prometheus.yml").write_text(yaml.safe_dump(config))
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [*within, program("prometheus"), f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data",
             f"--web.listen-address={address}:{port}"],
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    server = Prometheus(f"http://{address}:{port}")
    try:
        end = time.monotonic() + HANGS
        while not _is_ready(server):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"Prometheus does not start: {(home / 'log').read_text()}")
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(HANGS)


def _is_ready(server: Prometheus) -> bool:
    try:
        return bool(_open(f"{server.url}/-/ready").status == 200)
    except OSError:
        return False
