"""Commands about Helm releases: from a values file to the end of a run, its files, and why it waits or failed."""

import importlib.util
import sys

from trainyard.core import distribution

if importlib.util.find_spec("kubernetes") is None:
    remedy = f"hack/bootstrap python in a checkout, else {distribution.install()}"
    print(f"error: {sys.executable} has no package kubernetes, the cluster's client: {remedy}", file=sys.stderr)
    sys.exit(2)
