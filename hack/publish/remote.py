"""The registry: what it has, what is pushed to it, and what comes back. skopeo and helm do the talking."""

import base64
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hack.publish import layout
from hack.publish.chart import HELM
from hack.publish.programs import PublishError, explain, run

ABSENT = ("manifest unknown", "name unknown", "not found", "manifest_unknown", "name_unknown")


class Registry(NamedTuple):
    """A registry with a folder in it, and the environment in which programs are logged in there."""

    name: str
    env: Mapping[str, str]


@contextlib.contextmanager
def login(name: str) -> Iterator[Registry]:
    """Yield a registry with the login of USERNAME and PASSWORD, or else of Docker's or skopeo's own file.

    The password goes into a file that only this user can read, never into an argument. Raises PublishError.
    """
    env = {key: value for key, value in os.environ.items() if key not in ("USERNAME", "PASSWORD")}
    env |= {"TZ": "UTC"}  # Helm writes local times into manifests
    password = os.environ.get("PASSWORD", "")
    if password and not os.environ.get("USERNAME"):
        raise PublishError("PASSWORD is set without USERNAME: set both")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        if password:
            both = base64.b64encode(f"{os.environ['USERNAME']}:{password}".encode()).decode()
            path.touch(mode=0o600)
            path.write_text(json.dumps({"auths": {name.partition("/")[0]: {"auth": both}}}))
            env |= {"DOCKER_CONFIG": folder}
        else:
            path = _own_login() or path
        if not path.exists():
            path.write_text("{}")
        yield Registry(name, env | {"REGISTRY_AUTH_FILE": str(path), "HELM_REGISTRY_CONFIG": str(path)})


def _own_login() -> Path | None:
    """Return the file in which this user's logins are, if there is one."""
    home = Path(os.environ.get("HOME", "/"))
    places = [
        os.environ.get("REGISTRY_AUTH_FILE", ""),
        f"{os.environ.get('XDG_RUNTIME_DIR', '/none')}/containers/auth.json",
        f"{os.environ.get('DOCKER_CONFIG') or home / '.docker'}/config.json",
    ]
    return next((Path(place) for place in places if place and Path(place).is_file()), None)


def manifest(registry: Registry, reference: str) -> bytes:
    """Return the manifest that a reference below the registry's folder has, or nothing. Raises PublishError."""
    try:
        return run("skopeo", "inspect", "--raw", f"docker://{registry.name}/{reference}", env=registry.env)
    except PublishError as error:
        if any(word in str(error).lower() for word in ABSENT):
            return b""
        raise explain(registry.name, error) from None


def push(registry: Registry, folder: Path, name: str, reference: str) -> None:
    """Push an image or artifact of a layout, byte for byte. Raises PublishError."""
    target = f"docker://{registry.name}/{reference}"
    try:
        run("skopeo", "copy", "-q", "--preserve-digests", f"oci:{folder}:{name}", target, env=registry.env)
    except PublishError as error:
        raise explain(registry.name, error) from None


def push_chart(registry: Registry, packed: Path) -> None:
    """Push a packed chart. Raises PublishError."""
    try:
        run(HELM, "push", packed, f"oci://{registry.name}/charts", env=registry.env)
    except PublishError as error:
        raise explain(registry.name, error) from None


def pull(registry: Registry, reference: str, folder: Path, name: str) -> str:
    """Pull an image or artifact whole into a layout, where each blob is compared; return its digest.

    Raises PublishError.
    """
    source = f"docker://{registry.name}/{reference}"
    run("skopeo", "copy", "-q", "--preserve-digests", source, f"oci:{folder}:{name}", env=registry.env)
    return layout.names(folder)[name]


def pull_chart(registry: Registry, version: str, folder: Path) -> bytes:
    """Pull a chart as users do, and return the package. Raises PublishError."""
    folder.mkdir(parents=True)
    run(HELM, "pull", f"oci://{registry.name}/charts/trainyard", "--version", version, "-d", folder, env=registry.env)
    (packed,) = folder.glob("*.tgz")
    return packed.read_bytes()
