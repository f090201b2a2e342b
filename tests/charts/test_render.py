"""The same values give the same, valid, restricted manifests: every time and with both Helms."""

import re
from pathlib import Path

import pytest

from . import helm

# RDMA needs a capability that `restricted` forbids; it is asked for in these files and nowhere else.
UNRESTRICTED = ("gpu-values.yaml", "rdma.yaml")
# What would make two renders of the same values differ, or a render without a cluster fail.
VARYING = (
    r"\b(lookup|rand\w+|uuidv4|now|date\w*|ago|genCA|genSelfSignedCert|genPrivateKey|IsUpgrade|IsInstall|Revision)\b"
)

each_ci = pytest.mark.parametrize("values", [*helm.CI, *helm.EXAMPLES], ids=lambda path: path.stem)


@each_ci
def test_two_renders_are_the_same_bytes(values: Path):
    assert helm.template(values, fresh=True) == helm.template(values)


@each_ci
def test_both_helms_render_the_same_valid_objects(values: Path):
    helm.rendered(values)


def compact(text: str) -> str:
    """Drop blank lines: the Helms differ in one before `---`."""
    return "\n".join(line for line in text.splitlines() if line.strip())


@pytest.mark.parametrize("values", helm.CI, ids=lambda path: path.stem)
def test_helm_prints_what_its_engine_renders_and_both_helms_in_one_order(values: Path):
    """So tests that look at objects start no Helm for each of them."""
    whole = helm.template(values, "helm3")
    assert helm.pieces(whole) == helm.pieces(helm.template(values))
    assert compact(whole) == compact(helm.template(values, "helm4"))


@each_ci
def test_every_pod_passes_the_restricted_standard(values: Path):
    text = helm.template(values)
    if values.name in UNRESTRICTED:
        with pytest.raises(helm.HelmError, match="IPC_LOCK"):
            helm.run("podsecurity", stdin=text)
        without = {"global": {"training": {"rdma": {"resource": "", "env": []}}}}
        text = helm.template(helm.merged(helm.yaml.safe_load(values.read_text()), without))
    helm.run("podsecurity", stdin=text)


@each_ci
def test_no_object_is_a_hook(values: Path):
    assert "helm.sh/hook" not in helm.template(values)


def test_templates_use_nothing_that_varies():
    for path in helm.templates():
        actions = re.findall(r"{{-?\s*(?!/\*)(.*?)}}", path.read_text())
        found = [action for action in actions if re.search(VARYING, re.sub(r'"[^"]*"', "", action))]
        assert not found, f"{path}: {found}"


def test_every_named_template_is_defined_once_and_used():
    text = "".join(re.sub(r"{{-?\s*/\*.*?\*/\s*-?}}", "", path.read_text(), flags=re.S) for path in helm.templates())
    for name in re.findall(r'{{-? define "([\w.]+)"', text):
        assert text.count(f'define "{name}"') == 1, name
        assert text.count(f'"{name}"') > 1, name


def test_nothing_is_rendered_when_everything_is_off():
    values = {"dataset": {"enabled": False}, "pytorchjob": {"enabled": False}, "storage": {"enabled": False}}
    claims = {"data": {"existingClaim": "a"}, "results": {"existingClaim": "b"}}
    assert helm.documents(helm.template(values | {"global": {"storage": claims, "training": {"recipe": "demo"}}})) == []


def test_the_chart_as_it_is_says_what_is_missing():
    with pytest.raises(helm.HelmError) as caught:
        helm.template({})
    said = str(caught.value)
    for missing in ("global.image.registry", "global.image.tag", "dataset.source: where", "global.training.nodes"):
        assert missing in said


def test_labels_of_pods_do_not_change_with_the_charts_version():
    text = helm.template(helm.everything())
    for document in helm.documents(text):
        pods = str(document.get("spec", {}))
        assert "helm.sh/chart" not in pods
