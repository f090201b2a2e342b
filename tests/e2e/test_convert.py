"""Manifests of others, converted, start on the cluster with a tiny program in place of theirs."""

import json
from pathlib import Path

import pytest
import yaml

from tests.e2e import cluster
from tests.e2e.cluster import get, kubectl, log
from tests.util.converted import PROGRAM, small

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(2), pytest.mark.takes(60)]
FOLDER = Path(__file__).parents[1] / "charts" / "cases" / "convert"
REPRESENTATIVE = ("pytorch-torchrun-cpu", "mpi-pi", "trainjob-simple")  # one of each operator; the others are soaked
CASES = [
    pytest.param(path, id=path.stem, marks=[] if path.stem in REPRESENTATIVE else [pytest.mark.soak])
    for path in sorted(FOLDER.glob("*.yaml"))
]


@pytest.fixture(scope="module")
def claim(namespace) -> str:
    """A claim for the results of all of them."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    made = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "out"}, "spec": spec}
    kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(made))
    return "out"


def options(path: Path) -> list[str]:
    """Return the options that a file asks for at its head, but for its program, which this test says."""
    image = [line for line in path.read_text().splitlines() if line.startswith("# options: ") and "--image" in line]
    return ["--image", image[0].rpartition("--image ")[2].split()[0]] if image else []


@pytest.mark.usefixtures("trainer_v2")
@pytest.mark.parametrize("path", CASES)
def test_it_starts_and_succeeds_on_every_rank(namespace, image, claim, path, tmp_path):
    place = tmp_path / "values.yaml"
    done = cluster.run("trainyard", "convert", path, *options(path), "--command", "true", "-o", place, check=False)
    assert done.returncode in (0, 1), done.stderr
    values = small(yaml.safe_load(place.read_text()), image, claim, PROGRAM)
    place.write_text(json.dumps(values))  # PyYAML leaves texts bare that Helm takes for numbers, such as 5e-05
    release = path.stem
    cluster.helm("upgrade", "--install", release, "charts/trainyard", "-n", namespace, "-f", place)
    try:
        cluster.follow(release, namespace)
        training = values["global"]["training"]
        ranks = {f"rank {rank} is here, /results/runs/{release}" for rank in range(training["nodes"])}
        pods = get("pods", namespace, f"app.kubernetes.io/instance={release}")
        said = "\n".join(log(pod["metadata"]["name"], namespace, pod["spec"]["containers"][0]["name"]) for pod in pods)
        assert ranks <= set(said.splitlines()), said
    finally:
        cluster.helm("uninstall", release, "-n", namespace, "--wait", "--ignore-not-found")
