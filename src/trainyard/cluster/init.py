"""Write a values file: by questions on a terminal, by options elsewhere.

trainyard init [-o FILE] [--source ...] [--nodes N] [--gpus-per-node N] ...
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainyard.cluster import answers, parsing, values_file
from trainyard.cluster.answers import QUESTIONS, QUESTIONS_BY_TOPIC, Answers, Question
from trainyard.cluster.parsing import WrongInputError

Ask = Callable[[Question, Answers], Any]


def complete(given: Answers, ask: Ask | None) -> Answers:
    """Return answers to all questions that apply: those given, else asked for, else the defaults.

    Raises WrongInputError that names every option which is wrong, does not fit the others, or is missing.
    """
    known, wrong = dict(given), []
    known["source"] = known["source"] or answers.guessed_source(known["address"] or "") or None
    for question in QUESTIONS:
        key = question.key
        if known[key] is None:
            known[key] = find_answer(question, known, ask)
        if known[key] is None:
            wrong.append(f"{question.flag} is missing: {format_question(question)}")
        elif said := problem(question, known):
            wrong.append(f"{question.flag} {known[key]}: {said}")
        else:
            known[key] = convert_answer(question, known[key])
    if wrong:
        raise WrongInputError("\n  ".join(["some answers are wrong:", *wrong] if len(wrong) > 1 else wrong))
    return known


def find_answer(question: Question, known: Answers, ask: Ask | None) -> Any:
    """Return the answer to a question that the command line leaves open; None where it must be answered."""
    if not question.applies(known):
        return ""
    return ask(question, known) if ask and question.asked else question.default(known)


def problem(question: Question, known: Answers) -> str:
    """Say what is wrong with an answer, by itself or because of another one; empty for nothing."""
    value = known[question.key]
    if value in (None, ""):
        return ""
    if said := answers.wrong_form(question, str(value)):
        return said
    return answers.contradiction(question, known | {question.key: convert_answer(question, value)})


def convert_answer(question: Question, value: Any) -> Any:
    """Return an answer as a number, if it is one."""
    return int(value) if question.number and value != "" else value


def format_question(question: Question) -> str:
    """Return a question's words with what it is about and its choices."""
    topic = next(topic for topic, questions in QUESTIONS_BY_TOPIC.items() if question in questions)
    choices = f" ({', '.join(question.choices)})" if question.choices else ""
    return f"{topic}: {question.text}{choices}"


def on_terminal(question: Question, known: Answers) -> Any:
    """Ask a question until its answer fits."""
    default = question.default(known)
    shown = "" if default in (None, "") else f" [{default}]"
    while True:
        said = input(f"{format_question(question)}{shown}: ").strip() or default
        if said is not None and not (wrong := problem(question, known | {question.key: said})):
            return said
        print(f"  {wrong if said is not None else 'this needs an answer'}")


def secrets(known: Answers) -> list[str]:
    """Return the commands that create the Secrets which the file names."""
    keys = {
        "kaggle": "--from-literal=KAGGLE_API_TOKEN=...",
        "s3": "--from-literal=AWS_ACCESS_KEY_ID=... --from-literal=AWS_SECRET_ACCESS_KEY=...",
        "http": "--from-file=netrc",
    }
    create = "kubectl create secret generic {} -n NAMESPACE {}"
    lines = [create.format(known["data_secret"], keys[known["source"]])] if known["data_secret"] else []
    if known["wandb_secret"]:
        lines.append(create.format(known["wandb_secret"], "--from-literal=WANDB_API_KEY=..."))
    return lines


def init(args: argparse.Namespace) -> int:
    """Write the file that the command line, or a person at the terminal, describes."""
    to_stdout = str(args.output) == "-"
    if not to_stdout and args.output.exists() and not args.force:
        raise WrongInputError(
            f"{args.output} is there already: add --force to overwrite it, or name another file by -o"
        )
    terminal = sys.stdin.isatty() and sys.stdout.isatty() and not args.no_input and not to_stdout
    given = {question.key: getattr(args, question.key) for question in QUESTIONS}
    known = complete(given, on_terminal if terminal else None)
    text = values_file.text(known)
    if to_stdout:
        print(text, end="")
        return 0
    try:
        args.output.write_text(text)
    except OSError as error:
        raise WrongInputError(f"-o {args.output}: {error.strerror}: name a file in a folder that is there") from None
    steps = [*secrets(known), f"trainyard up run -f {args.output} -n NAMESPACE"]
    print(f"wrote {args.output}; next:", *steps, sep="\n  ")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of `trainyard init`."""
    own = parsing.command(
        "init",
        "Write a values file for a run: by questions on a terminal, by options elsewhere.",
        """
        trainyard init
        trainyard init --source kaggle --nodes 2 --gpus-per-node 8
        trainyard init --address s3://datasets/pets.zip --data-secret s3 --nodes 1 --gpus-per-node 4 --recipe finetune
        trainyard init --source prepared --data-claim imagenet --nodes 4 --gpus-per-node 8 --operator mpijob
        trainyard init --address /data/raw/trees --nodes 1 --processes-per-node 2 -o trees.yaml
        """,
        {0: "the file is written"},
        "Needed without a terminal: --source or --address, --nodes, and --gpus-per-node or --processes-per-node.",
    )
    own.add_argument("-o", "--output", type=Path, default=Path("trainyard.yaml"), metavar="FILE",
                     help="file to write, or - for standard output (default: trainyard.yaml)")  # fmt: skip
    own.add_argument("--force", action="store_true", help="overwrite the file")
    own.add_argument("--no-input", action="store_true", help="ask nothing, also on a terminal")
    own.usage = "trainyard init [OPTIONS]"
    for topic, questions in QUESTIONS_BY_TOPIC.items():
        group = own.add_argument_group(topic)
        for question in questions:
            metavar = "N" if question.number else question.form.upper() or "TEXT"
            options = {"choices": question.choices} if question.choices else {"metavar": metavar}
            group.add_argument(question.flag, help=question.text, **options)
    return own


def main(arguments: list[str] | None = None) -> int:
    """Write the file that the command line describes."""
    args = parser().parse_args(arguments)
    return parsing.run_command("init", lambda: init(args))
