"""What was published is signed, with provenance and bills of materials; by a key, in place of the workflow's identity.

cosign and syft take minutes to compile, so it runs before a release (`make soak`).
"""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hack.publish import sign
from tests import patience
from tests.fakes.registry import Registry

from .conftest import ROOT, publish

COMMIT = "0123456789" * 4
GITHUB = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "owner/repository",
    "GITHUB_REF": "refs/tags/v1.2.3",
    "GITHUB_RUN_ID": "77",
    "GITHUB_RUN_ATTEMPT": "1",
    "GITHUB_WORKFLOW_REF": "owner/repository/.github/workflows/release.yaml@refs/tags/v1.2.3",
    "RUNNER_ENVIRONMENT": "github-hosted",
}


def test_provenance_names_the_workflow_the_commit_and_the_run():
    """The fields are those of https://actions.github.io/buildtypes/workflow/v1."""
    said = sign.provenance({"version": "1.2.3", "commit": COMMIT}, GITHUB)
    assert said["buildDefinition"]["externalParameters"] == {
        "workflow": {
            "ref": "refs/tags/v1.2.3",
            "repository": "https://github.com/owner/repository",
            "path": ".github/workflows/release.yaml",
        },
        "version": "1.2.3",
    }
    (source,) = said["buildDefinition"]["resolvedDependencies"]
    assert source == {
        "uri": "git+https://github.com/owner/repository@refs/tags/v1.2.3",
        "digest": {"gitCommit": COMMIT},
    }
    assert said["runDetails"] == {
        "builder": {"id": "https://github.com/actions/runner/github-hosted"},
        "metadata": {"invocationId": "https://github.com/owner/repository/actions/runs/77/attempts/1"},
    }


@pytest.fixture(scope="module")
def signed(tree: Path, images: Path, registry: Registry, tmp_path_factory: pytest.TempPathFactory):
    """A published and signed version: its artifacts, and a function that runs cosign, logged in."""
    done = publish(tree, f"{registry.host}/team", images, env=registry.env)
    assert done.returncode == 0, done.stderr
    programs = subprocess.run([ROOT / "hack/signing/build"], check=True, capture_output=True, text=True).stdout.strip()
    work = tmp_path_factory.mktemp("keys")
    login = base64.b64encode(f"{registry.env['USERNAME']}:{registry.env['PASSWORD']}".encode()).decode()
    (work / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": login}}}))
    env = registry.env | {"COSIGN_PASSWORD": "", "DOCKER_CONFIG": str(work), "HOME": str(work)}

    def cosign(*words: str) -> str:
        done = patience.run([f"{programs}/cosign", *words], cwd=work, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    cosign("generate-key-pair")
    cosign("signing-config", "create", "--out", "nobody.json")  # neither a log nor an authority: there is no network
    options = f"--key {work}/cosign.key --signing-config {work}/nobody.json"
    done = patience.run([sys.executable, "-m", "hack.publish.sign"], cwd=tree, env=env | {"SIGNING_OPTIONS": options})
    assert done.returncode == 0, done.stderr
    return json.loads((tree / "build/publish/release.json").read_text())["artifacts"], cosign


@pytest.mark.soak
def test_every_artifact_has_a_signature_and_its_provenance(signed):
    artifacts, cosign = signed
    assert len(artifacts) == 5
    for one in artifacts:
        words = ("--key", "cosign.pub", "--insecure-ignore-tlog", one["reference"])
        cosign("verify", *words)
        cosign("verify-attestation", "--type", "slsaprovenance1", *words)


@pytest.mark.soak
def test_every_image_has_a_bill_of_materials(signed):
    artifacts, cosign = signed
    images = [one["reference"] for one in artifacts if one["image"]]
    assert len(images) == 3
    for reference in images:
        words = ("--type", "spdxjson", "--key", "cosign.pub", "--insecure-ignore-tlog", reference)
        said = cosign("verify-attestation", *words)
        statement = json.loads(base64.b64decode(json.loads(said.splitlines()[0])["payload"]))
        assert statement["predicate"]["spdxVersion"].startswith("SPDX-2.")
        assert statement["subject"][0]["digest"]["sha256"] == reference.partition("@sha256:")[2]
