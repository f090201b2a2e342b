"""Install Python packages into an image without changing those of its base.

    install.py dependencies WANTED PINS [MORE_PINS]   what the base lacks of WANTED and MORE_PINS
    install.py wheels DIR                             the wheels of DIR, then check what they require

NVIDIA's image brings its own torch, packages built for that, and a constraint file that PIP_CONSTRAINT names. So a
version from PINS (the project's lock file) counts only for a package that the base neither has nor constrains; it is
compared with its hashes. pip keeps the others. What pip then has to choose by itself is named: it has no hash. Both
commands end in an error if torch or torchvision changed.
"""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

KEPT = ("torch", "torchvision")
# These require torch, which pip would resolve again, with all that it requires: they are installed by themselves
ALONE = ("timm",)
# Each s3fs needs the fsspec of the same version. The base's fsspec stays; if it is not ours, these are not pinned
TIED = {"fsspec": {"s3fs", "aiobotocore", "botocore", "wrapt"}}
PIP = [
    sys.executable,
    "-m",
    "pip",
    "install",
    "-q",
    "--no-cache-dir",
    "--break-system-packages",
    "--root-user-action=ignore",
]


def kept() -> dict[str, str]:
    """Version and place of each package that must not change."""
    importlib.invalidate_caches()
    facts = {}
    for name in KEPT:
        spec = importlib.util.find_spec(name)
        if spec is None:
            sys.exit(f"install.py: the base image has no {name}; choose a PyTorch image as BASE_IMAGE")
        facts[name] = f"{importlib.metadata.version(name)} in {spec.origin}"
    return facts


def names_in(text: str) -> set[str]:
    """The packages that a requirements or constraint file names."""
    found = re.findall(r"(?m)^\s*([A-Za-z0-9][\w.-]*)", text)
    return {canonicalize_name(name) for name in found}


def constrained() -> set[str]:
    """The packages that the base image's constraint files fix."""
    files = [Path(name) for name in os.environ.get("PIP_CONSTRAINT", "").split()]
    return set().union(*(names_in(file.read_text()) for file in files if file.is_file()))


def applicable(pins: str) -> list[str]:
    """The pins that the base leaves free, each with its hashes on one line."""
    taken = installed().keys() | constrained()
    lines = [line.strip() for line in pins.replace("\\\n", " ").splitlines()]
    lines = [line for line in lines if line and line[0] not in "#-"]
    versions = {line.split()[0] for line in lines}
    for name, followers in TIED.items():
        if version(name) and f"{name}=={version(name)}" not in versions:
            taken |= followers
    return [line for line in lines if not names_in(line) & taken]


def installed() -> dict[str, str]:
    """The packages that are there, and their versions."""
    importlib.invalidate_caches()
    return {canonicalize_name(d.metadata["Name"]): d.version for d in importlib.metadata.distributions()}


def version(name: str) -> str:
    """The version that is installed, or nothing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def dependencies(wanted_file: Path, pins: list[Path]) -> None:
    """Install what the file asks for, and all that the second file of pins names."""
    wanted = [line.strip() for line in wanted_file.read_text().splitlines() if line.strip() and line[0] != "#"]
    wanted += sorted(set().union(*(names_in(file.read_text()) for file in pins[1:])))
    lines = [line for file in pins for line in applicable(file.read_text())]
    with requirements(lines) as file:
        subprocess.check_call([*PIP, "--no-deps", "--require-hashes", "-r", file.name])
    before = installed()
    lines = [line.partition(" --hash=")[0] for line in lines]
    lines += [f"{name}=={version(name)}" for name in TIED if version(name)]
    with requirements(lines) as file:
        alone = [line for line in wanted if names_in(line) & set(ALONE)]
        subprocess.check_call([*PIP, "-c", file.name, *(line for line in wanted if line not in alone)])
        if alone:
            subprocess.check_call([*PIP, "-c", file.name, "--no-deps", *alone])
    for name, found in sorted(installed().items() - before.items()):
        print(f"install.py: {name} {found} is not pinned for this base image, and was not compared with a hash")


@contextmanager
def requirements(lines: list[str]) -> Iterator[IO[str]]:
    """A file of requirements for pip, while it is needed."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        yield file


def wheels(folder: Path) -> None:
    """Install the wheels without dependencies, and check that the installed packages meet their requirements."""
    before = {d.metadata["Name"] for d in importlib.metadata.distributions()}
    files = sorted(str(file) for file in folder.glob("*.whl"))
    subprocess.check_call([*PIP, "--no-index", "--no-deps", *files])
    importlib.invalidate_caches()
    new = [d for d in importlib.metadata.distributions() if d.metadata["Name"] not in before]
    problems = [f"{d.metadata['Name']} requires {line}" for d in new for line in unmet(d.requires or [])]
    if problems:
        sys.exit("install.py: the base image and what was installed do not fit: " + "; ".join(problems))


def unmet(requires: list[str]) -> list[str]:
    """The requirements that no installed package meets, without those of extras."""
    missing = []
    for line in requires:
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"{line}, which is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            missing.append(f"{line}, but {version} is installed")
    return missing


def main() -> None:
    """Run one of the two commands, and fail if it changed torch."""
    command, *arguments = sys.argv[1:]
    before = kept()
    if command == "dependencies":
        dependencies(Path(arguments[0]), [Path(name) for name in arguments[1:]])
    else:
        wheels(Path(arguments[0]))
    if kept() != before:
        sys.exit(f"install.py: {command} changed what the base brought: {before} became {kept()}")


if __name__ == "__main__":
    main()
