"""What `trainyard up` and `trainyard delete` refuse before Helm is called, and what they pass on from Helm."""

import json
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.unit.cluster import things
from trainyard.cluster import connection, delete, helm, mirror, published, up

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def values(tmp_path) -> Path:
    path = tmp_path / "values.yaml"
    path.write_text("global: {}\n")
    return path


@pytest.fixture
def helm_is(tmp_path, monkeypatch) -> Callable[[str], None]:
    """Return a function that puts a script in Helm's place."""

    def put(script: str) -> None:
        program = tmp_path / "helm"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(connection, "ROOT", tmp_path)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return put


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no such file: `trainyard init -o"),
        ("global: {a: 1\nb: [", "is not YAML at line "),
        ("- a\n- b\n", "holds no keys and values"),
        ("just words", "holds no keys and values"),
        (
            "global: {}\n# more\nglobal: {}\n",
            "the key global stands twice in one map, in lines 1 and 3: Helm takes the last",
        ),
        ("a:\n  - {b: 1, b: 2}\n", "the key b stands twice in one map, in lines 2 and 2"),
    ],
)
def test_a_values_file_that_is_none_is_named_before_helm_is_called(tmp_path, ended, monkeypatch, text, said):
    monkeypatch.setattr(connection, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # no helm: it would be named
    path = tmp_path / "values.yaml"
    if text is not None:
        path.write_text(text)
    code, _, err = ended(up.main, "run", "-f", str(path))
    assert code == 2
    assert err.startswith(f"up: -f {path}")
    assert said in err


def test_keys_that_stand_twice_in_other_maps_or_by_an_anchor_are_no_mistake(tmp_path):
    path = tmp_path / "values.yaml"
    path.write_text("x-gpu: &gpu\n  tolerations: [{key: a}, {key: b}]\na:\n  <<: *gpu\n  b: *gpu\nb: {a: *gpu}\n")
    up.check_values(path)


@pytest.mark.parametrize("command", ["up", "mirror", "delete"])  # doctor: test_doctor_command.py
def test_a_missing_helm_is_named_with_the_remedy(values, claims, ended, monkeypatch, command):
    monkeypatch.setattr(connection, "ROOT", values.parent)
    monkeypatch.setenv("PATH", str(values.parent))
    chart = ["-f", str(values), "--chart", str(ROOT / "charts/trainyard")]
    main, words = {
        "up": (up.main, ["run", "-n", "vision", *chart]),
        "mirror": (mirror.main, chart),
        "delete": (delete.main, ["run", "-n", "vision", "--data", "--yes-delete-data"]),
    }[command]
    assert ended(main, *words) == (2, "", f"{command}: helm is not on PATH: {helm.REMEDY}\n")
    assert untouched(claims)


@pytest.mark.parametrize("said", [
    'webhook "validator.trainjob.trainer.kubeflow.org" denied the request: spec.runtimeRef: Invalid value: '
    'TrainingRuntime.trainer.kubeflow.org "run-1" not found: specified trainingRuntime must be created before the '
    "TrainJob is created",
    """admission webhook "vtrainjob.kb.io" denied the request: runtime 'run-1' not found""",
])  # fmt: skip
def test_helm_is_called_again_where_a_webhook_does_not_know_the_runtime_yet(values, ended, monkeypatch, helm_is, said):
    """A program in Helm's place says what it says then: no cluster can be made to be late on purpose."""
    tmp_path = values.parent
    calls = f"{tmp_path}/calls"
    helm_is(f"echo once >> {calls}\n[ $(wc -l < {calls}) = 2 ] && exit 0\ncat {tmp_path}/said >&2; exit 1")
    monkeypatch.setattr(up, "PAUSE", 0.0)
    command = ("run", "-f", str(values), "--chart", str(ROOT / "charts/trainyard"), "--no-follow")
    (tmp_path / "said").write_text(said)
    code, _, err = ended(up.main, *command)
    assert (code, (tmp_path / "calls").read_text()) == (0, "once\nonce\n"), err
    (tmp_path / "said").write_text("another refusal")
    assert ended(up.main, *command)[0] == 1
    assert (tmp_path / "calls").read_text() == "once\n" * 3


@pytest.mark.parametrize(("kind", "there"), [
    ("TrainJob", "set global.training.operator to pytorchjob or mpijob, which it has, or install"),
    ("MPIJob", "set global.training.operator to pytorchjob, which it has, or install"),
    ("PodMonitor", ""),
])  # fmt: skip
@pytest.mark.usefixtures("here")
def test_a_cluster_without_the_runs_operator_is_told_with_those_that_it_has(values, ended, helm_is, kind, there):
    """The server knows PyTorchJobs and MPIJobs."""
    helm_is(f"echo 'resource mapping not found: no matches for kind \"{kind}\"' >&2; exit 1")
    code, _, err = ended(up.main, "run", "-f", str(values), "--chart", str(ROOT / "charts/trainyard"))
    said = [line for line in err.splitlines() if line.startswith("up: ")]
    assert (code, len(said)) == (1, bool(there)), err
    if there:
        assert said[0].startswith(f"up: this cluster has no {kind}: {there}")
        assert f"trainyard doctor -f {values}" in said[0]


@pytest.mark.parametrize("status", [200, 403, 404])
def test_a_namespace_is_made_only_where_it_is_not_there(values, ended, here, helm_is, status):
    """Helm tries to make it even where it is there, which fails for a user with rights in that namespace alone."""
    helm_is(f'echo "$@" >> {values.parent}/calls')
    here.fault = lambda path, _: (status, "said") if path == "/api/v1/namespaces/vision" else None
    chart = str(ROOT / "charts/trainyard")
    code, _, err = ended(up.main, "run", "-f", str(values), "-n", "vision", "--chart", chart, "--no-follow")
    assert code == 0
    told = "up: whether namespace vision exists could not be checked, since this user may not look at it; if Helm"
    assert err.startswith(told) if status == 403 else err == "", err
    assert ("--create-namespace" in (values.parent / "calls").read_text()) == (status == 404)


def test_a_chart_that_is_not_there_is_named(values, ended, monkeypatch):
    code, _, err = ended(up.main, "run", "-f", str(values), "--chart", "charts/nowhere")
    assert code == 2
    assert "--chart is charts/nowhere, which is not there: name a folder, a package, or oci://" in err
    monkeypatch.setenv("TRAINYARD_CHART", "/nowhere")
    assert "TRAINYARD_CHART is /nowhere" in ended(up.main, "run", "-f", str(values))[2]


def test_the_chart_is_the_options_the_environments_or_the_published_one_of_this_version(values, monkeypatch):
    def chosen(*more: str) -> list[str]:
        return up.chart(up.parser().parse_args(["run", "-f", str(values), *more]))

    assert chosen() == [str(ROOT / "charts/trainyard")]  # of this checkout, which was not published
    monkeypatch.setattr(published, "CHART", "oci://registry.example.com/team/charts/trainyard")
    assert chosen() == [published.CHART, "--version", published.CHART_VERSION]
    assert chosen("--chart-version", "9.9.9")[-1] == "9.9.9"
    monkeypatch.setenv("TRAINYARD_CHART", "oci://registry.example.com/charts/trainyard")
    assert chosen() == ["oci://registry.example.com/charts/trainyard"]
    assert chosen("--chart", str(ROOT / "charts/trainyard")) == [str(ROOT / "charts/trainyard")]


def test_an_installed_command_finds_the_chart_of_the_checkout_that_it_is_called_in(
    values, tmp_path, ended, monkeypatch
):
    """As `uv tool install .` leaves it: the package is a copy elsewhere, with nothing published."""
    monkeypatch.setattr(connection, "ROOT", tmp_path / "lib")
    monkeypatch.chdir(tmp_path)
    code, _, err = ended(up.main, "run", "-f", str(values))
    assert code == 2
    assert "no chart is known: call this in a checkout, or name one by --chart or TRAINYARD_CHART" in err
    monkeypatch.chdir(ROOT)
    assert published.find_chart() == str(ROOT / "charts/trainyard")


def test_the_published_charts_version_is_this_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((ROOT / "charts/trainyard/Chart.yaml").read_text())["version"]
    assert published.CHART_VERSION == project == chart


def test_helms_error_is_passed_on_untouched(tmp_path, values, ended, here):
    """The server is none that Helm takes for a cluster, and the folder is no chart."""
    chart = tmp_path / "chart"
    chart.mkdir()
    code, out, err = ended(up.main, "run", "-f", str(values), "--chart", str(chart))
    own = [str(ROOT / "build/bin/helm"), "upgrade", "--install", "run", str(chart), "-n", "default"]
    helm = subprocess.run(own, capture_output=True, text=True, check=False)
    assert helm.stderr.startswith("Error: ")
    assert (code, out, err) == (helm.returncode, helm.stdout, helm.stderr)


def claim(name: str, release: str, owner: str | None = None, **more: str) -> dict:
    meta = things.meta(name, release, "storage")
    meta["annotations"] = {
        "meta.helm.sh/release-name": owner or release,
        "meta.helm.sh/release-namespace": "vision",
    } | more
    return {"kind": "PersistentVolumeClaim", "metadata": meta, "spec": {}, "status": {"capacity": {"storage": "1Gi"}}}


@pytest.fixture
def claims(here):
    """The claims of a release, and such as look like its own."""
    here.put("persistentvolumeclaims", claim("run-data", "run"))
    here.put("persistentvolumeclaims", claim("run-results", "run"))
    here.put("persistentvolumeclaims", claim("taken-over", "run", owner="other"))
    here.put("persistentvolumeclaims", claim("elsewhere", "run", **{"meta.helm.sh/release-namespace": "speech"}))
    by_hand = claim("by-hand", "run")
    del by_hand["metadata"]["annotations"]
    here.put("persistentvolumeclaims", by_hand)
    return here


def untouched(cluster) -> bool:
    """Whether all claims are there still."""
    return len(cluster.objects["persistentvolumeclaims"]) == 5


def test_only_claims_that_helm_made_for_the_release_are_its_own(claims):
    assert [one["metadata"]["name"] for one in delete.own_claims("run", "vision")] == ["run-data", "run-results"]


def test_data_goes_only_when_said_twice(claims, ended):
    code, _, err = ended(delete.main, "run", "-n", "vision", "--data")
    assert (code, untouched(claims)) == (2, True)
    assert "--data would delete run-data (1Gi), run-results (1Gi): add --yes-delete-data" in err
    code, _, err = ended(delete.main, "run", "-n", "vision", "--yes-delete-data")
    assert (code, untouched(claims)) == (2, True)
    assert "--yes-delete-data confirms --data, which is missing" in err


def test_data_of_a_release_that_made_no_claim_is_told(here, ended):
    code, _, err = ended(delete.main, "run", "-n", "vision", "--data", "--yes-delete-data")
    assert code == 2
    assert "release run has made no claim here: leave it out" in err


def test_data_that_others_use_stays(claims, ended):
    pod = things.pod(things.pytorchjob("second"), "master-0", things.OVER)
    pod["spec"] = things.template(claims=("run-data",))["spec"]
    claims.put("pods", pod)
    code, _, err = ended(delete.main, "run", "-n", "vision", "--data", "--yes-delete-data")
    assert (code, untouched(claims)) == (2, True)
    assert "pod second-pytorchjob-master-0 of release second uses run-data: delete that first" in err
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    claims.put("pods", pod)
    assert delete.users({"run-data"}, "run", "vision") == [], "a pod that is being deleted, as one of fetch"
    pod["metadata"]["ownerReferences"][0]["controller"] = True
    claims.put("pods", pod)
    assert delete.users({"run-data"}, "run", "vision"), "its job makes another pod, as after an eviction"


def test_what_is_kept_and_what_has_gone_is_told_with_its_size(claims, capsys):
    own = delete.own_claims("run", "vision")

    def told(*more: str) -> str:
        delete.tell(delete.parser().parse_args(["run", "-n", "vision", *more]), own, [])
        return capsys.readouterr().out

    assert told().splitlines()[:2] == ["claim run-data (1Gi): kept", "claim run-results (1Gi): kept"]
    assert "trainyard delete run -n vision --data --yes-delete-data" in told()
    assert told("--data").splitlines() == ["claim run-data (1Gi): deleted", "claim run-results (1Gi): deleted"]
    both = [{"name": "run-data", "size": "1Gi"}, {"name": "run-results", "size": "1Gi"}]
    known = {"release": "run", "namespace": "vision", "terminating": []}
    assert json.loads(told("--json")) == known | {"kept": both, "deleted": []}
    assert json.loads(told("--json", "--data")) == known | {"kept": [], "deleted": both}
