"""The chart of this tree in a registry with TLS and a password, naming the node's images by digest.

The images are on the node already, under the names by which the published chart asks for them.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from hack.publish import chart, remote
from hack.publish import versions as stated
from tests.charts import helm
from tests.e2e import cluster
from tests.fakes import registry as registries

SOCKET = Path(os.environ.get("TRAINYARD_STATE", "/var/lib/trainyard")) / "run/containerd.sock"
VERSION = stated.stated()
EPOCH = 1_790_000_000  # seconds: the time that the packed files have


class Published(NamedTuple):
    """Where the chart is, and the digests by which it names the images."""

    registry: registries.Registry
    chart: str
    digests: Mapping[str, str]
    env: dict[str, str]  # in which Helm is logged in
    folder: Path  # the chart that was packed

    def push(self, work: Path) -> None:
        """Pack the folder, in a new one, and push it under the version that it has."""
        team = self.chart.removeprefix("oci://").removesuffix("/charts/trainyard")
        remote.push_chart(remote.Registry(team, self.env), chart.package(self.folder, work, EPOCH))

    def image(self, name: str) -> str:
        """Return the name by which the chart asks for an image."""
        return f"{self.registry.host}/team/{name}@{self.digests[name]}"


def ctr(*words: str) -> str:
    """Run containerd's client in the node."""
    command = ("hack/cluster/in-node", "ctr", "-a", SOCKET, "-n", "k8s.io")
    return cluster.run(*command, *words).stdout


@contextlib.contextmanager
def publish(image: Mapping[str, str], work: Path, address: str) -> Iterator[Published]:
    """Serve a registry that has the chart at an address of this machine while the block runs."""
    listed = {line.split()[0]: line.split()[2] for line in ctr("images", "ls").splitlines()[1:]}
    with registries.running(work / "registry", address) as registry, pytest.MonkeyPatch.context() as patch:
        for name, value in registry.env.items():
            patch.setenv(name, value)
        team = f"{registry.host}/team"
        own = chart.copy(helm.ROOT, work)
        names = set(chart.repositories(own).values())
        digests = {name: listed[f"{image['registry']}/{name}:{image['tag']}"] for name in names}
        chart.write(own, team, digests, {"version": VERSION})
        with remote.login(team) as one:
            found = Published(registry, f"oci://{team}/charts/trainyard", digests, dict(one.env), own)
            found.push(work / "packed")
            for name in names:  # a test run that was killed may have left the name
                ctr("images", "tag", "--force", f"{image['registry']}/{name}:{image['tag']}", found.image(name))
            try:
                yield found
            finally:
                for name in names:
                    ctr("images", "rm", found.image(name))
