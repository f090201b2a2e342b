"""Values drawn at random from the chart's own schema render and are valid; wrong ones fail and are named."""

import json
import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from . import helm
from .arbitrary import Arbitrary, meaningful

pytestmark = pytest.mark.takes(5)

COUNT = 150  # a few are refused in words; `make soak` draws 11,000 more
RENDERED = 147
WORKERS = 2
SCHEMA = helm.schema()
# What a template refuses is said in words that name a key; nothing else may go wrong.
IN_WORDS = re.compile(
    r"execution error at \(.*\): \n\n"
    r".*\b(global|dataset|pytorchjob|mpijob|trainjob|secrets|storage|filebrowser)\.\w+.*\n",
    re.S,
)


@pytest.fixture(scope="module")
def drawn():
    """Values, and what they render to."""
    values = [meaningful(Arbitrary(SCHEMA, seed).values(), seed) for seed in range(COUNT)]
    started = time.monotonic()
    answers = helm.render_all(values, WORKERS)
    print(f"\n{COUNT} random values rendered in {time.monotonic() - started:.1f} s")
    return list(zip(values, answers, strict=True))


def test_random_valid_values_render_or_are_refused_in_words(drawn):
    failed = [answer["error"] for _, answer in drawn if "error" in answer]
    assert [error for error in failed if not IN_WORDS.search(error)] == []
    assert COUNT - len(failed) >= RENDERED, failed[:3]


def test_random_valid_values_give_valid_manifests(drawn):
    texts = [answer["manifests"] for _, answer in drawn if "manifests" in answer]
    started = time.monotonic()
    for text in texts:
        helm.validate(text)
    print(f"\n{len(texts)} renders validated in {time.monotonic() - started:.1f} s")


def test_manifests_are_read_with_no_key_twice():
    """The check above reads every document so; random values share keys where maps meet in one object."""
    once = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  a: b\n"
    helm.validate(once)
    with pytest.raises(helm.HelmError, match='"a" already set in map'):
        helm.validate(f"{once}  a: c\n")


def test_random_pods_pass_the_restricted_standard(drawn):
    """But for what users add by name: objects, containers, volumes, sysctls, RDMA's capability, and `unrestricted`."""
    texts = [answer["manifests"] for values, answer in drawn if "manifests" in answer and plain(values)]
    said = helm.run("podsecurity", stdin="".join(texts))
    assert re.match(r"\d{3,} pod templates, 0 findings", said), said


def plain(values: helm.Values) -> bool:
    """Whether values add nothing that `restricted` may refuse."""
    names = "extraObjects|extraInitContainers|extraContainers|extraVolumes|sysctls|resource|by"
    names = f"{names}|runAsRoot|hostNetwork|privileged"
    added = rf'"({names})": (\[\{{|"[^"]|true)'
    return not re.search(added, json.dumps(values))


def broken(values: helm.Values, seed: int) -> tuple[helm.Values, str, str]:
    """Break one key of a random place: misspell it, or give it what it never takes; where it is, and its new name."""
    changed = json.loads(json.dumps(values))
    pick = random.Random(seed)
    places = [(path, key) for path, key in closed_places(changed) if path or key != "global"]
    path, key = pick.choice(places)
    node = changed
    for step in path.split("/")[1:]:
        node = node[int(step) if isinstance(node, list) else step]
    if isinstance(node[key], dict) or pick.random() < 0.5:
        node[f"{key}x"] = node.pop(key)
        return changed, path, f"{key}x"
    node[key] = [{"wrong": {"type": []}}]
    return changed, f"{path}/{key}", ""


def closed_places(node: Any, path: str = "", schema: Any = SCHEMA) -> Iterator[tuple[str, str]]:
    """Yield the keys of closed maps: the map's path as Helm prints it, and the key."""
    while "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    if isinstance(node, dict) and "properties" in schema:
        for key, value in node.items():
            if key in schema["properties"]:
                if schema.get("additionalProperties") is False:
                    yield path, key
                yield from closed_places(value, f"{path}/{key}", schema["properties"][key])
    elif isinstance(node, list):
        for index, item in enumerate(node):
            yield from closed_places(item, f"{path}/{index}", schema.get("items", {}))


def named(path: str, key: str, said: str) -> bool:
    """Whether an error names a place and a key: in Helm's words, or in the chart's own."""
    steps = [re.escape(step) if not step.isdigit() else rf"\[?{step}\]?" for step in path.split("/")[1:]]
    dotted = r"\.?".join(steps)
    if key:
        dotted += rf"{'.' if dotted else ''}{re.escape(key)} is not a key"
    in_words = re.search(rf"^{dotted}(\b|\[| )", said, re.M)
    in_helms = f"at '{path}" in said and (
        not key or re.search(rf"additional properties [^\n]*'{re.escape(key)}'", said)
    )
    return bool(in_words or in_helms)


def unnamed(cases: list[tuple[helm.Values, str, str]]) -> list[tuple[str, str, str]]:
    """What is broken, of values that `broken` has made, where its key is not named."""
    answers = helm.render_all([values for values, _, _ in cases], WORKERS)
    said = [answer.get("error", "") for answer in answers]
    found = zip(cases, said, strict=True)
    return [(path, key, text[:400]) for (_, path, key), text in found if not named(path, key, text)]


def test_random_invalid_values_fail_with_the_keys_path(drawn):
    """Each mistake that was drawn at each place once: where it is drawn again, only what stands beside it differs."""
    cases = [broken(values, seed) for seed, (values, _) in enumerate(drawn)]
    once = {(re.sub(r"/\d+", "/0", path), key): case for case in cases for _, path, key in [case]}
    assert len(once) > COUNT / 2
    assert unnamed(list(once.values())) == []


@pytest.mark.soak
@pytest.mark.takes(1800)
@pytest.mark.parametrize("first", range(COUNT, COUNT + 11_000, 1000))
def test_eleven_thousand_others_and_as_many_broken_ones(first: int):
    """No values render to an invalid manifest and every mistake is named; in thousands, so that one is located."""
    many = [meaningful(Arbitrary(SCHEMA, seed).values(), seed) for seed in range(first, first + 1000)]
    answers = helm.render_all(many, WORKERS)
    failed = [answer["error"] for answer in answers if "error" in answer]
    assert [error for error in failed if not IN_WORDS.search(error)] == []
    assert len(failed) < 10
    for answer in answers:
        helm.validate(answer.get("manifests", ""))
    assert unnamed([broken(values, seed) for seed, values in enumerate(many, first)]) == []
