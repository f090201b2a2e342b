"""Commands about Helm releases: from a values file to the end of a run, its files, and why it waits or failed."""

import importlib.util
import sys

if importlib.util.find_spec("kubernetes") is None:
    remedy = "pip install trainyard, or in a checkout: hack/bootstrap python"
    print(f"error: {sys.executable} has no package kubernetes, the cluster's client: {remedy}", file=sys.stderr)
    sys.exit(2)
