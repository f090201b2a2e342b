"""List what a release fetches from elsewhere: each image and address, to copy it to a site without a way out.

trainyard mirror -f VALUES [--chart REF] [--set KEY=VALUE] [--manifests FILE] [--images | --json]
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import yaml

from trainyard import config
from trainyard.cluster import helm, parsing
from trainyard.cluster.demand import documents, refusal
from trainyard.cluster.parsing import WrongInputError
from trainyard.cluster.up import add_chart, helm_arguments
from trainyard.core.exits import UserError, printable

# What training-operator 1.9.4 adds to the workers of a PyTorchJob that has a master (its pkg/config/config.go)
INIT_IMAGE = "alpine:3.10"
LIBRARIES = {"timm": "https://huggingface.co"}  # where weights without an address come from; others:
TORCH = "https://download.pytorch.org"


class Needed(NamedTuple):
    """An image or an address, and what needs it."""

    kind: str
    name: str
    reason: str


def main(arguments: list[str] | None = None) -> int:
    """Print what the release of the command line needs."""
    options = parser().parse_args(arguments)
    return parsing.run_command("mirror", lambda: mirror(options))


def parser() -> argparse.ArgumentParser:
    """Return the parser of `trainyard mirror`."""
    own = parsing.command(
        "mirror",
        "List every image and outside address that a release needs, to copy them to a site without a way out.",
        """
        trainyard mirror -f run.yaml
        trainyard mirror -f run.yaml --manifests mpi-operator.yaml --images
        """,
        {0: "listed"},
        "Helm renders the chart with your values; no cluster is asked.",
    )
    add_chart(own)
    own.add_argument("--manifests", type=Path, action="append", default=[], metavar="FILE",
        help="other objects whose images are needed, such as an operator's manifests; may be repeated")  # fmt: skip
    form = own.add_mutually_exclusive_group()
    form.add_argument("--images", action="store_true", help="print the names of the images alone, one a line")
    form.add_argument("--json", action="store_true", help="print JSON")
    return own


def mirror(options: argparse.Namespace) -> int:
    """List what is needed; raises WrongInputError and KubeError."""
    objects = render(options)
    found = [*of_objects(objects), *(one for path in options.manifests for one in of_objects(read_objects(path)))]
    listed = merge(found)
    if options.json:
        print(
            json.dumps(
                [{"kind": kind, "name": name, "for": reasons} for (kind, name), reasons in listed.items()], indent=2
            )
        )
    elif options.images:
        print("\n".join(name for kind, name in listed if kind == "image"))
    else:
        wide = max((len(name) for _, name in listed), default=0)
        for (kind, name), reasons in listed.items():
            print(printable(f"{kind:<8} {name:<{wide}}  {', '.join(reasons)}"))
    return 0


def render(options: argparse.Namespace) -> list[dict]:
    """Return the chart's objects; raises WrongInputError with what the chart says of the values."""
    done = helm.template("run", *helm_arguments(options))
    if done.returncode:
        raise WrongInputError(f"the chart refuses the values: {refusal(done.stderr)}")
    return list(documents(done.stdout))


def read_objects(path: Path) -> list[dict]:
    """Return the objects of a file of manifests; raises WrongInputError where it holds none."""
    try:
        return list(documents(path.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        raise WrongInputError(f"--manifests {path}: it cannot be read ({error})") from error
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise WrongInputError(
            f"--manifests {path}: it holds no Kubernetes objects: name what kubectl applies"
        ) from error


def merge(found: list[Needed]) -> dict[tuple[str, str], list[str]]:
    """Return the reasons of each thing by kind and name: images first, in the order of their names."""
    merged: dict[tuple[str, str], list[str]] = {}
    for kind, name, reason in sorted(found, key=lambda one: (one.kind != "image", one.name)):
        reasons = merged.setdefault((kind, name), [])
        if reason not in reasons:
            reasons.append(reason)
    return merged


def of_objects(objects: list[dict]) -> Iterator[Needed]:
    """Yield what objects of Kubernetes need."""
    for thing in objects:
        reason = f"{thing['kind']}/{thing['metadata']['name']}"
        for image in images(thing):
            yield Needed("image", image, reason)
        if "Master" in (thing.get("spec") or {}).get("pytorchReplicaSpecs", {}):
            yield Needed("image", INIT_IMAGE, f"{reason}, added by training-operator unless its flag names another")
        for name, value in environment(thing):
            if "://" in value:
                yield Needed("address", without_login(value), f"{name} of {reason}")
        if thing["kind"] == "ConfigMap":
            for text in (thing.get("data") or {}).values():
                yield from of_settings(text)


def images(tree: Any) -> Iterator[str]:
    """Yield the image of each container, and of each volume that is one, however deep they are."""
    if isinstance(tree, list):
        for one in tree:
            yield from images(one)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            if key in ("containers", "initContainers", "volumes") and isinstance(value, list):
                named = (one.get("image") for one in value if isinstance(one, dict))
                yield from (str(one.get("reference", "")) if isinstance(one, dict) else one for one in named if one)
            yield from images(value)


def without_login(address: str) -> str:
    """Return an address without user and password, which a proxy's may have; the list is passed on."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return address.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def environment(tree: Any) -> Iterator[tuple[str, str]]:
    """Yield name and value of each variable of each container."""
    if isinstance(tree, list):
        for one in tree:
            yield from environment(one)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            if key == "env" and isinstance(value, list):
                yield from ((one["name"], str(one["value"])) for one in value if one.get("value"))
            yield from environment(value)


def of_settings(text: str) -> Iterator[Needed]:
    """Yield the addresses that settings in a ConfigMap name, those of a preparation or of a run."""
    try:
        tree = json.loads(text)
    except ValueError:
        return
    if not isinstance(tree, dict):
        return
    source = tree.get("source")
    if isinstance(source, dict):
        yield from (
            Needed("address", str(value), "the dataset's source") for value in source.values() if "://" in str(value)
        )
        for key in ("competition", "dataset"):
            if source.get(key):
                yield Needed("address", "https://www.kaggle.com", f"the dataset's source, {key} {source[key]}")
    elif "data" in tree:
        yield from of_run(tree)


def of_run(tree: dict) -> Iterator[Needed]:
    """Yield the addresses of a run's settings: pretrained weights and trackers."""
    try:
        run = config.build(tree)
    except UserError:
        return  # the pods will say so; the addresses of settings that are refused are of no use
    weights, model = run.model.pretrained, run.model.name
    if "://" in weights:
        yield Needed("address", weights, "pretrained weights")
    elif weights and "/" not in weights:
        place = run.model.weights_mirror or LIBRARIES.get(model.partition(":")[0], TORCH)
        yield Needed("address", place, f"pretrained weights {weights} of {model}")
    if run.mlflow.uri and run.mlflow.mode != "off":
        yield Needed("address", run.mlflow.uri, "MLflow")
    if run.wandb.mode in ("auto", "online"):
        yield Needed("address", "https://api.wandb.ai", "Weights & Biases, where its key is there")
