"""Where the published chart, images and documents are."""

from trainyard import __version__ as VERSION  # noqa: N812

REGISTRY = "ghcr.io/trainyard"
CHART = f"oci://{REGISTRY}/charts/trainyard"
CHART_VERSION = VERSION
DOCUMENTS = "https://github.com/trainyard/trainyard/blob/main"
