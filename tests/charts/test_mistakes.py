"""Typical mistakes get one clear message on both Helms that says what to write."""

import functools
import json
import re
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from trainyard import config

from . import helm
from .mistakes import BASE, MISTAKES, TRAINING

# Each way in which values are refused: by a template of the chart, by a schema, and with options that Helm reads
BOTH = ("nothing at all", "operator: Exist", *(name for name, mistake in MISTAKES.items() if mistake.options))


def refuse(program: str, values: helm.Values | None, options: tuple[str, ...]) -> str:
    """Return all that Helm, or its engine alone where none is named, prints of values that it must refuse."""
    laid = {} if values is None else helm.merged(BASE, values)
    if not program:
        engine = helm.engine()
        engine.warnings()  # of others
        (answer,) = helm.render_lines([json.dumps(laid)])
        return answer["error"] + engine.warnings()
    done = subprocess.run(
        [helm.BIN / program, "template", "demo", helm.CHART, "-n", "vision", "-f", "-", *options],
        input=yaml.safe_dump(laid), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode, done.stdout[:500]
    assert done.stdout == ""
    return done.stderr


def words(text: str) -> list[str]:
    """What is said, without what the Helms put around it."""
    lines = [re.sub(r"^(level=ERROR msg=)?Error: ", "", line.strip()) for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("Use --debug", "execution error at"))]


@pytest.mark.parametrize("name", MISTAKES)
def test_it_is_said_what_to_write(name: str):
    mistake = MISTAKES[name]
    texts = [refuse(program, mistake.values, mistake.options) for program in (helm.HELMS if name in BOTH else [""])]
    for text in texts:
        assert text.count(mistake.said) == 1, text
        assert "coalesce" not in text
        assert "warning" not in text.lower()
        assert len(words(text)) <= 4, text
        assert "pattern" not in text, "a pattern says nothing to people"
    assert words(texts[0]) == words(texts[-1])


def filled(values: helm.Values, path: str = "") -> Iterator[str]:
    """Yield the paths of maps that have defaults."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield f"{path}{key}"
            yield from filled(value, f"{path}{key}.")


def without(values: helm.Values, path: str) -> helm.Values:
    """Return a copy of values that lacks a dotted path."""
    first, _, rest = path.partition(".")
    kept = {key: value for key, value in values.items() if key != first}
    return kept | {first: without(values[first], rest)} if rest and first in values else kept


def refused_as_null(paths: list[str]) -> list[str]:
    """Return those that are refused in words where they are null; the others are as if they were left out."""
    refused: list[str] = []
    while True:
        rest = [path for path in paths if path not in refused]
        null = helm.merged(helm.everything(), *(helm.at(path, None) for path in rest))
        left_out = functools.reduce(without, rest, helm.everything())
        answer, wanted = helm.render_lines([json.dumps(null), json.dumps(left_out)])
        named = [path for path in rest if f"\n{path} is null: leave it out" in answer.get("error", "")]
        if not named:
            assert answer == wanted, rest
            assert "manifests" in answer or len(paths) == 1, answer
            return refused
        refused += named


def test_null_in_place_of_a_map_is_refused_in_words_or_leaves_it_out():
    """A key with nothing but comments below it is null, too."""
    amounts = (".resources", ".requests", ".limits")  # null is Helm's way to drop their defaults
    maps = [path for path in filled(helm.defaults()) if not path.endswith(amounts)]
    lists = (
        "networkPolicy.dns",
        "networkPolicy.dataset.egress",
        "networkPolicy.metrics.from",
        "global.training.rdma.env",
    )
    paths = [*maps, *lists]
    # null in place of one hides what is below it, and without some nothing is rendered
    alone = [path for path in paths if "." not in path or path in ("global.image", "dataset.source")]
    groups = [[path] for path in alone]
    groups += [[path for path in {*paths} - {*alone} if path.count(".") == depth] for depth in (1, 2, 3, 4)]
    assert sum(len(group) for group in groups) == len(paths)
    refused = {path for group in groups for path in refused_as_null(group)}
    assert {"global.training", "networkPolicy.training", "pytorchjob.runPolicy", "secrets.wandb"} < refused
    assert not {"global.scheduling", "global.secrets.wandb", "global.training.logs"} & refused


def test_null_in_place_of_a_plain_value_is_refused_or_leaves_it_out():
    """Else it would be read as 0, false or nothing."""
    known = helm.json.loads((helm.CHART / "files" / "keys.json").read_text())["needed"]
    paths = [path for path in known if path != "dataset.enabled"]  # without it no key of the dataset would be read
    base = helm.everything()
    for program in helm.HELMS:
        with pytest.raises(helm.HelmError) as caught:
            helm.template(helm.merged(base, *(helm.at(path, None) for path in paths)), program)
        rest = [path for path in paths if f"\n{path} is null: leave it out" not in str(caught.value)]
        assert not {"global.storage.uid", "dataset.backoffLimit", "global.training.gracePeriodSeconds"} & set(rest)
        left = helm.template(helm.merged(base, *(helm.at(path, None) for path in rest)), program)
        assert helm.documents(left) == helm.documents(helm.template(base, program)), rest


def test_null_drops_the_retries_of_an_mpijob():
    """Then its operator's own default holds."""
    values = helm.merged(helm.everything(), helm.at("mpijob.runPolicy.backoffLimit", None))
    assert "backoffLimit" not in helm.only(helm.template(values), "MPIJob")["spec"]["runPolicy"]


def test_null_drops_the_default_requests_and_limits():
    paths = [path for path in filled(helm.defaults()) if path.endswith(".resources")]
    assert {"dataset.resources", "evaluate.resources"} < {*paths}
    drops = [helm.at(path, None) for path in paths]
    drops += [helm.at(path, {"requests": None, "limits": None}) for path in paths]
    answers = helm.render_all([helm.merged(helm.everything(), drop) for drop in drops])
    assert [answer["error"] for answer in answers if "error" in answer] == []
    assert answers[: len(paths)] == answers[len(paths) :]


def test_a_resource_of_kubernetes_own_needs_no_limit():
    """Its API server takes such names as CPU and memory: Koordinator's batch-cpu is one."""
    requests = {"kubernetes.io/batch-cpu": "1k"}
    assert "kubernetes.io/batch-cpu" in helm.template(
        helm.merged(helm.everything(), helm.at("dataset.resources.requests", requests))
    )


def rendered(values: helm.Values) -> list[helm.Values]:
    return helm.documents(helm.template(helm.merged(BASE, values)))


def test_an_address_alone_is_what_is_fetched():
    found = [one["data"]["prepare.json"] for one in rendered({}) if "prepare.json" in (one.get("data") or {})]
    assert len(found) == 1
    assert "https://data.example.com/pets.zip" in found[0]
    assert "kaggle" not in found[0]


def test_addresses_that_answer_with_a_file_are_taken():
    files = (
        "https://github.com/ada/pets/releases/latest/download/pets.zip", "https://github.com/ada/pets/files/7/pets.zip",
        "https://github.com/user-attachments/files/7/pets.zip",
        "https://drive.google.com/uc?export=download&confirm=t&id=abc",
    )  # fmt: skip
    for file in files:
        held = [one.get("data") or {} for one in rendered({"dataset": {"source": {"url": file}}})]
        assert [json.loads(one["prepare.json"])["source"]["url"] for one in held if "prepare.json" in one] == [file]


def test_a_fraction_on_the_command_line_is_a_number():
    option = ("--set", "global.training.config.optimizer.lr=0.125")
    text = helm.run("helm3", "template", "demo", helm.CHART, "-f", "-", *option, stdin=yaml.safe_dump(BASE))
    found = [one.get("data") or {} for one in helm.documents(text)]
    (settings,) = [json.loads(data["config.json"]) for data in found if "config.json" in data]
    assert config.build(settings).optimizer.lr == 0.125


@pytest.mark.parametrize(("job", "kind"), [("mpijob", "MPIJob"), ("trainjob", "TrainJob")])
def test_another_job_that_is_enabled_trains_alone(job: str, kind: str):
    kinds = {one["kind"] for one in rendered(helm.at(f"{job}.enabled", True))}
    assert kinds & {"PyTorchJob", "MPIJob", "TrainJob"} == {kind}


def test_both_train_where_values_say_both():
    kinds = {
        one["kind"]
        for one in rendered(helm.merged(helm.at("mpijob.enabled", True), helm.at("pytorchjob.enabled", True)))
    }
    assert {"PyTorchJob", "MPIJob"} <= kinds


@pytest.mark.parametrize(
    "values",
    [
        helm.at(f"{TRAINING}.env", [{"name": "NCCL_NET_GDR_LEVEL", "value": "PIX"}]),
        helm.at(
            f"{TRAINING}.env",
            [{"name": "NCCL_IB_DISABLE", "value": "1"}, {"name": "UCX_NET_DEVICES", "value": "eth0"}],
        ),
        helm.merged(
            helm.at(f"{TRAINING}.resources.limits", {"vpc.amazonaws.com/efa": 4}),
            helm.at(f"{TRAINING}.env", [{"name": "FI_PROVIDER", "value": "efa"}]),
        ),
    ],
    ids=["Google's", "TCP by choice", "EFA under resources"],
)
def test_environment_that_asks_for_no_device_is_accepted(values: helm.Values):
    assert rendered(values)


DESCRIBED = {"digest", "sha256", "password"}  # an example of 64 digits, or of a password, would be none


def test_every_format_of_a_text_has_examples_that_fit_it():
    known = helm.json.loads((helm.CHART / "files" / "keys.json").read_text())["formats"]
    assert len(known) > 20
    for name, form in known.items():
        _, such, after = form["say"].partition("such as ")
        assert such or name in DESCRIBED, f"{name}: {form['say']}"
        examples = re.split(r",? or |, ", after.split(";")[0].split(" (")[0]) if such else []
        for example in (one for one in examples if " " not in one):
            assert re.search(form["pattern"], example), f"{name}: {example!r} does not fit {form['pattern']!r}"
