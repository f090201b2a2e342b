"""Where the chart and the images of this version are published, if they are."""

from importlib import resources

from trainyard import __version__ as VERSION  # noqa: N812
from trainyard.cluster import connection

# `make publish` writes this file into the package that it publishes; a checkout has none
_FILE = resources.files("trainyard") / "registry"
REGISTRY = _FILE.read_text().strip() if _FILE.is_file() else ""  # with its folder, such as registry.example.com/team
CHART = f"oci://{REGISTRY}/charts/trainyard" if REGISTRY else ""
CHART_VERSION = VERSION


def default_chart() -> str:
    """Return the chart where none is named: the published one, or that of this checkout; empty if there is none."""
    own = connection.ROOT / "charts" / "trainyard"
    return CHART or (str(own) if own.is_dir() else "")


def image() -> str:
    """Return the published image of this version that has what the trainers need; empty if there is none."""
    return f"{REGISTRY}/trainyard-pytorch:{VERSION}" if REGISTRY else ""
