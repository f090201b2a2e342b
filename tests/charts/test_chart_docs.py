"""Keys of the chart that documents name exist."""

import re

import pytest

from . import helm

PAGES = ("chart", "troubleshooting", "argocd", "kueue", "metrics")
KEYS = re.compile(r"`((?:global|pytorchjob|mpijob|secrets|networkPolicy|dataset|evaluate|storage)(?:\.[A-Za-z]+)+)")


@pytest.mark.parametrize("name", PAGES)
def test_every_key_that_is_named_exists(name):
    named = set(KEYS.findall((helm.ROOT / "docs" / f"{name}.md").read_text()))
    assert [key for key in named if not helm.is_key(key)] == []
    assert named or name == "troubleshooting"
