"""deploy/flux and deploy/argocd/published.yaml: valid against the controllers' own CRDs, and their values render."""

from pathlib import Path

import pytest
import yaml

from . import helm

FLUX = helm.ROOT / "deploy" / "flux" / "release.yaml"
ARGOCD = helm.ROOT / "deploy" / "argocd" / "published.yaml"
IMAGES = ("--set", "global.image.registry=registry.example.com/team", "--set", "global.image.tag=0.1.0-abc")


def values(path: Path) -> helm.Values:
    """Return the values that a file gives the chart."""
    one = yaml.safe_load_all(path.read_text())
    spec = next(document["spec"] for document in one if document["kind"] in ("HelmRelease", "Application"))
    return spec.get("values") or spec["source"]["helm"]["valuesObject"]


@pytest.mark.parametrize("path", [FLUX, ARGOCD], ids=lambda path: path.parent.name)
def test_the_objects_match_the_schemas_of_their_controllers(path: Path):
    helm.validate(path.read_text())
    with pytest.raises(helm.HelmError, match="additional properties 'specc' not allowed"):
        helm.validate(path.read_text().replace("\nspec:", "\nspecc:", 1))


@pytest.mark.parametrize("path", [FLUX, ARGOCD], ids=lambda path: path.parent.name)
def test_their_values_say_nothing_of_images_and_render(path: Path):
    own = values(path)
    assert set(own["global"]["image"]) == {"pullSecrets"}
    text = helm.run("helm3", "template", "run", helm.CHART, *IMAGES, "-f", "-", stdin=yaml.safe_dump(own))
    assert helm.only(text, "PyTorchJob")


def test_flux_takes_the_layer_in_which_helm_packs_a_chart():
    (source,) = [one for one in yaml.safe_load_all(FLUX.read_text()) if one["kind"] == "OCIRepository"]
    assert source["spec"]["layerSelector"]["mediaType"] == "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
    assert source["spec"]["url"] == "oci://registry.example.com/team/charts/trainyard"
