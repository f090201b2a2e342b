"""docs/first-model.md on the one-node cluster: the text of its commands, from two folders to a fetched model."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import checkout, documents, patience
from tests.e2e import cluster, owners
from tests.e2e.cluster import get, until
from tests.test_first_model import pretrain, unpack

pytestmark = [pytest.mark.e2e, pytest.mark.ranks(2)]
HERE = "tests/e2e/test_first_model.py"
NAMESPACE = "trees"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A checkout to work in, with the cluster's tools; the page's namespace is there neither before nor after."""
    assert cluster.OWN, "it makes a namespace of a fixed name"
    checkout.copy(tmp_path)
    (tmp_path / "build").mkdir(exist_ok=True)
    for name in (".venv", "build/bin", "build/kubeconfig"):
        (tmp_path / name).symlink_to(cluster.ROOT / name)
    owners.require_absent("namespaces", NAMESPACE)
    yield tmp_path
    owners.adopt("namespaces", NAMESPACE)
    owners.delete("namespaces", NAMESPACE)


def test_two_sent_folders_become_a_fetched_model(folder: Path, image: dict[str, str]) -> None:
    unpack("train", range(500), folder / "pictures")
    pretrain(folder)
    (text,) = documents.texts("first-model.md", HERE)
    done = patience.run(["bash", "-euxc", text], beside=cluster.stirring, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    run = folder / "build" / "first"
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    assert json.loads((run / "summary.json").read_text())["top1"] > 50  # of three classes
    published = json.loads((run / "published" / "config.json").read_text())
    assert sorted(published["label_names"]) == sorted(one.name for one in (folder / "pictures").iterdir())
    # Kubernetes deletes the pods some time after helm uninstall has deleted their jobs
    until("no pod is left", lambda: not get("pods", NAMESPACE, "app.kubernetes.io/instance=first"))
