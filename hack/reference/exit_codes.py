"""Reference of exit codes: each code, and which errors lead to it (src/trainyard/core/exits.py)."""

from hack.reference.markdown import NOTE, page, table
from trainyard.cluster.remedies import EXIT_CODES
from trainyard.core.exits import CAUSES, Exit

# What no error of the table leads to, and what src/trainyard/cluster/remedies.py does not explain
OTHERS = {0: "trained, or finished before: nothing is left to do", 130: "interrupted from the keyboard"}
ENOUGH = f"{Exit.DEVICE:d} and retried where the same settings have done the same (a step, a validation) before"
# Which errors a row of CAUSES is about, and whose they are, for people
ERRORS = {
    "input": ("our own, with key, value and remedy; a missing or forbidden file", "the user's"),
    "host": (
        "`MemoryError`, torch's allocator on CPUs, CUDA's for pinned memory",
        f"the user's: `data.prefetch`, the pod's memory; {ENOUGH}",
    ),
    "memory": (
        "`torch.OutOfMemoryError`, cuBLAS and NCCL without memory",
        f"the user's: `batch.micro`; {ENOUGH}, or where other processes hold the GPU's memory",
    ),
    "unfit": ("no kernel image for this GPU, a driver that is too old", "the user's: another image"),
    "determinism": (
        "`deterministic: true`, and the model has an operation without a deterministic form",
        "the user's: set it to false",
    ),
    "files": ("`EMFILE`, `ENFILE`: more open files than the process or the node may have", "the user's: `ulimit -n`"),
    "temporary": (
        "no folder for temporary files: `TMPDIR` and /tmp are missing, full or read-only",
        "the user's: `TMPDIR`",
    ),
    "assertion": ("a device-side assert", "a bug"),
    "device": ("any other `torch.AcceleratorError`; errors of CUDA, cuDNN, cuBLAS", "may heal"),
    "usage": ("`ncclInvalidUsage`, `ncclInvalidArgument`", "a bug"),
    "peer": (
        "errors of torch.distributed, NCCL, gloo, Horovod, the rendezvous; a connection that breaks",
        "may heal",
    ),
    "storage": (
        "an `OSError` by which storage says that it does not answer: `ESTALE`, `EIO`, `ENOTCONN`, `ETIMEDOUT`, "
        "`EHOSTDOWN`, `EAGAIN`, `EREMOTEIO` and others, listed with reasons in "
        "[src/trainyard/core/exits.py](../../src/trainyard/core/exits.py)",
        "may heal",
    ),
    "full": ("`ENOSPC`, `EDQUOT`", "the user's; not recorded, so a new try starts once there is room"),
    "unknown": (
        "everything else",
        f"perhaps a bug: on a cluster it ends with {Exit.CRASHED:d} and is tried once more, and is a bug if it ends "
        "the next start at the same place",
    ),
}


def write() -> str:
    """Return the page."""
    return page(
        "# Exit codes",
        f"For a code in a pod's status, in `trainyard why` or in a shell. {NOTE}",
        "Codes of 128 and above are retried, those below are not, except by mpi-operator, which cannot tell them "
        "apart: there `failed.json` in the run directory ends a retry at once with the same message. After "
        "`run.max_restarts` (3) restarts without a new checkpoint a run ends with 1 and says why the last one failed. "
        "How each operator retries: [the operators](../operators.md#restarts).",
        "## Codes",
        table(("exit code", "meaning and remedy", "retried"), codes()),
        "143 is 128 + 15 (SIGTERM; Ctrl-C in a terminal and its closing ask for the same), 137 is 128 + 9 (SIGKILL), "
        "139 is 128 + 11 (SIGSEGV), 134 is 128 + 6 (SIGABRT).",
        "**At night.** A code that is retried asks nothing of you at once. 138 is mostly a consequence: some rank was "
        "lost, and all others noticed. Look for the one pod with another code (137, 139, 200, 201) by `trainyard why "
        "RELEASE -n NAMESPACE`, or [with kubectl alone](../troubleshooting.md); where there is none, a rank hung "
        "([reports](../reports.md#hangs-nan-explosions)). "
        "Pods that were recreated have left their logs, with what hung and why each start ended, in `logs/` of the run "
        "directory: `trainyard fetch RELEASE runs/RELEASE/logs ./logs -n NAMESPACE`. Act where it comes back.",
        "## What an error means",
        "One table ([exits.py](../../src/trainyard/core/exits.py), `CAUSES`) turns an error into a code; the first row "
        "that fits counts. A loss that is NaN, infinite or above `log.max_loss` is no error of the program and ends "
        f"with {Exit.NAN:d}. At a shell, where nobody retries, an unknown error ends with {Exit.FAILED:d} at once.",
        table(("cause", "errors", "exit code", "whose"), causes()),
        "Next: [interruptions: what each loses and how a run resumes](../interruptions.md), "
        "[messages and remedies](../troubleshooting.md).",
    )


def codes() -> list[tuple[str, str, str]]:
    """Return a row for each code."""
    known = OTHERS | EXIT_CODES
    assert set(known) >= set(Exit), "a code has no meaning here"
    return [(f"{code:d}", known[code], "yes" if code >= 128 and code not in OTHERS else "no") for code in sorted(known)]


def causes() -> list[tuple[str, str, str, str]]:
    """Return a row for each cause, in the order in which they are tried."""
    found = {cause.name: cause.code for cause in CAUSES}
    assert set(found) == set(ERRORS), "a cause has no text here"
    return [(f"`{name}`", ERRORS[name][0], code(name, found[name]), ERRORS[name][1]) for name in found]


def code(name: str, exit_code: Exit) -> str:
    """Return a cause's code; an unknown error's first end on a cluster has its own."""
    return f"{Exit.CRASHED:d}, then {exit_code:d}" if name == "unknown" else f"{exit_code:d}"
