"""Checks that Kubeflow Trainer's parts fit each other: fields that an older API does not know, it drops in silence."""

import re

# What the chart and the SDK's examples were run with.
TRAINER, JOBSET, SDK = "2.3.0", "0.12.0", "0.5.0"
EARLIER = ("2.1", "2.2")  # Trainers that the chart renders for where `trainjob.version` names them
LEAST = (2, 2)  # the Trainer whose TrainJob has the fields that the chart, Kueue and the SDK write
PUBLIC = "kubeflow-trainer-public"  # ConfigMap with the version, in the controller's namespace
NAMESPACE = "kubeflow-system"  # its namespace, unless KUBEFLOW_SYSTEM_NAMESPACE says another


def minor(version: str) -> tuple[int, ...]:
    """Return major and minor of a version such as v2.3.0; empty where there are none."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else ()


def skew(trainer: str, api: str = "", written: tuple[int, ...] = ()) -> str:
    """Say which versions do not fit and what to do; empty where they do.

    `trainer` is the cluster's, as its ConfigMap kubeflow-trainer-public tells (empty: there is none); `api` that of the
    Python package kubeflow-trainer-api, by which the SDK writes TrainJobs (empty: no SDK is at work); `written` the
    version that values name by `trainjob.version` (empty: none), which then has to be the cluster's and no more.
    """
    there, here = minor(trainer), minor(api)
    if written:
        other = f"the cluster's Kubeflow Trainer is {trainer}, and trainjob.version is {'.'.join(map(str, written))}"
        return other if there and there != written else ""
    if not there:
        return (
            f"the cluster does not tell its Kubeflow Trainer's version (ConfigMap {PUBLIC}): it is older than 2.1, or "
            f"in another namespace than KUBEFLOW_SYSTEM_NAMESPACE ({NAMESPACE}) says; {TRAINER} was tested"
        )
    if there < LEAST:
        return (
            f"the cluster's Kubeflow Trainer is {trainer}, and the TrainJobs have fields of 2.2 and later, which it "
            f"drops in silence: update Kubeflow Trainer ({TRAINER} was tested)"
        )
    if here and there < here:
        return (
            f"the cluster's Kubeflow Trainer is {trainer}, and the SDK writes TrainJobs of {api}: it drops in silence "
            f"what it does not know; update Kubeflow Trainer to {api}, or install an SDK whose kubeflow-trainer-api "
            f"is {'.'.join(map(str, there))}"
        )
    if here and there[0] > here[0]:
        return (
            f"the cluster's Kubeflow Trainer is {trainer}, and the SDK writes TrainJobs of {api}: install an SDK whose "
            f"kubeflow-trainer-api is {there[0]}.x"
        )
    return ""
