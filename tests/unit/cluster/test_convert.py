"""`trainyard convert` at the command line: where manifests come from, what launchers become, and what is refused."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.apiserver import Cluster
from trainyard.cluster import convert
from trainyard.cluster.conversion import programs
from trainyard.cluster.parsing import WrongInputError

TRAIN = ["python", "train.py", "--lr", "2"]
IMAGE = "registry.example.com/team/words:1"
LOGIN = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "login", "key": "key"}}}


def pytorchjob(container: dict[str, Any] | None = None, **pod: Any) -> dict[str, Any]:
    main = {"name": "pytorch", "image": IMAGE, "command": TRAIN} | (container or {})
    replica = {"replicas": 1, "restartPolicy": "ExitCode", "template": {"spec": {"containers": [main], **pod}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "words", "namespace": "vision"},
        "spec": {"pytorchReplicaSpecs": {"Master": replica}},
    }


def written(folder: Path, *documents: dict[str, Any]) -> str:
    path = folder / "job.yaml"
    path.write_text("---\n".join(yaml.safe_dump(one) for one in documents))
    return str(path)


def answer(ended, *arguments: str) -> tuple[int, dict[str, Any]]:
    code, out, err = ended(convert.main, *arguments, "--json")
    assert err == ""
    return code, json.loads(out)


def test_what_is_carried_whole_ends_0_and_a_lost_field_1_with_its_path_on_standard_error(tmp_path, ended):
    code, out, err = ended(convert.main, written(tmp_path, pytorchjob()))
    assert code == 0
    assert yaml.safe_load(out)["global"]["training"]["command"] == TRAIN
    assert "all of PyTorchJob words is carried" in err
    odd = pytorchjob({"lifecycle": {"preStop": {"sleep": {"seconds": 3}}}}, shareProcessNamespace=True)
    code, out, err = ended(convert.main, written(tmp_path, odd))
    assert code == 1
    for path in ("spec.pytorchReplicaSpecs.Master.template.spec.containers[0].lifecycle",
                 "spec.pytorchReplicaSpecs.Master.template.spec.shareProcessNamespace"):  # fmt: skip
        assert f"  {path}" in err
        assert f"# - {path}" in out


def test_json_has_values_and_both_accounts_and_a_file_is_written_once(tmp_path, ended):
    place, out = written(tmp_path, pytorchjob({"stdin": True})), tmp_path / "values.yaml"
    code, found = answer(ended, place, "-o", str(out))
    assert code == 1
    assert [note["path"] for note in found["lost"]] == [
        "spec.pytorchReplicaSpecs.Master.template.spec.containers[0].stdin"
    ]
    assert yaml.safe_load(out.read_text()) == found["values"]
    assert {"job", "values", "lost", "changed"} == set(found)
    code, _, err = ended(convert.main, place, "-o", str(out))
    assert (code, "is there already: add --force" in err) == (2, True)
    code, said, _ = ended(convert.main, place, "-o", str(out), "--force")
    assert (code, f"trainyard up RELEASE -f {out}" in said) == (1, True)


def test_the_job_is_found_among_other_objects_and_on_standard_input(tmp_path, ended, monkeypatch):
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "out"}}
    listed = {"kind": "List", "items": [claim, pytorchjob()]}
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(listed)))
    assert answer(ended, "-")[1]["job"] == "PyTorchJob words"
    assert answer(ended, written(tmp_path, claim, pytorchjob()))[1]["job"] == "PyTorchJob words"


def test_a_live_job_is_read_with_its_runtime_and_what_the_server_adds_is_no_loss(here: Cluster, ended):
    job = pytorchjob()
    job["metadata"] |= {
        "uid": "1",
        "resourceVersion": "2",
        "creationTimestamp": "2026-11-25T10:00:00Z",
        "generation": 1,
    }
    here.put("pytorchjobs", job | {"status": {"conditions": []}})
    assert answer(ended, "pytorchjob/words", "-n", "vision")[0] == 0
    code, _, err = ended(convert.main, "pytorchjob/other", "-n", "vision")
    assert (code, "there is no pytorchjob other in the namespace vision" in err) == (2, True)


WRONG: list[tuple[str, str]] = [
    ("{", "is not YAML"),
    ("kind: ConfigMap\n", "holds ConfigMap, and no PyTorchJob, MPIJob or TrainJob"),
    ("kind: MPIJob\n---\nkind: MPIJob\n", "holds 2 jobs"),
    ("kind: PyTorchJob\nspec: {}\n", "is no PyTorchJob as its operator takes it"),
    (
        yaml.safe_dump(pytorchjob({"command": None, "args": ["--lr", "2"]})),
        "names no command: the program of its image starts with",
    ),
    (yaml.safe_dump(pytorchjob({"command": ["sh", "-c", "torchrun a.py; torchrun b.py"]})), "starts 2 launchers"),
    (
        yaml.safe_dump(pytorchjob({"command": ["mpirun", "--new-option", "3", "a"]})),
        "--new-option is not known: say the program",
    ),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_what_cannot_become_a_job_of_the_chart_ends_2_with_the_remedy(tmp_path, ended, text, said):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    code, out, err = ended(convert.main, str(path))
    assert (code, out) == (2, "")
    assert said in err


def test_a_program_that_the_manifest_leaves_to_the_image_is_said_by_an_option(tmp_path, ended):
    place = written(tmp_path, pytorchjob({"command": None, "args": ["--lr", "2"]}))
    assert answer(ended, place, "--command", "python 'a b.py'")[1]["values"]["global"]["training"]["command"] == [
        "python", "a b.py", "--lr", "2",
    ]  # fmt: skip


LINES: list[tuple[list[str], list[str]]] = [
    (["torchrun", "--nproc_per_node=8", "--nnodes", "2", *TRAIN[1:]], TRAIN),
    (["/usr/bin/python3", "-m", "torch.distributed.launch", "--use_env", *TRAIN[1:]], TRAIN),
    (["torchrun", "--no-python", "./train"], ["./train"]),
    (["torchrun", "--standalone", "-m", "words.train"], ["python", "-m", "words.train"]),
    (["deepspeed", "--num_gpus=8", *TRAIN[1:]], TRAIN),
    (["horovodrun", "-np", "8", "-H", "a:4,b:4", *TRAIN], TRAIN),
    (
        ["sh", "-c", "torchrun --nnodes=2 train.py --lr $LR | tee log"],
        ["sh", "-c", "python train.py --lr $LR | tee log"],
    ),
    (["bash", "-ec", "# torchrun a.py\npython train.py"], ["bash", "-ec", "# torchrun a.py\npython train.py"]),
    (["bash", "-c", 'mpirun -np 8 \\\n  -x A=1 ./train "$DATA/a b"'], ["bash", "-c", './train "$DATA/a b"']),
    (TRAIN, TRAIN),
]


@pytest.mark.parametrize(("line", "words"), LINES)
def test_a_launcher_is_taken_off_and_the_program_stays_as_it_is_written(line, words):
    assert programs.find(line).words == words


def test_options_that_the_chart_does_not_have_are_named_and_those_of_places_are_values():
    found = programs.find(["torchrun", "--nproc-per-node", "4", "--log-dir", "/logs", "--tee=3", "train.py"])
    assert (found.processes, found.lost, found.replaced) == ("4", ("--log-dir=/logs", "--tee=3"), ("--nproc-per-node",))
    found = programs.find(["mpirun", "-np", "4", "-x", "A=1", "-x", "PATH", "-mca", "btl_tcp_if_include", "eth0", "a"])
    assert (found.ranks, found.env) == ("4", (("A", "1"), ("OMPI_MCA_btl_tcp_if_include", "eth0")))
    with pytest.raises(WrongInputError, match="say the program by --command"):
        programs.find(["torchrun", "--nnodes=2"])


CLAIM = {"name": "a", "persistentVolumeClaim": {"claimName": "out"}}
FABRIC = {"env": [{"name": "NCCL_IB_HCA", "value": "mlx5"}]}
BESIDE = {"name": "beside", "image": "a:1"}
RESOLVER = {"nameservers": ["10.0.0.10"]}
PROFILE = {"type": "Localhost", "localhostProfile": "trainers"}
# A container and a pod of a manifest, the place in values, and what is there
CARRIED: list[tuple[dict[str, Any], dict[str, Any], str, Any]] = [
    ({"workingDir": "/app"}, {}, "training.command", ["sh", "-c", 'cd "$0" && exec "$@"', "/app", *TRAIN]),
    ({"image": "python@sha256:" + "0" * 64}, {}, "image.registry", "docker.io/library"),
    ({"image": "localhost:5000/words:2"}, {}, "image.registry", "localhost:5000"),
    ({"image": "example/words"}, {}, "image.tag", None),
    ({"env": [LOGIN, {"name": "RANK", "value": "0"}]}, {}, "training.env", [LOGIN]),
    ({"env": [LOGIN | {"name": "A"}, {"name": "A", "value": 2}]}, {}, "training.env", [{"name": "A", "value": "2"}]),
    (FABRIC, {}, "training.env", None),
    (FABRIC, {"hostNetwork": True}, "training", FABRIC),
    ({}, {"hostNetwork": True}, "training.unrestricted", {"hostNetwork": True}),
    ({"resources": {"limits": {"nvidia.com/mig-3g.40gb": 1}}}, {}, "training.gpuResource", "nvidia.com/mig-3g.40gb"),
    ({"resources": {"limits": {"memory": "64Mi"}}}, {}, "training.resources", None),
    ({}, {"dnsPolicy": "None", "dnsConfig": RESOLVER}, "training", {"dnsPolicy": "None", "dnsConfig": RESOLVER}),
    ({}, {"dnsPolicy": "ClusterFirst", "hostUsers": False}, "training", {"hostUsers": False}),
    ({}, {"securityContext": {"appArmorProfile": PROFILE}}, "training.securityContext", {"appArmorProfile": PROFILE}),
    ({"securityContext": {"runAsUser": 0}}, {}, "training.unrestricted", {"runAsRoot": True}),
    ({}, {"securityContext": {"runAsUser": 4000, "fsGroup": 500}}, "storage", {"uid": 4000, "gid": 500}),
    ({}, {"containers": [BESIDE, {"name": "pytorch", "image": IMAGE, "command": TRAIN}]}, "training.extraContainers",
     [BESIDE]),
    ({"volumeMounts": [{"name": "tmp", "mountPath": "/scratch"}]}, {"volumes": [{"name": "tmp", "emptyDir": {}}]},
     "training.extraVolumes", [{"name": "own-tmp", "emptyDir": {}}]),
    ({"volumeMounts": [{"name": "a", "mountPath": "/results"}]}, {"volumes": [CLAIM]}, "storage.results",
     {"existingClaim": "out"}),
    ({"volumeMounts": [{"name": "a", "mountPath": "/results"}, {"name": "a", "mountPath": "/out"}]},
     {"volumes": [CLAIM]}, "training.extraVolumes", [CLAIM]),
    ({"volumeMounts": [{"name": "a", "mountPath": "/tmp"}]}, {"volumes": [{"name": "a", "emptyDir": {}}]},
     "training.extraVolumes", None),
]  # fmt: skip


@pytest.mark.parametrize("case", CARRIED, ids=lambda case: case[2])
def test_where_a_field_of_a_pod_goes(tmp_path, ended, case):
    container, pod, place, value = case
    found = answer(ended, written(tmp_path, pytorchjob(container, **pod)))[1]["values"]["global"]
    for key in place.split("."):
        found = (found or {}).get(key)
    if isinstance(value, dict):
        assert found | value == found
    else:
        assert found == value


@pytest.mark.parametrize(("restarts", "nodes", "spares"), [(5, 2, 1), (0, 3, None)])
def test_workers_beyond_the_most_that_train_are_spare_pods(tmp_path, ended, restarts, nodes, spares):
    job = pytorchjob()
    worker = job["spec"]["pytorchReplicaSpecs"].pop("Master") | {"replicas": 3}
    job["spec"]["pytorchReplicaSpecs"]["Worker"] = worker
    job["spec"]["elasticPolicy"] = {"minReplicas": 2, "maxReplicas": 2, "maxRestarts": restarts}
    code, found = answer(ended, written(tmp_path, job))
    assert code == 0
    assert found["values"]["global"]["training"]["nodes"] == nodes
    assert found["values"]["pytorchjob"]["elastic"].get("spares") == spares


def test_every_field_of_a_manifest_is_in_values_or_in_the_account(tmp_path, ended):
    """Each leaf gets a name of its own, which must appear somewhere in the answer."""
    leaves = iter(range(1000))

    def unique(node: Any) -> Any:
        if isinstance(node, dict):
            return {
                key: value if key in ("kind", "apiVersion", "metadata") else unique(value)
                for key, value in node.items()
            }
        return (
            [unique(one) for one in node]
            if isinstance(node, list)
            else f"leaf-{next(leaves)}"
            if node is None
            else node
        )

    pod = dict.fromkeys(("nodeName", "subdomain", "hostname", "preemptionPolicy", "setHostnameAsFQDN", "os"))
    container = dict.fromkeys(("tty", "stdinOnce", "volumeDevices", "resizePolicy", "startupProbe"))
    job = pytorchjob(container, **pod, readinessGates=[{"conditionType": None}], overhead={"cpu": None})
    job["spec"] |= {"unknown": {"deep": [{"er": None}]}, "runPolicy": {"further": None}}
    job["spec"]["pytorchReplicaSpecs"]["Master"] |= {"scale": None}
    code, found = answer(ended, written(tmp_path, unique(job)))
    assert code == 1
    count = next(leaves)
    assert count > 14
    assert [one for one in range(count) if f"leaf-{one}" not in json.dumps(found)] == []
