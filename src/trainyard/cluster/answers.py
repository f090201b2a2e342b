"""Questions of `trainyard init`, and checks that the answers fit each other."""

import re
from collections.abc import Callable
from importlib import resources
from typing import Any, NamedTuple

from trainyard.cluster import published

SOURCES = ("kaggle", "http", "s3", "path", "prepared")
OPERATORS = ("pytorchjob", "mpijob", "trainjob")
LAYOUTS = ("imagenet", "imagefolder", "folders", "csv")
WANDB = ("off", "online", "offline")
MODES = ("ReadWriteMany", "ReadWriteOnce")
IMAGENET = "imagenet-object-localization-challenge"
# Forms of answers, as the chart's schema has them (tests compare the two), and what to write instead
FORMS = {
    "name": (r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "lower-case letters, digits, - and ."),
    "size": (r"[1-9][0-9]*(Mi|Gi|Ti|Pi|M|G|T|P)", "a quantity of bytes such as 300Gi"),
    "folder": (r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "the name of one folder, such as imagenet"),
    "registry": (
        r"[A-Za-z0-9]([A-Za-z0-9._:/@-]*[A-Za-z0-9])?",
        "registry and folder, such as registry.example.com/team",
    ),
    "tag": (r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", "the tag of an image, such as 0.1.0"),
    "endpoint": (r"https?://.+", "an address such as https://minio.storage:9000"),
    "cpu": (r"([0-9]+(\.[0-9]+)?|[1-9][0-9]*m)", "a number of CPUs such as 8 or 500m"),
    "memory": (r"[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?", "a quantity of bytes such as 64Gi"),
}
# The address that each source takes, and how one looks
ADDRESSES = {
    "kaggle": (
        r"[A-Za-z0-9-]+|[A-Za-z0-9_-]+/[A-Za-z0-9_.-]+(/versions/[1-9][0-9]*)?",
        f"a competition such as {IMAGENET}, or a dataset OWNER/NAME",
    ),
    "http": (r"https?://[^/\s]+/[^\s*]+", "one archive such as https://data.example.com/pets.zip"),
    "s3": (r"(s3|gs)://[^/\s]+/[^\s*]+", "one archive such as s3://datasets/pets.zip"),
    "path": (r"/data/\S+", "an archive or folder of the data claim, below /data, such as /data/raw/pets"),
}
SECRET_IN_URL = re.compile(
    r"://[^/@]*@|[?&](x-amz-signature|x-goog-signature|signature|sig|token|access_token|api_key|apikey)=", re.I
)

Answers = dict[str, Any]  # by the option's name with underscores; None for what was not answered


class Question(NamedTuple):
    """A question of `trainyard init`, which is also a command-line option."""

    key: str
    text: str  # what is asked, and what --help says
    default: Callable[[Answers], Any] = lambda answers: ""  # gives None where it must be answered
    choices: tuple[str, ...] = ()
    form: str = ""  # of FORMS
    number: bool = False
    applies: Callable[[Answers], bool] = lambda answers: True  # whether it is asked after the answers so far
    asked: bool = True  # on a terminal; others are options alone

    @property
    def flag(self) -> str:
        """The option's name."""
        return f"--{self.key.replace('_', '-')}"


def recipes() -> tuple[str, ...]:
    """Return the names of the recipes that come with the package."""
    names = (entry.name for entry in resources.files("trainyard.recipes").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def guessed_source(address: str) -> str:
    """Return the source that an address belongs to; empty where it does not say."""
    begins = {"http": r"https?://", "s3": r"(s3|gs)://", "path": r"/data/"}
    return next((one for one, form in begins.items() if re.match(form, address)), "")


def dataset_name(answers: Answers) -> str:
    """Return a name for the dataset, from its address."""
    address = (answers["address"] or "").partition("?")[0].rstrip("/")
    if answers["source"] == "prepared" or address == IMAGENET:
        return "imagenet"
    last = re.sub(r"(\.(zip|tar|tgz|gz|bz2|xz))+$", "", re.sub(r"/versions/\d+$", "", address).rpartition("/")[2])
    return re.sub(r"[^A-Za-z0-9._-]", "-", last)[:100] if re.match(r"[A-Za-z0-9]", last) else "dataset"


def fetched(answers: Answers) -> bool:
    """Whether the dataset is prepared by this release."""
    return bool(answers["source"] != "prepared")


def makes_claims(answers: Answers) -> bool:
    """Whether this release makes a claim."""
    return not (answers["data_claim"] and answers["results_claim"])


def of_chart(answers: Answers) -> str | None:
    """Return nothing where the published chart names its images itself; None, which must be answered, elsewhere."""
    return "" if published.REGISTRY else None


QUESTIONS_BY_TOPIC = {
    "the dataset": (
        Question("source", "where it comes from", lambda a: None, SOURCES),
        Question(
            "address",
            "its address: a Kaggle competition or OWNER/NAME, https://..., s3://..., or /data/... for a folder or "
            "archive on the data claim",
            lambda a: IMAGENET if a["source"] == "kaggle" else None,
            applies=fetched,
        ),
        Question(
            "layout",
            "how its images are laid out; folders: a folder for each class",
            lambda a: "imagenet" if a["address"] == IMAGENET else "folders",
            LAYOUTS,
            applies=fetched,
        ),
        Question("dataset", "its name, and its folder on the data claim", dataset_name, form="folder"),
        Question(
            "data_secret",
            "Secret with Kaggle's token, an object store's keys or a web server's login; empty: none",
            lambda a: "kaggle" if a["source"] == "kaggle" else "",
            form="name",
            applies=lambda a: a["source"] not in ("path", "prepared"),
        ),
        Question(
            "endpoint", "address of an object store other than Amazon's or Google's", form="endpoint", asked=False
        ),
    ),
    "the claims": (
        Question(
            "data_claim",
            "existing claim for the dataset; empty: a new one is made",
            lambda a: None if a["source"] == "prepared" else "",
            form="name",
        ),
        Question(
            "data_size", "size of the new one", lambda a: "300Gi", form="size", applies=lambda a: not a["data_claim"]
        ),
        Question("results_claim", "existing claim for checkpoints and reports; empty: a new one is made", form="name"),
        Question(
            "results_size",
            "size of the new one",
            lambda a: "100Gi",
            form="size",
            applies=lambda a: not a["results_claim"],
        ),
        Question(
            "storage_class",
            "StorageClass of new claims; empty: the cluster's default",
            form="name",
            applies=makes_claims,
        ),
        Question(
            "access_mode",
            "access mode of new claims; ReadWriteOnce is enough where all pods share one node",
            lambda a: MODES[0],
            MODES,
            applies=makes_claims,
            asked=False,
        ),
    ),
    "the training": (
        Question("nodes", "nodes that train, each one pod", lambda a: None, number=True),
        Question(
            "gpus_per_node",
            "GPUs of each node; 0: train on CPUs",
            lambda a: 0 if a["processes_per_node"] else None,
            number=True,
        ),
        Question(
            "processes_per_node",
            "processes of each node on CPUs",
            lambda a: None,
            number=True,
            applies=lambda a: a["gpus_per_node"] == 0,
        ),
        Question("cpu", "CPUs that a training pod requests; empty: one for each process", form="cpu", asked=False),
        Question(
            "memory", "memory that a training pod requests; empty: 4 GiB for each process", form="memory", asked=False
        ),
        Question(
            "recipe",
            "recipe to start from",
            lambda a: "resnet50-nvidia-90" if a["gpus_per_node"] else "demo",
            recipes(),
        ),
        Question(
            "operator",
            "what runs the job: training-operator, mpi-operator (Horovod), or Kubeflow Trainer",
            lambda a: OPERATORS[0],
            OPERATORS,
        ),
        Question(
            "wandb",
            "send curves to Weights & Biases",
            lambda a: "online" if a["wandb_secret"] else "off",
            WANDB,
        ),
        Question(
            "wandb_secret",
            "Secret with WANDB_API_KEY",
            lambda a: "wandb",
            form="name",
            applies=lambda a: a["wandb"] == "online",
        ),
    ),
    "the images": (
        Question("registry", "registry and folder that hold them", of_chart, form="registry"),
        Question("tag", "their tag", of_chart, form="tag"),
    ),
}
QUESTIONS = tuple(question for questions in QUESTIONS_BY_TOPIC.values() for question in questions)


def wrong_form(question: Question, value: str) -> str:
    """Say what is wrong with an answer by itself; empty for nothing."""
    if question.choices and value not in question.choices:
        return f"there is no such answer: choose {', '.join(question.choices)}"
    if question.number and not value.isdecimal():
        return "write a whole number"
    if question.form and value and not re.fullmatch(FORMS[question.form][0], value):
        return f"write {FORMS[question.form][1]}"
    return ""


def contradiction(question: Question, answers: Answers) -> str:
    """Say what of an answer does not fit the others; empty for nothing, and for what was not answered."""
    value = answers[question.key]
    if value in (None, ""):
        return ""
    if not question.applies(answers):
        return NOT_WITH[question.key](answers)
    return FITS[question.key](value, answers) if question.key in FITS else ""


def wrong_address(address: str, answers: Answers) -> str:
    """Say what of an address does not fit its source."""
    if not (source := answers["source"]):
        return ""
    form, words = ADDRESSES[source]
    if not re.fullmatch(form, address):
        other = guessed_source(address)
        remedy = f"write --source {other}, or " if other not in ("", source) else "write "
        return f"--source is {source}: {remedy}{words}"
    if SECRET_IN_URL.search(address):
        return (
            "it holds a password or signature, which would be readable in the release: leave that out, and put "
            "the whole address, or the login, in the Secret of --data-secret (keys url, netrc)"
        )
    return ""


def no_address(answers: Answers) -> str:
    """Say that a prepared dataset has no address."""
    return "--source prepared takes none: leave it out, or name another --source"


def no_new_claim(answers: Answers) -> str:
    """Say that this release makes no claim."""
    return "--data-claim and --results-claim name existing claims: leave it out"


# What is said of an answer to a question that the other answers leave no room for
NOT_WITH: dict[str, Callable[[Answers], str]] = {
    "address": no_address,
    "layout": lambda a: "--source prepared is prepared already: leave it out",
    "data_secret": lambda a: f"--source {a['source']} needs none: leave it out",
    "data_size": lambda a: "--data-claim names an existing claim: leave one of them out",
    "results_size": lambda a: "--results-claim names an existing claim: leave one of them out",
    "storage_class": no_new_claim,
    "access_mode": no_new_claim,
    "processes_per_node": lambda a: (
        f"--gpus-per-node {a['gpus_per_node']} has one process for each: leave one of them out"
    ),
    "wandb_secret": lambda a: f"--wandb is {a['wandb']}, which sends nothing: leave it out, or write --wandb online",
}
# What is said of an answer that does not fit; empty where it does
FITS: dict[str, Callable[[Any, Answers], str]] = {
    "address": wrong_address,
    "endpoint": lambda value, a: (
        "" if a["source"] == "s3" else f"only --source s3 takes one, and --source is {a['source']}: leave it out"
    ),
    "nodes": lambda value, a: "" if value else "write 1 or more",
    "processes_per_node": lambda value, a: "" if value else "write 1 or more",
    "registry": lambda value, a: "leave out the scheme, as in registry.example.com/team" if "://" in value else "",
    "tag": lambda value, a: "`latest` names another image tomorrow: write the tag of one" if value == "latest" else "",
}
