"""Publish a version: images, Python package and chart, to a registry (docs/release.md).

    python -m hack.publish --registry registry.example.com/team --version 1.2.3 [--dry-run]

All is made before anything is pushed, from the last commit. What the registry has already must be the same: nothing is
overwritten, so a publication that was cut off is continued by the same command. At the end everything is pulled and
compared, and build/publish/release.json has the digests. Ends with 2 and one line if something is wrong.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from hack.publish import chart, layout, packages, remote, versions
from hack.publish.programs import ROOT, PublishError, run

OUT = ROOT / "build" / "publish"
REGISTRY = re.compile(r"[a-z0-9][a-z0-9.-]*(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
PYTHON = "python/trainyard"  # the package's place under the registry


class Made(NamedTuple):
    """What is published: a layout of images and package with the digest of each, and the packed chart."""

    folder: Path
    digests: dict[str, str]
    chart: Path


def main(arguments: list[str] | None = None) -> int:
    """Publish; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as work:
            publish(options, Path(work))
    except PublishError as error:
        print(f"publish: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hack.publish", description="Publish a version to a registry.")
    parser.add_argument("--registry", default="", help="host and folder, such as registry.example.com/team")
    parser.add_argument("--version", default="", help="the version of pyproject.toml")
    parser.add_argument("--images", type=Path, help="OCI layout with the images; default: hack/images/build's")
    parser.add_argument("--source", default="", help="address of the source code, shown by Artifact Hub")
    parser.add_argument("--dry-run", action="store_true", help="make everything, print the digests, and push nothing")
    return parser


def publish(options: argparse.Namespace, work: Path) -> None:
    """Look, make, push, pull and compare. Raises PublishError."""
    check(options)
    if options.dry_run:
        tell(options, make(options, work))
        say("dry run: nothing was pushed")
        return
    with remote.login(options.registry) as registry:
        remote.manifest(registry, f"charts/trainyard:{options.version}")  # a login that is refused ends here
        made = make(options, work)
        tell(options, made)
        lacking = missing(registry, options.version, made)
        for name, reference in places(options.version, made).items():
            if name in lacking:
                remote.push(registry, made.folder, name, reference)
                say(f"pushed {reference}")
        if "chart" in lacking:  # last: its images are there when it is found
            remote.push_chart(registry, made.chart)
            say(f"pushed charts/trainyard:{options.version}")
        compare(registry, options.version, made, work)
        record(registry, options, made)
    say(f"pulled again and compared: {len(made.digests) + 1} are equal; their digests: {OUT / 'release.json'}")


def check(options: argparse.Namespace) -> None:
    """Refuse what can be refused before anything is built. Raises PublishError."""
    if not REGISTRY.fullmatch(options.registry):
        raise PublishError(
            f"REGISTRY is {options.registry or 'empty'}: write a host and folder such as registry.example.com/team, "
            "in lower case and without a scheme"
        )
    stated = versions.stated()
    if options.version != stated:
        given = options.version or "empty"
        raise PublishError(f"VERSION is {given}, and pyproject.toml says {stated}: they must be equal")
    if found := list(versions.problems()):
        raise PublishError("; ".join(found))
    changed = git("status", "--porcelain")
    if changed:
        first = changed.splitlines()[0].split(maxsplit=1)[1]
        raise PublishError(f"the tree has changes that no commit has, such as {first}: commit or remove them")
    for lacking in versions.unfinished(options.version):
        if not options.dry_run:
            raise PublishError(lacking)
        say(f"would be refused: {lacking}")


def git(*words: str) -> str:
    """Return what git says of this tree. Raises PublishError."""
    return run("git", "-C", ROOT, *words).decode().strip()


def make(options: argparse.Namespace, work: Path) -> Made:
    """Make all that is published, below build/publish. Raises PublishError."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    epoch = int(git("log", "-1", "--format=%ct"))
    source = work / "source"
    source.mkdir()
    export(source)
    folder = OUT / "layout"
    wanted = chart.repositories(source / "charts" / "trainyard")
    digests = stage_images(options.images or built_images(), wanted, folder)
    own = chart.copy(source, work)
    facts = {"version": options.version} | ({"source": options.source} if options.source else {})
    chart.write(own, options.registry, digests, facts)
    packed = chart.package(own, OUT / "chart", epoch)
    (source / "src" / "trainyard" / "registry").write_text(f"{options.registry}\n")  # whose chart the commands install
    files = {path: packages.MEDIA_TYPES[path.suffix] for path in packages.build(source, OUT / "packages", epoch)}
    notes = {"version": options.version, "revision": git("rev-parse", "HEAD")}
    notes = {f"org.opencontainers.image.{key}": value for key, value in notes.items()}
    digests[PYTHON] = layout.add(folder, PYTHON, packages.KIND, files, notes)
    return Made(folder, digests, packed)


def export(to: Path) -> None:
    """Write the files of the last commit, and nothing else. Raises PublishError."""
    archive = run("git", "-C", ROOT, "archive", "HEAD")
    subprocess.run(["tar", "-x", "-C", to], input=archive, check=True)


def built_images() -> Path:
    """Build the images where they are missing, and return their layout. Raises PublishError."""
    said = run(ROOT / "hack" / "images" / "build").decode()
    tag = said.partition("TAG=")[2].split()[0]
    return Path(run("bash", "-c", f'. "{ROOT}/hack/images/lib.sh" && echo "$IMAGES"').decode().strip()) / tag


def stage_images(images: Path, wanted: dict[str, str], folder: Path) -> dict[str, str]:
    """Copy the chart's images into a layout, compressed as they will be pushed; return their digests by name.

    Raises PublishError.
    """
    there = layout.names(images)
    for name in sorted(set(wanted.values())):
        found = [one for one in there if one.partition(":")[0].rpartition("/")[2] == name]
        if len(found) != 1:
            raise PublishError(f"{images} has {len(found)} images {name}, and one is needed: build them again")
        run("skopeo", "copy", "-q", f"oci:{images}:{found[0]}", f"oci:{folder}:{name}")
    return layout.names(folder)


def places(version: str, made: Made) -> dict[str, str]:
    """Return the references under the registry, by the names of the layout."""
    return {name: f"{name}:{version}" for name in sorted(made.digests)}


def tell(options: argparse.Namespace, made: Made) -> None:
    """Print what is, or would be, pushed."""
    for name, reference in places(options.version, made).items():
        say(f"{options.registry}/{reference} {made.digests[name]}")
    packed = layout.digest(made.chart.read_bytes())
    say(f"oci://{options.registry}/charts/trainyard:{options.version}, package {packed}")


def missing(registry: remote.Registry, version: str, made: Made) -> set[str]:
    """Return what the registry lacks. Raises PublishError if it has something else under a name."""
    lacking = set()
    for name, reference in places(version, made).items():
        there = remote.manifest(registry, reference)
        _same(registry, reference, there and layout.digest(there), made.digests[name])
        if not there:
            lacking.add(name)
    there = remote.manifest(registry, f"charts/trainyard:{version}")
    packed = layout.digest(made.chart.read_bytes())
    _same(registry, f"charts/trainyard:{version}", there and json.loads(there)["layers"][0]["digest"], packed)
    return lacking | (set() if there else {"chart"})


def _same(registry: remote.Registry, reference: str, there: str | bytes, here: str) -> None:
    """Raise PublishError if the registry has something else."""
    if there and there != here:
        raise PublishError(
            f"{registry.name}/{reference} is published already, with other content ({there!s}; here {here}): "
            "a version is never overwritten; raise the version, or check out the commit that it was published from"
        )


def compare(registry: remote.Registry, version: str, made: Made, work: Path) -> None:
    """Pull everything and compare it with what was made. Raises PublishError."""
    for name, reference in places(version, made).items():
        if remote.pull(registry, reference, work / "pulled", name) != made.digests[name]:
            raise PublishError(f"{registry.name}/{reference} came back with another digest than {made.digests[name]}")
    if remote.pull_chart(registry, version, work / "chart") != made.chart.read_bytes():
        raise PublishError(f"the chart that {registry.name} returned is not the one that was pushed")


def record(registry: remote.Registry, options: argparse.Namespace, made: Made) -> None:
    """Write the digests into release.json, for what signs and describes them."""
    pushed = layout.digest(remote.manifest(registry, f"charts/trainyard:{options.version}"))
    every = made.digests | {"charts/trainyard": pushed}
    images = set(made.digests) - {PYTHON}
    found = [
        {"reference": f"{registry.name}/{name}@{which}", "image": name in images}
        for name, which in sorted(every.items())
    ]
    facts = {"version": options.version, "commit": git("rev-parse", "HEAD"), "artifacts": found}
    (OUT / "release.json").write_text(json.dumps(facts, indent=1) + "\n")


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"publish: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
