"""The dashboard's panels of GPUs, asked of a real Prometheus, over series in the form of NVIDIA's dcgm-exporter."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from hack.dashboard.panels import Panel, panels
from hack.dashboard.server import Prometheus, running
from tests import patience, ports
from tests.fakes import loopback

pytestmark = pytest.mark.takes(15)
VALUES = {"namespace": ".*", "run": "first|second", "__rate_interval": "10s"}
GPUS = [panel for panel in panels(VALUES) if any("DCGM_" in target.expression for target in panel.targets)]
# field of dcgm-exporter -> its value on GPU 0; GPU 1 has twice that
FIELDS = {
    "DCGM_FI_DEV_GPU_UTIL": 40, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.25, "DCGM_FI_DEV_FB_USED": 1024,
    "DCGM_FI_DEV_POWER_USAGE": 300, "DCGM_FI_DEV_GPU_TEMP": 30, "DCGM_FI_PROF_NVLINK_TX_BYTES": 5e9,
    "DCGM_FI_PROF_NVLINK_RX_BYTES": 4e9,
}  # fmt: skip
SHOWN = {
    "GPUs busy": [40], "Tensor cores busy": [0.25], "GPU memory used": [1 << 30], "GPU power": [300],
    "GPU temperature": [30], "NVLink": [5e9, 4e9],
}  # fmt: skip


def of_a_node(namespace: str, pod: str) -> str:
    """What dcgm-exporter answers on a node whose two GPUs a pod has, beside one that no pod has."""
    lines = []
    for field, value in FIELDS.items():
        for gpu in (0, 1, 2):
            who = f'container="pytorch",namespace="{namespace}",pod="{pod}"' if gpu < 2 else ""
            about = f'gpu="{gpu}",UUID="GPU-{pod}-{gpu}",device="nvidia{gpu}",modelName="NVIDIA H100",Hostname="node"'
            lines.append(f"{field}{{{about}{',' if who else ''}{who}}} {value * (1 + gpu)}")
    return "\n".join(lines) + "\n"


ANSWERS = {
    "/first": 'trainyard_node_info{run="first",rank="0",host="first-0"} 1\n',
    "/second": 'trainyard_node_info{run="second",rank="0",host="second"} 1\n',
    "/other": 'trainyard_node_info{run="other",rank="0",host="other-0"} 1\n',
    "/dcgm-first": of_a_node("vision", "first-0"),
    "/dcgm-second": of_a_node("vision", "second-node-0-0-x7x2k"),
    "/dcgm-other": of_a_node("vision", "other-0"),
    "/dcgm-namesake": of_a_node("speech", "first-0"),
}


class Answer(BaseHTTPRequestHandler):
    """Answers as the pods do, each at a path of its own."""

    def do_GET(self) -> None:
        body = ANSWERS[self.path].encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def job(path: str, address: str, honor: bool = False, **labels: str) -> dict[str, object]:
    """A scrape config of one pod, which has these labels of the target."""
    targets = [{"targets": [address], "labels": labels}]
    return {"job_name": path, "metrics_path": path, "honor_labels": honor, "static_configs": targets}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One exporter is scraped with honor_labels, the others without, as the Prometheus operator does by default."""
    with loopback.serving(Answer) as answers:
        address = f"127.0.0.1:{answers.server_port}"
        exporter = {"namespace": "gpu-operator", "pod": "dcgm-exporter-abcde"}
        jobs = [
            job("/first", address, namespace="vision", pod="first-0"),
            job("/second", address, namespace="vision", pod="second-node-0-0-x7x2k"),
            job("/other", address, namespace="vision", pod="other-0"),
            job("/dcgm-first", address, **exporter),
            job("/dcgm-second", address, honor=True, **exporter),
            job("/dcgm-other", address, **exporter),
            job("/dcgm-namesake", address, **exporter),
        ]
        with running(tmp_path_factory.mktemp("gpus"), jobs, port=ports.free()) as found:
            patience.wait("all are scraped", lambda: len(found.query("up == 1")) == len(jobs), patience.still)
            yield found


def wait_for(server: Prometheus, expression: str, expected: dict[tuple[str, str, str], object]) -> None:
    """Wait until an expression has these values, by run, pod and GPU.

    A scrape that takes longer than its interval, as on a busy machine, hides its series until the next one.
    """

    def found() -> dict[tuple[str, str, str], float]:
        return {(who["run"], who["pod"], who["gpu"]): number for who, number in server.query(expression)}

    patience.wait(lambda: f"{expression} has {found()}", lambda: found() == expected, patience.still)


@pytest.mark.parametrize("panel", GPUS, ids=lambda panel: panel.title)
def test_a_panel_shows_the_gpus_of_the_runs_pods_and_no_others(server: Prometheus, panel: Panel) -> None:
    for target, value in zip(panel.targets, SHOWN[panel.title], strict=True):
        expected = {
            (run, pod, str(gpu)): pytest.approx(value * (1 + gpu))
            for run, pod in (("first", "first-0"), ("second", "second-node-0-0-x7x2k"))
            for gpu in (0, 1)
        }
        wait_for(server, target.expression, expected)


def test_every_field_is_on_a_panel() -> None:
    asked = " ".join(target.expression for panel in GPUS for target in panel.targets)
    assert [field for field in FIELDS if field not in asked] == []
    assert {panel.title for panel in GPUS} == SHOWN.keys()
