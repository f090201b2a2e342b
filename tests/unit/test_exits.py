"""What errors mean: one table, and the same in docs."""

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT, environment

from tests import patience
from trainyard.core import exits
from trainyard.core.exits import CAUSES, STORAGE, Exit, UserError, cause_of

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3312"


class HorovodInternalError(RuntimeError):
    __module__ = "horovod.common.exceptions"


@pytest.mark.parametrize(
    ("error", "name", "code"),
    [
        (UserError("seed = x"), "input", 2),
        (exits.HostMemoryError("pinned memory: CUDA error: out of memory"), "host", 2),
        (MemoryError(), "host", 2),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you"
            ),
            "host",
            2,
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "memory", 2),
        (torch.AcceleratorError("CUDA error: out of memory"), "memory", 2),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "memory", 2),
        (dist.DistBackendError("NCCL error, ncclUnhandledCudaError: Cuda failure 'out of memory'"), "memory", 2),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "unfit", 2),
        (RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation, but"), "determinism", 2),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), "assertion", 1),
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"), "device", 201),
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), "device", 201),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "device", 201),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), "device", 201),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"), "device", 201),
        (
            RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
            "device",
            201,
        ),
        (dist.DistBackendError("NCCL error in: NCCLUtils.cpp:77, ncclInvalidUsage: usage"), "usage", 1),
        (RuntimeError("NCCL error: invalid argument, ncclInvalidArgument"), "usage", 1),
        (dist.DistBackendError("NCCL error in: NCCLUtils.cpp:77, remote process exited"), "peer", 138),
        (dist.DistNetworkError("The client socket has timed out after 60000ms"), "peer", 138),
        (dist.DistStoreError("wait timeout after 10000ms, keys: /default_pg/0//cpu//0/rank_1"), "peer", 138),
        (RuntimeError(GLOO), "peer", 138),
        (RuntimeError("NCCL communicator was aborted on rank 3"), "peer", 138),
        (HorovodInternalError("Broken"), "peer", 138),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "peer", 138),
        (TimeoutError("timed out"), "peer", 138),
        (OSError(errno.ESTALE, "Stale file handle"), "storage", 200),
        (OSError(errno.ETIMEDOUT, "timed out"), "storage", 200),
        (OSError(errno.ENOSPC, "full"), "full", 1),
        (FileNotFoundError(errno.ENOENT, "none"), "unknown", 1),
        (RuntimeError("the store of the user's model has no gloom, NCCL is not meant"), "unknown", 1),
        (ValueError("CUDA error"), "unknown", 1),
        (KeyError("x"), "unknown", 1),
    ],
)
def test_each_error_has_its_row(error: Exception, name: str, code: int) -> None:
    assert (cause_of(error).name, cause_of(error).code) == (name, code)


def test_a_processors_allocator_that_has_no_memory_is_the_nodes() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert cause_of(caught.value).name == "host"


def test_pinned_memory_that_is_not_to_be_had_is_the_nodes() -> None:
    """CUDA has one error for both."""
    with pytest.raises(exits.HostMemoryError, match=r"pinned memory: CUDA error: out of memory"), exits.pinning():
        raise torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be")
    with pytest.raises(torch.AcceleratorError, match="illegal"), exits.pinning():
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize("number", STORAGE)
def test_every_errno_of_storage_is_retried(number: int) -> None:
    assert cause_of(OSError(number, "x")).code >= 128
    assert number not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, *exits.FULL)


def test_docs_have_the_same_table() -> None:
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|.*?\| ([\d, then]+) \|", page, re.MULTILINE)
    said = {name: codes for names, codes in rows for name in re.findall(r"`(\w+)`", names)}
    assert set(said) == {cause.name for cause in CAUSES}
    for cause in CAUSES:
        codes = [int(code) for code in re.findall(r"\d+", said[cause.name])]
        assert codes == ([Exit.CRASHED, Exit.FAILED] if cause.name == "unknown" else [cause.code])


def test_programs_end_with_the_code_of_what_they_raise(tmp_path: Path) -> None:
    """Also the launcher and the preparation, which have no run directory."""
    program = (
        "from trainyard.core.exits import guarded\n"
        "def main():\n    raise OSError(116, 'Stale file handle')\n"
        "guarded(main)\n"
    )
    done = patience.run([sys.executable, "-c", program], cwd=ROOT, env=environment())
    assert done.returncode == 200, done.stderr
    assert "error: OSError: [Errno 116] Stale file handle" in done.stderr


def test_the_table_imports_nothing() -> None:
    program = "import sys, trainyard.core.exits as e; e.cause_of(ValueError()); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
