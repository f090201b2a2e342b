"""Run a container of a rendered pod on this machine, with the environment and files that its kubelet would give it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import patience

from . import helm

Texts = dict[str, str]
SECRETS = Path("/var/run/secrets/trainyard")  # below which a pod has its Secrets


class LocalPod:
    """The first container of a pod template, or the named one, whose mounts are folders below another one.

    `objects` are the rendered ones; `secrets` and `configs` those of the namespace, by name, each with its keys.
    """

    def __init__(
        self,
        folder: Path,
        spec: helm.Values,
        objects: list[helm.Values],
        secrets: dict[str, Texts],
        configs: Any = (),
        *,
        container: str = "",
    ) -> None:
        known = [*spec["containers"], *spec.get("initContainers", [])]
        self.spec, self.container = spec, next(one for one in known if container in ("", one["name"]))
        self._secrets = secrets
        self._configs = dict(configs)
        self._configs |= {one["metadata"]["name"]: one["data"] for one in objects if one["kind"] == "ConfigMap"}
        self._volumes = {volume["name"]: folder / "volumes" / volume["name"] for volume in spec["volumes"]}
        self._mounts = sorted(self.container["volumeMounts"], key=lambda mount: -len(mount["mountPath"]))
        for volume in spec["volumes"]:
            self._fill(volume)
        self._secrets_folder = folder / "secrets"
        self._secrets_folder.mkdir()
        for mount in self._mounts:
            if Path(mount["mountPath"]).parent == SECRETS:
                (self._secrets_folder / Path(mount["mountPath"]).name).symlink_to(self._volumes[mount["name"]])

    def _fill(self, volume: helm.Values) -> None:
        """Make a volume: its files, or an empty folder."""
        folder = self._volumes[volume["name"]]
        folder.mkdir(parents=True)
        kind = volume.get("configMap") or volume.get("secret")
        if not kind:
            return
        known = self._configs if "configMap" in volume else self._secrets
        name = kind.get("name") or kind["secretName"]
        if name not in known:
            assert kind.get("optional"), f"the pod waits for {name}"
            return
        items = kind.get("items") or [{"key": key, "path": key} for key in known[name]]
        for item in items:
            (folder / item["path"]).write_text(self.local(known[name][item["key"]]))

    def local(self, text: str) -> str:
        """Replace the pod's mounts with this machine's folders."""
        for mount in self._mounts:
            if mount["mountPath"] != "/tmp":
                text = text.replace(mount["mountPath"] + "/", f"{self._volumes[mount['name']]}/")
        return text

    def mounted(self, path: str) -> Path:
        """This machine's path for a path of the container."""
        return Path(self.local(path))

    def environment(self) -> Texts:
        """The container's environment, with this process's PATH."""
        env = {"PATH": os.environ["PATH"]}
        for source in self.container.get("envFrom", []):
            env |= self._secrets[source["secretRef"]["name"]]
        for one in self.container["env"]:
            reference = one.get("valueFrom", {}).get("secretKeyRef")
            env[one["name"]] = self._secrets[reference["name"]][reference["key"]] if reference else one["value"]
        secrets = {"TRAINYARD_SECRETS": str(self._secrets_folder)} if "TRAINYARD_SECRETS" in env else {}
        return {key: self.local(value) for key, value in env.items()} | secrets

    def start(self, *more: str) -> subprocess.Popen[str]:
        """Start the container's command, with further options."""
        command = [self.local(part) for part in self.container["command"]]
        assert command[0] == "python"
        return subprocess.Popen(
            [sys.executable, *command[1:], *more],
            cwd=helm.ROOT,
            env=self.environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, *more: str) -> tuple[int, str]:
        """Run it to its end; its exit code, and what it printed."""
        with self.start(*more) as process:
            said, _ = patience.communicate(process)
        return process.returncode, said
