"""Shared by the scripts of this folder: their options, and how a function becomes a TrainJob."""

import argparse
import importlib.metadata
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import text
from following import follow
from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import CustomTrainer, TrainerClient
from kubeflow.trainer.options import Name
from kubernetes import client as kubernetes
from text import fail

sys.path.append(str(Path(__file__).resolve().parents[2]))
from trainyard.cluster import versions

WEBHOOK_TRIES = 12
API = ("trainer.kubeflow.org", "v1alpha1")


def options(description: str, nodes: int, gpus: int) -> argparse.ArgumentParser:
    """Options of all scripts that create a job."""
    title, prefix = description.splitlines()[0], re.sub(r"\W|_", "-", sys.argv[0].split("/")[-1].removesuffix(".py"))
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--namespace", "-n", help="where the runtime is (kubectl's own unless given)")
    parser.add_argument("--runtime", required=True, help="a TrainingRuntime; the chart's has the name of its release")
    parser.add_argument("--name", default=f"{prefix}-{secrets.token_hex(3)}", help="the job's (else a random one)")
    parser.add_argument("--nodes", type=int, default=nodes, help=f"pods (default {nodes})")
    parser.add_argument("--gpus", type=int, default=gpus, help=f"GPUs and processes per node (default {gpus}), or 0")
    parser.add_argument("--cpu", help="processors per node (without GPUs 1, and as many processes, rounded up)")
    parser.add_argument("--memory", help="memory per node, for example 16Gi (the runtime's own unless given)")
    parser.add_argument("--timeout", type=int, default=3600, help="seconds to wait for the end (default 3600)")
    parser.add_argument("--detach", action="store_true", help="create the job and leave; watch.py follows it later")
    return parser


def connect(namespace: str | None) -> TrainerClient:
    """Return a client of kubectl's current cluster; warn if its Trainer and this SDK do not fit."""
    try:
        client = TrainerClient(KubernetesBackendConfig(namespace=namespace))
        kubernetes.CustomObjectsApi().list_namespaced_custom_object(*API, client.backend.namespace, "trainjobs")
    except Exception as error:
        fail(f"cannot list TrainJobs: {_reason(error)}; check KUBECONFIG, and that `kubectl get trainjobs` works")
    try:
        system = os.environ.get("KUBEFLOW_SYSTEM_NAMESPACE", versions.NAMESPACE)
        public = kubernetes.CoreV1Api().read_namespaced_config_map(versions.PUBLIC, system)
    except kubernetes.ApiException:  # not everybody may read it
        return client
    told = (public.data or {}).get("kubeflow_trainer_version", "")
    if words := versions.skew(told, importlib.metadata.version("kubeflow-trainer-api")):
        print(f"warning: {words}", file=sys.stderr)
    return client


def resources(given: argparse.Namespace) -> dict[str, Any]:
    """Resources of a node, requests and limits alike, over the runtime's own. The SDK wants CPUs or GPUs among them."""
    amounts = {"gpu": given.gpus, "cpu": given.cpu or (None if given.gpus else "1"), "memory": given.memory}
    return {name: amount for name, amount in amounts.items() if amount}


def send(given: argparse.Namespace, function: Callable[..., None], **arguments: Any) -> int:
    """Create a TrainJob that runs the function on every process, and follow it; return the script's exit code."""
    text.check(function, arguments)
    trainer = CustomTrainer(
        func=function, func_args=arguments, num_nodes=given.nodes, resources_per_node=resources(given)
    )
    return create(given, connect(given.namespace), trainer)


def create(given: argparse.Namespace, client: TrainerClient, trainer: Any, *more: Any) -> int:
    """Create a TrainJob and follow it, unless detached; return the script's exit code."""
    through = runtime(client, given.runtime)
    for left in reversed(range(WEBHOOK_TRIES)):
        try:
            job = client.train(runtime=through, trainer=trainer, options=[Name(given.name), *more])
            break
        except (RuntimeError, ValueError, TimeoutError) as error:
            if not left or "failed calling webhook" not in _reason(error):
                fail(f"the job was not created: {_reason(error)}")
            time.sleep(5)  # the operator is starting or busy: nothing was created
    print(f"created trainjob/{job}", flush=True)
    return 0 if given.detach else follow(client, job, given.timeout)


def runtime(client: TrainerClient, name: str) -> Any:
    """Return the runtime of that name; fail with the existing names if there is none."""
    try:
        return client.get_runtime(name)
    except (RuntimeError, TimeoutError) as error:
        found = ", ".join(sorted(entry.name for entry in client.list_runtimes()))
        fail(
            f"--runtime {name}: {_reason(error)}; there are: {found or 'none; install the chart with trainjob.enabled'}"
        )


def _reason(error: BaseException) -> str:
    """Return what the API server said, which the SDK hides behind "Failed to"."""
    cause: Any = error.__cause__ or error
    body = str(getattr(cause, "body", "") or "")
    said = json.loads(body).get("message", "") if body.startswith("{") else body
    return said or str(getattr(cause, "reason", "") or cause)
