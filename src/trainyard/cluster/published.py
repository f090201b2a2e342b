"""Where the chart and the images of this version are published, if they are."""

import os
from importlib import resources
from pathlib import Path

from trainyard import __version__ as VERSION  # noqa: N812
from trainyard.cluster import connection

# `make publish` writes this file into the package that it publishes; a checkout has none
_FILE = resources.files("trainyard") / "registry"
REGISTRY = _FILE.read_text().strip() if _FILE.is_file() else ""  # with its folder, such as registry.example.com/team
CHART = f"oci://{REGISTRY}/charts/trainyard" if REGISTRY else ""
CHART_VERSION = VERSION


def default_chart() -> str:
    """Return the chart where none is named: the published one, or a checkout's; empty if there is none.

    The checkout is that of this package, or else, where `uv tool install .` has copied it, the working directory.
    """
    own = [folder / "charts" / "trainyard" for folder in (connection.ROOT, Path.cwd())]
    return CHART or next((str(one) for one in own if (one / "Chart.yaml").is_file()), "")


def find_chart(named: str = "") -> str:
    """Return the chart that is meant: that of an option, of TRAINYARD_CHART, or the default; empty if there is none."""
    return named or os.environ.get("TRAINYARD_CHART", "") or default_chart()


def version_options(chart: str, version: str = "") -> list[str]:
    """Return Helm's options for a chart's version: of the published one that of this package, unless one is named."""
    chosen = version or (CHART_VERSION if CHART and chart == CHART else "")
    return ["--version", chosen] if chosen else []


def image() -> str:
    """Return the published image of this version that has what the trainers need; empty if there is none."""
    return f"{REGISTRY}/trainyard-pytorch:{VERSION}" if REGISTRY else ""
