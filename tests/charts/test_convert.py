"""`trainyard convert` on manifests re-created after public examples: values render, and all that is lost is named.

The files in cases/convert say in their first lines what they are made after, the options that they need, and what is
lost of them.
"""

import copy
import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.util.converted import PROGRAM, small
from trainyard.cluster import convert
from trainyard.cluster.conversion import source, templates, written
from trainyard.cluster.conversion.common import Asked

from . import helm

FILES = sorted((Path(__file__).parent / "cases" / "convert").glob("*.yaml"))
each = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def said(path: Path, what: str) -> list[str]:
    """Return what the head of a file says after `# WHAT: `."""
    return re.findall(rf"^# {what}: (.*)$", path.read_text(), re.M)


@cache
def converted(path: Path) -> dict[str, Any]:
    """Convert a file with its options, as the command does."""
    args = convert.parser().parse_args([str(path), *shlex.split(" ".join(said(path, "options")))])
    asked = Asked(args.image, tuple(shlex.split(args.command)))
    done = convert.convert(source.read(args.source, "vision"), asked)
    text = written.text(done.values, done.name, done.lost, done.changed)
    assert yaml.safe_load(text) == done.values
    return {"values": done.values, "lost": done.lost, "changed": done.changed, "text": text}


@cache
def rendered() -> dict[str, str]:
    """Render all files at once; one whose image is not fixed gets a tag, which the chart asks for."""
    many = [
        helm.merged({"global": {"image": {"tag": "set"}}} if untagged(path) else {}, converted(path)["values"])
        for path in FILES
    ]
    return {
        path.stem: answer.get("error") or answer["manifests"]
        for path, answer in zip(FILES, helm.render_all(many), strict=True)
    }


@cache
def objects(name: str) -> list[helm.Values]:
    return helm.documents(rendered()[name])


def untagged(path: Path) -> bool:
    return any("names another image tomorrow" in note.why for note in converted(path)["lost"])


def test_there_are_at_least_twenty_of_all_kinds() -> None:
    kinds = [converted(path)["values"]["global"]["training"]["operator"] for path in FILES]
    assert len(FILES) >= 20
    assert min(kinds.count(one) for one in ("pytorchjob", "mpijob", "trainjob")) >= 5


@each
def test_what_is_lost_is_named_and_nothing_else(path: Path) -> None:
    lost = [f"{note.path}: {note.value}" for note in converted(path)["lost"]]
    expected = said(path, "lost")
    assert len(lost) == len(expected), lost
    for one in expected:
        assert any(line == one or line.startswith(f"{one}: ") for line in lost), (one, lost)
    assert all(f"# - {note.path}" in converted(path)["text"] for note in converted(path)["lost"])


def test_all_of_them_render_and_fit_the_schemas_of_kubernetes_and_the_operators() -> None:
    wrong = {name: text for name, text in rendered().items() if "kind:" not in text}
    assert wrong == {}
    helm.validate("\n---\n".join(rendered().values()))


def test_what_the_cluster_starts_of_them_renders_and_fits_the_earlier_operators_too() -> None:
    """A release's soak starts all of them (tests/e2e/test_convert.py); here is seen that it can."""
    image = {"registry": "registry.example.com/team", "tag": "0.1.0"}
    many = [small(copy.deepcopy(converted(path)["values"]), image, "out", PROGRAM) for path in FILES]
    many += [helm.merged(one, helm.at("trainjob.version", version)) for one in many for version in ("2.1", "2.2")
             if one["global"]["training"]["operator"] == "trainjob"]  # fmt: skip
    rendered = helm.render_all(many)
    assert [answer for answer in rendered if "error" in answer] == []
    for values, answer in zip(many, rendered, strict=True):
        found, operator = helm.documents(answer["manifests"]), values["global"]["training"]["operator"]
        text = json.dumps(found)
        assert json.dumps(PROGRAM)[1:-1] in text, "the program is not started"
        assert not re.search(r"nvidia\.com|amd\.com|rdma|vpc\.amazonaws", text), "what the cluster does not have"
        version = values.get("trainjob", {}).get("version", "")
        folders = {"mpijob": ("", "mpi-operator-0.7"), "trainjob": (f"trainer-{version}" if version else "",)}
        jobs = [one for one in found if one["kind"] in ("PyTorchJob", "MPIJob", "TrainJob", "TrainingRuntime")]
        assert jobs
        for folder in folders.get(operator, ("",)):
            helm.validate("\n---\n".join(map(json.dumps, jobs)), folder)  # in YAML of Python 5e-5 would be no text


@pytest.mark.parametrize(
    ("name", "program"), [("pytorch-elastic", "helm3"), ("mpi-neox", "helm4"), ("trainjob-runtime", "helm3")]
)
def test_helm_takes_the_file_itself_and_all_of_it_is_read(name: str, program: str, tmp_path: Path) -> None:
    """The YAML of a file is read by Helm's reader, to which 5e-5 is a number unless it is quoted."""
    file = tmp_path / "values.yaml"
    file.write_text(converted(next(path for path in FILES if path.stem == name))["text"])
    jobs = helm.documents(helm.run(program, "template", "demo", helm.CHART, "-n", "vision", "-f", file))
    kinds = ("PyTorchJob", "MPIJob", "TrainJob", "TrainingRuntime")
    assert [one for one in jobs if one["kind"] in kinds] == [one for one in objects(name) if one["kind"] in kinds]
    if program == "helm4":
        dry = helm.run(program, "install", "demo", helm.CHART, "-f", file, "--dry-run=client")
        assert "read by nothing of this release" not in dry


def pods(path: Path) -> list[helm.Values]:
    """Return the pod specs of the rendered job, the launcher's last."""
    found: list[helm.Values] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "containers" in node:
                found.append(node)
            node = list(node.values())
        for one in node if isinstance(node, list) else []:
            walk(one)

    jobs = [one for one in objects(path.stem) if one["kind"] in ("PyTorchJob", "MPIJob", "TrainingRuntime")]
    walk(jobs[0])
    return sorted(found, key=lambda spec: "rank" in spec["containers"][0]["command"])


@each
def test_pods_have_the_volumes_environment_devices_and_places_of_the_manifest(path: Path) -> None:
    """What a manifest names appears in the pods, but for what is told as lost or done in another way."""
    text = json.dumps(pods(path))
    notes = json.dumps([note.path + note.value for key in ("lost", "changed") for note in converted(path)[key]])
    manifest = path.read_text()
    for name in {
        *re.findall(r"claimName: (\S+?)[}\s]", manifest),
        *re.findall(r"configMap(?:Ref)?: {name: (\S+?)}", manifest),
    }:
        assert f'"{name}"' in text, name
    for name in set(re.findall(r"mountPath: (/\S+?)[,}\s]", manifest)):
        assert f'"{name}"' in text or "memory" in notes, name
    for name in set(re.findall(r"env: \[?{name: (\w+)", manifest)) - set(templates.RESERVED):
        assert f'"{name}"' in text or name in notes, name
    for name in set(re.findall(r"((?:nvidia|amd)\.com/gpu|rdma/ib|vpc\.amazonaws\.com/efa)", manifest)):
        if f"key: {name}" not in manifest:
            assert f'"{name}"' in text, name


def test_half_a_gpu_is_a_process_without_a_device() -> None:
    (path,) = [path for path in FILES if path.stem == "pytorch-kai-fraction"]
    training = converted(path)["values"]["global"]["training"]
    assert (training["gpusPerNode"], training["gpusBy"]) == (1, "annotations")
    assert training["jobLabels"] == {"kai.scheduler/queue": "small"}
    (job,) = [one for one in objects(path.stem) if one["kind"] == "PyTorchJob"]
    assert job["metadata"]["labels"]["kai.scheduler/queue"] == "small"
    for pod in pods(path):
        assert "gpu" not in json.dumps([one.get("resources") for one in pod["containers"]])
        assert pod["hostUsers"] is False


def test_reserved_names_are_those_that_the_chart_refuses() -> None:
    run = (helm.CHART / "charts/common/templates/_run.tpl").read_text()
    own = re.search(r"\$own := list (.*?) -}}", run, re.S)
    assert own
    assert set(re.findall(r'"(\w+)"', own[1])) == set(templates.RESERVED)
    volumes = re.search(r"\$volumes := list (.*?) -}}", run)
    assert volumes
    assert set(re.findall(r'"([\w-]+)"', volumes[1])) == set(templates.VOLUMES)
