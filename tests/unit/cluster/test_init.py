"""`trainyard init` writes files that the chart takes, whatever was answered, and refuses answers that do not fit."""

import contextlib
import itertools
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.charts import helm
from trainyard.cluster import answers, init, published

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (
    "--source kaggle",
    "--source kaggle --address ada/dog-breeds/versions/3 --data-secret mine --layout imagefolder",
    "--address https://data.example.com/pets.tar.gz --data-secret login",
    "--address s3://datasets/pets.zip --data-secret keys --endpoint https://minio.storage:9000",
    "--source s3 --address s3://public/pets.zip --layout csv",
    "--source path --address /data/raw/trees",
    "--source prepared --data-claim sets --dataset pets",
)
CLAIMS = (
    "",
    "--data-claim sets --results-claim out",
    "--data-claim sets --results-size 5Gi --storage-class shared",
    "--results-claim out --data-size 1Ti --access-mode ReadWriteOnce",
)
SIZES = ("--nodes 2 --gpus-per-node 8", "--nodes 1 --processes-per-node 2 --cpu 500m --memory 2Gi --recipe demo")
IMAGES = "--registry registry.example.com/team --tag 0.1.0"  # a checkout's chart names none
WANDB = ("", "--wandb online", "--wandb offline", "--wandb-secret team-key")


def arguments(*parts: str) -> list[str]:
    return " ".join((IMAGES, *parts)).split()


def combinations() -> list[list[str]]:
    """All of the options above with each other, as far as they fit: of WANDB, which changes one key, each in turn."""
    operators = [f"--operator {one}" for one in answers.OPERATORS]
    found = [arguments(*parts) for parts in itertools.product(SOURCES, CLAIMS, SIZES, operators)]
    # a size of a claim that is there, and one claim named twice
    fits = [one for one in found if not ("prepared" in one and ("--data-size" in one or one.count("--data-claim") > 1))]
    turns = [one + WANDB[number % len(WANDB)].split() for number, one in enumerate(fits)]
    return turns + [arguments(SOURCES[0], SIZES[0], "--recipe", recipe) for recipe in answers.recipes()]


def written(ended, folder: Path, *more: str) -> Path:
    path = folder / "values.yaml"
    code, out, err = ended(init.main, "-o", str(path), "--force", *more)
    assert code == 0, (more, err)
    assert f"trainyard up run -f {path}" in out
    return path


def test_every_combination_of_options_writes_a_file_that_the_chart_takes(tmp_path, ended):
    many = combinations()
    assert len(many) > 150
    files = [yaml.safe_load(written(ended, tmp_path, *one).read_text()) for one in many]
    refused = [
        (one, found["error"]) for one, found in zip(many, helm.render_all(files), strict=True) if found.get("error")
    ]
    assert refused == []


def test_the_files_themselves_are_taken_by_helm_and_all_of_them_is_read(tmp_path, ended):
    made = []
    for source in SOURCES:
        path = written(ended, tmp_path, *arguments(source, SIZES[0], WANDB[1]))
        made.append(helm.run("helm3", "template", "run", helm.CHART, "-n", "vision", "-f", path))
        assert "trainyard-pytorch:" in made[-1], source
        dry = helm.run("helm4", "install", "run", helm.CHART, "-f", path, "--dry-run=client")
        assert "read by nothing of this release" not in dry, source
    helm.validate("\n---\n".join(made))


def test_a_published_chart_is_asked_for_no_image(tmp_path, ended, monkeypatch):
    options = ["--address", "https://data.example.com/pets.zip", *SIZES[0].split()]
    code, _, err = ended(init.main, "-o", str(tmp_path / "values.yaml"), *options)
    assert code == 2
    assert "--registry is missing" in err
    assert "--tag is missing" in err
    monkeypatch.setattr(published, "REGISTRY", "registry.example.com/team")
    assert "image" not in yaml.safe_load(written(ended, tmp_path, *options).read_text())["global"]


def test_answers_reach_the_manifests(tmp_path, ended):
    more = (
        "--operator mpijob --registry registry.example.com/team --tag 1.2.3 --wandb-secret key --cpu 12 --memory 64Gi"
    )
    path = written(ended, tmp_path, *arguments(SOURCES[3], CLAIMS[2], SIZES[0], more))
    text = helm.run("helm3", "template", "run", helm.CHART, "-f", path)
    job = helm.only(text, "MPIJob")
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    assert (worker["replicas"], job["spec"]["slotsPerWorker"]) == (2, 8)
    assert container["image"] == "registry.example.com/team/trainyard-horovod:1.2.3"
    assert container["resources"]["requests"]["cpu"] in ("12", 12)
    (claim,) = [one for one in helm.documents(text) if one["kind"] == "PersistentVolumeClaim"]
    assert (claim["metadata"]["name"], claim["spec"]["storageClassName"]) == ("run-results", "shared")
    for said in (
        "s3://datasets/pets.zip",
        "https://minio.storage:9000",
        "claimName: sets",
        "secretName: keys",
        "name: key",
    ):
        assert said in text.replace('"', ""), said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "--source is missing"),
        ("", "--nodes is missing"),
        ("--source kaggle --nodes 1", "--gpus-per-node is missing"),
        ("--source http --nodes 1 --gpus-per-node 1", "--address is missing"),
        ("--source prepared --nodes 1 --gpus-per-node 1", "--data-claim is missing"),
        ("--source prepared --address s3://a/b", "--address s3://a/b: --source prepared takes none"),
        ("--source http --address s3://a/b", "--address s3://a/b: --source is http: write --source s3, or"),
        (
            "--source path --address raw/x",
            "--address raw/x: --source is path: write an archive or folder of the data claim, below /data",
        ),
        ("--address s3://a/train-*.tar", "--source is s3: write one archive such as s3://"),
        ("--address https://u:p@h/x.zip", "in the Secret of --data-secret"),
        ("--address https://h/x.zip?X-Amz-Signature=1", "in the Secret of --data-secret"),
        ("--source prepared --layout csv", "--layout csv: --source prepared is prepared already: leave it out"),
        ("--source path --data-secret x", "--data-secret x: --source path needs none: leave it out"),
        ("--source kaggle --endpoint https://x", "--endpoint https://x: only --source s3 takes one"),
        (
            "--data-claim a --data-size 1Gi",
            "--data-size 1Gi: --data-claim names an existing claim: leave one of them out",
        ),
        ("--results-claim a --results-size 1Gi", "--results-size 1Gi: --results-claim names an existing claim"),
        (
            "--data-claim a --results-claim b --storage-class c",
            "--storage-class c: --data-claim and --results-claim name existing",
        ),
        ("--data-size 5GB", "--data-size 5GB: write a quantity of bytes such as 300Gi"),
        ("--data-claim My_Claim", "--data-claim My_Claim: write lower-case letters"),
        ("--nodes 0", "--nodes 0: write 1 or more"),
        ("--nodes two", "--nodes two: write a whole number"),
        (
            "--gpus-per-node 8 --processes-per-node 2",
            "--processes-per-node 2: --gpus-per-node 8 has one process for each",
        ),
        ("--gpus-per-node 0", "--processes-per-node is missing"),
        (
            "--wandb off --wandb-secret x",
            "--wandb-secret x: --wandb is off, which sends nothing: leave it out, or write --wandb online",
        ),
        ("--registry https://x", "--registry https://x: leave out the scheme"),
        ("--tag latest", "--tag latest: `latest` names another image tomorrow"),
        ("--operator horovod", "choose from"),
    ],
)
def test_answers_that_are_missing_or_do_not_fit_are_named_with_the_remedy(tmp_path, ended, options, said):
    path = tmp_path / "values.yaml"
    code, _, err = ended(init.main, "-o", str(path), *arguments(options))
    assert (code, path.exists()) == (2, False)
    assert said in err


def test_all_that_is_wrong_is_told_at_once(ended):
    _, _, err = ended(init.main, "-o", "-", *arguments("--source prepared --layout csv --nodes 0"))
    for flag in ("--layout csv", "--data-claim is missing", "--nodes 0", "--gpus-per-node is missing"):
        assert flag in err


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path, ended):
    path = tmp_path / "values.yaml"
    path.write_text("mine")
    code, _, err = ended(init.main, "-o", str(path), *arguments(SOURCES[0], SIZES[0]))
    assert (code, path.read_text()) == (2, "mine")
    assert "is there already: add --force to overwrite it" in err
    assert ended(init.main, "-o", str(path / "x.yaml"), *arguments(SOURCES[0], SIZES[0]))[0] == 2


def test_standard_output_gets_the_file_alone(ended):
    code, out, err = ended(init.main, "-o", "-", *arguments(SOURCES[0], SIZES[0]))
    assert (code, err) == (0, "")
    assert yaml.safe_load(out)["global"]["training"]["gpusPerNode"] == 8


def test_secrets_that_the_file_names_are_created_by_the_commands_that_are_printed(tmp_path, ended):
    _, out, _ = ended(init.main, "-o", str(tmp_path / "x"), *arguments(SOURCES[0], SIZES[0], WANDB[3]))
    assert "kubectl create secret generic kaggle -n NAMESPACE --from-literal=KAGGLE_API_TOKEN=..." in out
    assert "kubectl create secret generic team-key -n NAMESPACE --from-literal=WANDB_API_KEY=..." in out


@pytest.mark.parametrize("form", [name for name in answers.FORMS if name not in ("cpu", "memory")])
def test_forms_are_those_of_the_charts_schema(form):
    pattern = helm.schema()["$defs"][form]["pattern"]
    assert answers.FORMS[form][0].removesuffix(".+") in pattern


def talk(folder: Path, *said: str, options: str = "") -> tuple[int, str]:
    """Run `trainyard init` on a terminal where a person types these lines and Ctrl-D; return code and screen."""
    ours, theirs = pty.openpty()
    os.write(ours, "".join(f"{line}\n" for line in said).encode() + b"\x04")
    command = [sys.executable, "-m", "trainyard", "init", "-o", str(folder / "values.yaml"), *options.split()]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the process has closed its end
            while piece := os.read(ours, 4096):
                shown += piece
    os.close(ours)
    return process.returncode, shown.decode()


def test_a_terminal_is_asked_and_asked_again_after_a_wrong_answer(tmp_path):
    lines = (
        "path",
        "raw/x",
        "/data/raw/trees",
        "",
        "",
        "",
        "1Gi",
        "",
        "1Gi",
        "",
        "1",
        "0",
        "2",
        "",
        "",
        "",
        "registry.example.com/team",
        "0.1.0-abc",
    )
    code, shown = talk(tmp_path, *lines)
    assert code == 0, shown
    assert "write an archive or folder of the data claim, below /data" in shown
    values = yaml.safe_load((tmp_path / "values.yaml").read_text())
    assert values["dataset"]["source"] == {"path": "/data/raw/trees"}
    assert values["global"]["dataset"]["name"] == "trees"
    assert values["global"]["training"]["processesPerNode"] == 2
    assert values["global"]["image"]["tag"] == "0.1.0-abc"
    helm.run("helm3", "template", "run", helm.CHART, "-f", tmp_path / "values.yaml")


def test_a_question_that_is_not_answered_ends_it_and_writes_nothing(tmp_path):
    code, shown = talk(tmp_path, "kaggle")
    assert (code, (tmp_path / "values.yaml").exists()) == (130, False)
    assert shown.endswith("init: stopped\r\n")


def test_what_options_say_is_not_asked(tmp_path):
    more = "--recipe demo --operator trainjob --wandb off --registry r.example.com/t --tag 1"
    code, shown = talk(tmp_path, options=" ".join([SOURCES[6], "--results-claim out", SIZES[0], more]))
    assert code == 0, shown
    assert shown.startswith("wrote ")


def test_no_input_asks_nothing_on_a_terminal(tmp_path):
    code, shown = talk(tmp_path, options="--no-input")
    assert code == 2
    assert "--source is missing" in shown
