"""Values are closed: a misspelt key anywhere is an error that names it."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from . import helm

SAMPLES = 50
# Maps whose keys are the user's own.
OPEN = re.compile(r"(annotations|nodeSelector|podLabels|podAnnotations|matchLabels|/limits|/requests)$")


def places(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of closed maps: the map's path as Helm prints it, and the key."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from places(item, f"{path}/{index}")
    if isinstance(node, dict):
        for key, value in node.items():
            if not OPEN.search(path):
                yield path, key
            yield from places(value, f"{path}/{key}")


def misspelt(values: Any, place: str, key: str) -> tuple[helm.Values, str]:
    """Return values with one key misspelt, and the misspelling."""
    changed = json.loads(json.dumps(values))
    node = changed
    for step in place.split("/")[1:]:
        node = node[int(step) if isinstance(node, list) else step]
    wrong = key[:-1] if len(key) > 4 else f"{key}x"
    node[wrong] = node.pop(key)
    return changed, wrong


def sampled_places() -> list[tuple[str, str]]:
    """Choose places over all that the examples for CI set, the same ones each time."""
    values = helm.merged(helm.defaults(), *(helm.yaml.safe_load(path.read_text()) for path in helm.CI))
    found = sorted(place for place in places(values) if place != ("", "global"))
    return random.Random(1).sample(found, SAMPLES)


def test_a_misspelt_key_is_an_error_that_names_it():
    values = helm.merged(helm.defaults(), *(helm.yaml.safe_load(path.read_text()) for path in helm.CI))
    for place, key in sampled_places():
        changed, wrong = misspelt(values, place, key)
        with pytest.raises(helm.HelmError) as caught:
            helm.template(changed)
        path = re.sub(r"/(\d+)(?=/|$)", r"[\1]", place).replace("/", ".").lstrip(".")
        ours = f"{path}.{wrong}".lstrip(".") + " is not a key of this chart"
        kubernetes = f"at '{place}': additional properties '{wrong}' not allowed"
        said = " ".join(str(caught.value).split()).rpartition("values.schema.json#'")[2]  # the heading has `value`
        assert (ours in said) != (kubernetes in said), (place, key, said)
        # once, and perhaps in what was meant; a template's name has `chec`, and the first word of most paths `globa`
        assert re.sub(r"global\.|\(trainyard/templates/\S+\)", "", said).count(wrong) <= 2, said
