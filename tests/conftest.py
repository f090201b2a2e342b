"""For all tests: files that take long come first, so that a parallel run's workers end together; slots for ranks."""

import fcntl
import os
import random
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests import costs, ranks
from tests.util import filters

CACHE = Path(os.environ.get("TRAINYARD_CACHE") or Path.home() / ".cache/trainyard")
os.environ["PATH"] += f":{CACHE / 'debian/bin'}"  # Debian's programs that are not installed (hack/bootstrap)
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHE / "inductor"))  # by content, so a new graph is compiled
os.environ.setdefault("GOGC", "800")  # thousands of helm and kubectl run: they spend a seventh less processor time
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # more threads than cores: one that waits keeps no core busy
HERE = Path(__file__).parent
CLUSTER = (HERE / "e2e", HERE / "images")  # where scripts/test looks for what needs the cluster or the images


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the files in a random order")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell that runs tests in the background has it ignored,
        signal.signal(signal.SIGINT, signal.default_int_handler)  # and what tests start would inherit that
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup: what tests start has the default again, as handlers
        signal.signal(signal.SIGHUP, lambda *_: None)  # are not inherited by a new program
    config.pluginmanager.register(costs.Costs(worker=hasattr(config, "workerinput")), "costs")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Let one worker of a parallel run compile the test files: 5 s of CPU time, which the others need not take, too."""
    if not hasattr(session.config, "workerinput"):
        return (yield)
    folder = os.open(HERE, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(folder, fcntl.LOCK_SH)
    try:
        return (yield)
    finally:
        os.close(folder)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort files by the seconds of their mark `takes`, those without one last and in their order; or shuffle them."""
    seconds: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("takes")
        seconds[item.path] = max(seconds.get(item.path, 0), mark.args[0] if mark else 0)
        if item.path.parent not in CLUSTER and any(item.get_closest_marker(name) for name in ("e2e", "images")):
            raise pytest.UsageError(f"{item.nodeid} is marked e2e or images: move it to tests/e2e or tests/images")
    seed = config.getoption("--shuffle")
    if seed is not None:
        places = random.Random(seed)
        seconds = {path: places.random() for path in sorted(seconds)}
    items.sort(key=lambda item: -seconds[item.path])


@pytest.fixture(scope="module", autouse=True)
def ranks_of_the_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold a slot for each rank that the file's mark `ranks` names."""
    mark = request.node.get_closest_marker("ranks")
    if mark is None:
        yield
        return
    with ranks.slots(mark.args[0]):
        yield


@pytest.fixture(scope="module", autouse=True)
def filters_of_the_file() -> Iterator[None]:
    """End the programs that the file's tests have shared."""
    yield
    filters.end_all()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tables to which tests gave rows: `record_property("table", (heading, row))`."""
    tables: dict[str, list[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "table" and getattr(report, "when", "") == "call":
                    tables.setdefault(value[0], []).append(value[1])
    for heading, rows in tables.items():
        terminalreporter.write_sep("-", "measured")
        terminalreporter.write_line("\n".join([heading, *rows]))
