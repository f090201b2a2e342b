"""The files of docs/filebrowser.md: the same on both Helms, valid, restricted, and the password in none of them."""

import base64
import re

import pytest
import yaml

from . import helm

FOLDER = helm.ROOT / "examples" / "filebrowser"
RELEASES = {"page": ["page"], "page by TLS": ["page", "ingress"], "another server": ["other-server"]}
TEXT = (helm.ROOT / "docs" / "filebrowser.md").read_text()


@pytest.mark.parametrize("files", RELEASES.values(), ids=RELEASES)
def test_the_values_are_complete_and_valid(files: list[str]):
    values = helm.merged(*(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()) for name in files))
    text = helm.rendered(values)
    assert helm.run("podsecurity", stdin=text).startswith("1 pod templates, 0 findings")
    kinds = sorted(one["kind"] for one in helm.documents(text))
    assert kinds == sorted(["Deployment", "NetworkPolicy", "Service", *(["Ingress"] if "ingress" in files else [])])


def test_the_document_names_every_file_and_no_key_that_is_not_there():
    assert {f"{name}.yaml" for name in re.findall(r"examples/filebrowser/([\w-]+)\.yaml", TEXT)} == {
        path.name for path in FOLDER.glob("*.yaml")
    }
    assert [key for key in re.findall(r"`(filebrowser(?:\.[A-Za-z]+)+)", TEXT) if not helm.is_key(key)] == []


def test_a_password_in_values_is_rendered_into_the_secret_alone():
    text = helm.template(helm.everything())
    encoded = base64.b64encode(b"not-a-password").decode()
    assert "not-a-password" not in text
    holding = [one["kind"] for one in helm.documents(text) if encoded in str(one)]
    assert holding == ["Secret"]
    other = helm.template(helm.merged(helm.everything(), helm.at("filebrowser.auth.password", "quite-another")))
    assert other.replace(base64.b64encode(b"quite-another").decode(), encoded) == text
