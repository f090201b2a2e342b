"""MLflow: one run on a tracking server for all starts of a run, whose metrics are those of metrics.jsonl.

mlflow.json in the run directory holds a key, which is a tag of the run there: a restart, on this operator or another,
finds it and adds what is missing. MLflow keeps every value that it was ever sent, so steps that are done again after a
crash are not sent again.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from trainyard import __version__
from trainyard.config import flat
from trainyard.config.sections.running import MlflowSettings
from trainyard.core.storage import storage
from trainyard.telemetry.metrics import Event, numbers
from trainyard.telemetry.outbox import Deliver, Outbox

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

NAME = "MLflow"
URI = "MLFLOW_TRACKING_URI"
LOGIN = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
# The outbox tries again, and is sooner to say why; nothing of a run goes to others than its server
DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}
KEY = "trainyard.key"  # the tag by which a run is found again
STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
LAST_OF = {"train": "train/loss", "validate": "validate/top1"}  # the metric that tells what has been sent of a kind
MOST_PARAMS, LONGEST_PARAM = 100, 500  # of one message; characters, which all of MLflow's versions take


def start(
    section: MlflowSettings, settings: Mapping[str, Any], path: Path, name: str, say: Callable[[str], None]
) -> Outbox | None:
    """Report the run directory `path` as the run `name`, with all `settings`, if there is a tracking server."""
    uri = section.uri or os.environ.get(URI, "")
    if section.mode == "off" or not uri:
        return None
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        say(f"{NAME}: {URI} is not the address of a server, http://... or https://...: nothing is sent")
        return None
    if parts.username:  # where it would be printed with each error
        os.environ.setdefault(LOGIN[1], unquote(parts.username))
        os.environ.setdefault(LOGIN[2], unquote(parts.password or ""))
        uri = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    log_in()
    for variable, value in DEFAULTS.items():
        os.environ.setdefault(variable, value)

    def connect() -> contextlib.AbstractContextManager[Deliver]:
        return connection(uri, section.experiment, settings, name=name, path=path, say=say)

    return Outbox(NAME, path / "metrics.jsonl", connect, say)


def log_in() -> None:
    """Give the client, which reads them from the environment, the credentials of the mounted Secret."""
    folder = Path(os.environ.get("TRAINYARD_SECRETS", "/var/run/secrets/trainyard")) / "mlflow"
    for variable in LOGIN:
        with contextlib.suppress(OSError):
            os.environ.setdefault(variable, (folder / variable).read_text().strip())


@contextlib.contextmanager
def connection(
    uri: str, experiment: str, settings: Mapping[str, Any], *, name: str, path: Path, say: Callable[[str], None]
) -> Iterator[Deliver]:
    """Find the run on the server, or create it; what it has of metrics.jsonl is passed over.

    Raises ImportError, OSError, and MlflowException where the server is away or refuses.
    """
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    run = _find_or_create(client, _experiment(client, experiment), name, path)
    if not run.data.params:
        _describe(client, run.info.run_id, settings)
    say(f"{NAME}: {uri.rstrip('/')}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}")
    sent = {kind: _last_step(client, run.info.run_id, metric) for kind, metric in LAST_OF.items()}
    status, processes = run.info.status, 1

    def deliver(events: list[Event]) -> None:
        nonlocal status, processes
        metrics, wanted = [], status
        for event in events:
            processes = event.get("world_size", processes)
            wanted = {"start": "RUNNING", "end": STATUS.get(event.get("status", ""))}.get(event["event"]) or wanted
            if event["step"] > sent.get(event["event"], -1):
                time = round(1000 * event["time"])
                metrics += [Metric(key, value, time, event["step"]) for key, value in numbers(event, processes).items()]
        if metrics:
            client.log_batch(run.info.run_id, metrics=metrics)
        if wanted != status:
            ended = round(1000 * events[-1]["time"])
            if wanted == "RUNNING":
                client.update_run(run.info.run_id, status=wanted)
            else:
                client.set_terminated(run.info.run_id, status=wanted, end_time=ended)
            status = wanted

    yield deliver


def _experiment(client: "MlflowClient", name: str) -> str:
    from mlflow.exceptions import MlflowException

    if found := client.get_experiment_by_name(name):
        return str(found.experiment_id)
    try:
        return str(client.create_experiment(name))
    except MlflowException:  # another run has just created it
        if found := client.get_experiment_by_name(name):
            return str(found.experiment_id)
        raise


def _find_or_create(client: "MlflowClient", experiment: str, name: str, path: Path) -> Any:
    key = storage.read_json(path / "mlflow.json").get("key")
    if not key:
        key = secrets.token_hex(16)
        storage.write_json(path / "mlflow.json", {"key": key})
    found = client.search_runs([experiment], f"tags.`{KEY}` = '{key}'", max_results=1)
    if found:
        return found[0]
    tags = {KEY: key, "trainyard.version": __version__, "trainyard.directory": str(path.resolve())}
    return client.create_run(experiment, run_name=name, tags=tags)


def _describe(client: "MlflowClient", run_id: str, settings: Mapping[str, Any]) -> None:
    """Log the settings, those of the run's first start: MLflow's parameters never change."""
    from mlflow.entities import Param

    params = [Param(key, str(value)[:LONGEST_PARAM]) for key, value in flat(settings).items()]
    for begin in range(0, len(params), MOST_PARAMS):
        client.log_batch(run_id, params=params[begin : begin + MOST_PARAMS])


def _last_step(client: "MlflowClient", run_id: str, metric: str) -> int:
    """Return the last step that the server has of a metric; -1: none."""
    return max((one.step for one in client.get_metric_history(run_id, metric)), default=-1)
