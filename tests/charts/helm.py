"""Render the chart with both Helms, for the tests in this folder."""

import copy
import functools
import json
import os
import pickle
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from tests.util import filters

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / "bin"
CHART = ROOT / "charts" / "trainyard"
CI = sorted((CHART / "ci").glob("*-values.yaml"))
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
# Examples that leave the images to the command line are complete with these.
IMAGED = {"global": {"image": {"registry": "registry.example.com/team", "tag": "0.1.0"}}}
IMAGES = tuple(f"--set=global.image.{key}={value}" for key, value in IMAGED["global"]["image"].items())
NAMES_RELEASE = "private-registry.yaml"  # an example that names what is derived from the examples' release, run
HELMS = ("helm3", "helm4")
SUBCHARTS = ("storage", "secrets", "dataset", "evaluate", "pytorchjob", "mpijob", "trainjob", "filebrowser")

Values = dict[str, Any]


class HelmError(Exception):
    """Helm refused; the message is its own."""


def tool(name: str | Path) -> Path:
    """Return the path of a pinned tool."""
    program = BIN / name
    assert program.exists(), f"{program} is missing: run hack/tools/build"
    return program


def run(*command: str | Path, stdin: str = "", **env: str) -> str:
    """Run a pinned tool and return what it prints; if it fails, raise HelmError."""
    program = tool(command[0])
    arguments = [str(part) for part in command[1:]]
    whole = os.environ | env
    done = subprocess.run([program, *arguments], input=stdin, env=whole, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HelmError(done.stdout + done.stderr)
    return done.stdout


@functools.cache
def _template(helm: str, release: str, arguments: tuple[str, ...], stdin: str) -> str:
    return run(helm, "template", release, CHART, "--namespace", "vision", *arguments, stdin=stdin)


@functools.cache
def _rendered(line: str) -> str:
    return render(CHART, json.loads(line))


def template(values: Values | Path, helm: str = "", release: str = "demo", fresh: bool = False) -> str:
    """Render the chart with values from a file or a dict; results are cached, unless `fresh`.

    Where no Helm is named, Helm 3's engine renders them without a new process, but for another release's name. That
    Helm 4 renders the same is to be seen once for each file of values: a start costs more than the engine's render.
    """
    if isinstance(values, Path):
        release = "run" if values.name == NAMES_RELEASE else release
        if helm:
            return _template(helm, release, ("-f", str(values), *(IMAGES if values in EXAMPLES else ())), "")
        values = merged(read_values(values), IMAGED if values in EXAMPLES else {})
    if not helm and release == "demo":
        return (_rendered.__wrapped__ if fresh else _rendered)(json.dumps(values))
    return _template(helm or "helm3", release, ("-f", "-"), yaml.dump(values, Dumper=yaml.CSafeDumper))


def read_values(path: Path) -> Values:
    """Return the values of a file."""
    found: Values = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
    return found


def engine(number: int = 0) -> filters.Filter:
    """Return what renders values, a line of JSON each, as Helm 3 does; several work at once, by their numbers."""
    return filters.started(tool("render"), CHART, number=number)


def render(chart: Path, values: Values) -> str:
    """Render any chart in a folder, as `template` does ours by Helm 3's engine."""
    (line,) = filters.started(tool("render"), chart).ask(f"{json.dumps(values)}\n")
    answer = json.loads(line)
    if "error" in answer:
        raise HelmError(answer["error"])
    return str(answer["manifests"])


def render_lines(lines: list[str], number: int = 0) -> list[dict[str, str]]:
    """Render values, each a line of JSON: each gives `manifests` or an `error`."""
    return [json.loads(engine(number).ask(f"{line}\n")[0]) for line in lines]


def render_all(many: list[Values], workers: int = 2) -> list[dict[str, str]]:
    """Render many values as `render_lines` does, by as many processes."""
    asked = [json.dumps(values) for values in many]
    once = list(dict.fromkeys(asked))
    shares = [once[index::workers] for index in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        answers = {line: answer
                   for share, found in zip(shares, pool.map(render_lines, shares, range(workers)), strict=True)
                   for line, answer in zip(share, found, strict=True)}  # fmt: skip
    return [answers[line] for line in asked]


def documents(text: str) -> list[Values]:
    """Split rendered manifests into objects, those of a List too."""
    found: list[Values] = pickle.loads(_documents(text))  # the caller's own, which it may change
    return found


@functools.cache
def _documents(text: str) -> bytes:
    found = [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]
    return pickle.dumps([item for one in found for item in (one["items"] if one["kind"] == "List" else [one])])


# What kubeconform says of this object tells that it has seen all before it.
END = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "end"}, "wrong": true}'


def validate(text: str, folder: str = "") -> None:
    """Check manifests against the strict schemas, including Argo CD's and Kueue's; `folder`: one of hack/versions."""
    location = str(ROOT / "build/schemas" / folder / "{{ .ResourceKind }}{{ .KindSuffix }}.json")
    # a ComputeDomain is NVIDIA's, whose schema is not among the pinned ones; one at a time: no schema is read twice
    options = ("-strict", "-n", "1", "-skip", "ComputeDomain", "-schema-location", location)
    checker = filters.started(tool("kubeconform"), *options)
    said = checker.ask(f"{text}\n---\n{END}\n---\n", lambda line: line.startswith("stdin - ConfigMap end "))
    if said[:-1]:
        raise HelmError("".join(said[:-1]))


def pieces(text: str) -> list[str]:
    """Return the texts of manifests in one order, without blank lines and the names of templates."""
    kept = "\n".join(line for line in text.splitlines() if line.strip() and not line.startswith("# Source:"))
    return sorted(piece.strip() for piece in re.split(r"^---$", kept, flags=re.M) if piece.strip())


def rendered(values: Values | Path, release: str = "demo") -> str:
    """Return the manifests that values become, the same on both Helms and valid."""
    text = template(values, release=release)
    assert pieces(template(values, "helm4", release)) == pieces(text)
    validate(text)
    return text


def only(text: str, kind: str) -> Values:
    """Return the one object of a kind."""
    (found,) = [document for document in documents(text) if document["kind"] == kind]
    return found


def merged(*layers: Values) -> Values:
    """Merge maps; the last one takes precedence."""
    result: Values = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


def at(path: str, value: Any) -> Values:
    """Return a map that holds one value, at a dotted path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def templates() -> list[Path]:
    """Return the templates of the chart and of its parts."""
    return sorted(path for path in CHART.rglob("templates/**/*") if path.is_file())


@functools.cache
def schema() -> Values:
    """Return the whole schema of the values, as editors have it."""
    whole: Values = json.loads((CHART / "values.strict.schema.json").read_text())
    return whole


# Below these definitions stand a user's own names, or keys that other tests look at.
WHOLE = ("training", "trainer-config", "prepare-config", "amounts", "placement", "dataset-placement", "pod-security")


@functools.cache
def leaves() -> dict[str, Any]:
    """Return the dotted paths of all keys that hold no further ones, also of those without a default."""
    known = schema()
    found: dict[str, Any] = {}

    def walk(node: Values, default: Any, path: str) -> None:
        name = node.get("$ref", "").removeprefix("#/$defs/")
        target = known["$defs"][name] if name else node
        if "properties" not in target or name in WHOLE or name.startswith("k8s.") or name.endswith("-keys"):
            found[path] = default
            return
        for key, value in target["properties"].items():
            inner = default.get(key) if isinstance(default, dict) else None
            if key != "common" and (key != "global" or not path):
                walk(value, inner, f"{path}.{key}" if path else key)

    walk(known, defaults(), "")
    return found


def is_key(path: str) -> bool:
    """Whether the chart has a key at a dotted path, or a map of keys."""
    known = leaves()
    open_ones = (".requests", ".limits")  # maps with defaults, of a user's own names
    whole = [key for key, default in known.items() if default in ({}, None) or key.endswith(open_ones)]
    return any(f"{key}.".startswith(f"{path}.") for key in known) or any(path.startswith(f"{key}.") for key in whole)


def defaults() -> Values:
    """Return all default values, the subcharts' under their names."""
    return copy.deepcopy(_defaults())


@functools.cache
def _defaults() -> Values:
    own = {name: yaml.safe_load((CHART / "charts" / name / "values.yaml").read_text()) for name in SUBCHARTS}
    for values in own.values():
        del values["global"]
    shared: Values = yaml.safe_load((CHART / "values.yaml").read_text())
    del shared["common"]
    return merged(own, shared)


def everything() -> Values:
    """Values with every part on, training on CPUs from an archive over HTTP."""
    return {
        "global": {
            "image": {"registry": "registry.example.com/team", "tag": "0.1.0-abc"},
            "training": {"nodes": 2, "processesPerNode": 2, "recipe": "demo"},
        },
        "secrets": {"enabled": True, "wandb": {"apiKey": "not-a-key"}},
        "dataset": {"source": {"url": "https://data.example.com/pictures.zip"}},
        "evaluate": {"enabled": True, "run": "first"},
        "pytorchjob": {"enabled": True},
        "mpijob": {"enabled": True},
        "trainjob": {"enabled": True},
        "filebrowser": {"enabled": True, "auth": {"password": "not-a-password"}},
    }
