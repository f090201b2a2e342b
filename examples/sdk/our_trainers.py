"""Train with this project's trainers through the SDK, in the chart's runtime: recipes, resume and reports.

    python examples/sdk/our_trainers.py -n training --runtime run --nodes 2 --gpus 8
    python examples/sdk/our_trainers.py -n training --runtime run --gpus 0 --cpu 200m --set epochs=1 --set strategy=fsdp
    python examples/sdk/our_trainers.py -n training --runtime run --gpus 8 --recipe resnet50-a3 --form function

Settings are the release's own, with --recipe and --set over them. The run directory is /results/runs/NAME: delete a job
and create another with the same --name, and it resumes from the last checkpoint. "--form command" starts our launcher,
so that exit codes reach the pod and temporary failures are retried. "--form function" sends a function for torchrun, to
which you can add your own code; torchrun turns every failure into exit code 1, which ends the job.
"""

import jobs
from kubeflow.trainer import CustomTrainerContainer
from kubeflow.trainer.options import TrainerCommand


def train(arguments: list[str]) -> None:
    """Train as the command line of trainers.ddp says, on this process."""
    import sys

    from trainyard.core import exits
    from trainyard.training import command

    sys.argv = ["trainers.ddp", *arguments]
    exits.guarded(lambda: command.main("trainers.ddp", "ddp", "Train through the SDK"))


def main() -> int:
    """Create the job and follow it."""
    parser = jobs.options(__doc__, nodes=2, gpus=1)
    parser.add_argument("--recipe", help="instead of the release's")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE", help="one setting")
    parser.add_argument("--form", choices=("command", "function"), default="command", help="(default command)")
    given = parser.parse_args()
    arguments = ["--config", "/etc/trainyard/config.json"]
    if given.recipe:
        arguments += ["--recipe", given.recipe]
    for setting in [f"run.dir=/results/runs/{given.name}", *given.settings]:
        arguments += ["--set", setting]
    if given.form == "function":
        return jobs.send(given, train, arguments=arguments)
    client = jobs.connect(given.namespace)
    image = jobs.runtime(client, given.runtime).trainer.image
    container = CustomTrainerContainer(image, num_nodes=given.nodes, resources_per_node=jobs.resources(given))
    command = ["python", "-m", "trainyard", "launch", "-m", "trainers.ddp", *arguments]
    return jobs.create(given, client, container, TrainerCommand(command))


if __name__ == "__main__":
    raise SystemExit(main())
