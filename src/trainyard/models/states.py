"""Files of weights as people have them: what a file is, and the state dicts that lie in it.

Nothing of a file is run: tensors and plain containers are read as torch.load reads them with `weights_only`, and an
object of any other class (the arguments of a training script, a whole model) becomes a stand-in that holds nothing.
"""

import contextlib
import pickle
import pickletools
import warnings
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainyard.core.storage import storage

State = dict[str, Tensor]
At = tuple[str, ...]  # the keys that lead to a state dict in what a file holds
DEPTH = 4  # of a state dict in what a file holds
OPTIMIZER = "optim"  # how the keys of its state begin

PAGE = "is a page (HTML or XML), not a file of weights: its address led to a login, an error or a page about the file"
STARTS = {
    b"version https://git-lfs": "is a Git LFS pointer, not the file itself; run `git lfs pull` where it was cloned, or "
    "download the file",
    b"\x89HDF": "is an HDF5 file, as Keras saves weights, and no state dict of PyTorch",
    b"\x1f\x8b": "is compressed by gzip; unpack it",
    b"BZh": "is compressed by bzip2; unpack it",
    b"\xfd7zXZ": "is compressed by xz; unpack it",
}
ARRAY = "multiarray._reconstruct"  # what makes an array of NumPy in a pickle
ZIP = b"PK\x03\x04"
INDEX = ".safetensors.index.json"
DISTRIBUTED = ".metadata"  # of a folder that torch.distributed.checkpoint wrote


class StandIn:
    """An object of a class that is not looked for; its class has the name that the file says."""

    def __new__(cls, *_: Any, **__: Any) -> "StandIn":
        """Take anything."""
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take anything."""

    def __setstate__(self, state: Any) -> None:
        """Keep nothing."""


def refused_state() -> tuple[type[Exception], ...]:
    """Return the errors by which a file turns out to be no state dict, or not a model's."""
    return OSError, RuntimeError, ValueError, AttributeError, TypeError, KeyError, EOFError, pickle.UnpicklingError


def refusal(error: Exception) -> str:
    """Return the words for an error of `refused_state` that follow on the file's name, on one line."""
    if isinstance(error, IsADirectoryError):
        return "is a folder without model.safetensors and model.pth; give the path of a file"
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror or error}); give the path of a file that can"
    return " ".join(str(error).split())


def read(path: Path) -> dict[At, State]:
    """Return the state dicts in a file, by the keys that lead to them: `()` where the file is one itself.

    Raises ValueError, whose message follows on the file's name, other errors of `refused_state`, and StorageError.
    """
    if words := storage.perform(path, _folder_words, path):
        raise ValueError(words)
    start = storage.perform(path, _start, path)
    if foreign := _foreign(start):
        raise ValueError(foreign)
    if start.lstrip()[:1] == b"{" and b"\0" not in start[:8]:
        raise ValueError(_json_words(path))
    if start[8:9] == b"{":
        return {(): _safetensors(path)}
    if start.startswith(ZIP):
        storage.perform(path, _check_zip, path)
    tree = storage.perform(path, _unpickled, path)
    if found := dict(_states(tree)):
        return found
    raise ValueError(_stateless(path, tree))


def parse_safetensors(content: bytes) -> State:
    """Return the state dict in the bytes of a safetensors file; raises ValueError as `read` does."""
    from safetensors.torch import load

    if foreign := _foreign(content[:256]):
        raise ValueError(foreign)
    with _refused():
        state: State = load(content)
    return state


def saved_alone(what: str) -> str:
    """Return the line that saves a state dict alone; `what` is Python for it."""
    return f"`python -c \"import torch; torch.save({what}, 'weights.pth')\"`"


def load_expression(path: Path, at: At = ()) -> str:
    """Python for what lies at these keys of a file, which runs code from it."""
    if path.suffix == ".safetensors":
        return f"__import__('safetensors.torch').torch.load_file({str(path)!r})"
    return f"torch.load({str(path)!r}, 'cpu', weights_only=False)" + "".join(f"[{key!r}]" for key in at)


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(256)


def _foreign(start: bytes) -> str:
    """Return what a file is that begins so, and holds no weights; empty if it may hold some."""
    if not start:
        return "is empty; copy or download it again"
    if start.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"<"):
        return PAGE
    return next((words for begin, words in STARTS.items() if start.startswith(begin)), "")


def _folder_words(path: Path) -> str:
    """Return what a folder is that holds weights in several files; nothing for any other, and for files."""
    if (path / DISTRIBUTED).is_file():
        module = "torch.distributed.checkpoint.format_utils"
        return (
            "is a checkpoint of torch.distributed.checkpoint; join it: "
            f"`python -m {module} dcp_to_torch {path} weights.pth`"
        )
    return _json_words(index) if (index := path / f"model{INDEX}").is_file() else ""


def _json_words(path: Path) -> str:
    """Return what a JSON file is that was given as weights; such an index lies beside weights in several files."""
    if not path.name.endswith(INDEX):
        return "is a JSON text, not a file of weights; give the path of the file beside it that holds them"
    parts = str(path.with_name(f"{path.name.removesuffix(INDEX)}-*.safetensors"))
    load = "__import__('safetensors.torch').torch.load_file"
    files = f"sorted(__import__('glob').glob({parts!r}))"
    return (
        "is the index of weights that lie in several files; join them: "
        f"{saved_alone(f'{{k: v for f in {files} for k, v in {load}(f).items()}}')}"
    )


def _safetensors(path: Path) -> State:
    from safetensors.torch import load_file

    with _refused():
        state: State = storage.perform(path, load_file, path)
    return state


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"cannot be read ({error}); copy or download it again") from error


def _check_zip(path: Path) -> None:
    """Raise ValueError where a zip is not one that torch.save wrote."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
    except zipfile.BadZipFile:
        raise ValueError(
            "is cut short or damaged; copy or download it again, and compare its size with the original's"
        ) from None
    if "constants.pkl" in names:
        script = f"torch.jit.load({str(path)!r}, 'cpu').state_dict()"
        raise ValueError(f"is a TorchScript program; save its state dict: {saved_alone(script)}")
    if "archive_format" in names:
        raise ValueError(
            "is a program of torch.export; save its state dict: "
            f"{saved_alone(f'torch.export.load({str(path)!r}).state_dict')}"
        )
    if names and all(name.endswith(".npy") for name in names):
        raise ValueError(
            "holds arrays of NumPy (.npz), as JAX saves weights; convert it by the program that it was made for, or "
            "take timm's copy (model.pretrained: timm)"
        )
    if "data.pkl" not in names:
        raise ValueError("is a zip that torch.save did not write; unpack it, and give the file of weights in it")


def _unpickled(path: Path) -> Any:
    try:
        return _load(path)
    except pickle.UnpicklingError:  # it holds objects of other classes, or is no pickle
        kinds = {name: type(name, (StandIn,), {}) for name in _classes(path)}
    with torch.serialization.safe_globals([(kind, name) for name, kind in kinds.items()]):
        try:
            return _load(path)
        except pickle.UnpicklingError:
            raise ValueError(
                "holds objects that cannot be read without running code from it; where you trust it, save its state "
                f"dict alone: {saved_alone(load_expression(path, ('state_dict',)))}, "
                "or by another key than 'state_dict'"
            ) from None


def _load(path: Path) -> Any:
    with warnings.catch_warnings(), path.open("rb") as file:  # by a name, torch may take another reader
        warnings.simplefilter("ignore")  # advice for who calls torch.load
        return torch.load(file, map_location="cpu", weights_only=True)


def _classes(path: Path) -> set[str]:
    """Return the names of all classes and functions in a file of torch.save; raises ValueError where it is none."""
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:  # four pickles: a number, a version, a system, and the object
                return {name for _ in range(4) for name in _globals(file)}
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl")
            return set(_globals(archive.open(name)))
    except (ValueError, EOFError, IndexError, zipfile.BadZipFile):
        raise ValueError("is neither a file of torch.save nor of safetensors, or it is damaged") from None


def _globals(file: Any) -> Iterator[str]:
    for operation, argument, _ in pickletools.genops(file):
        if operation.name == "GLOBAL":
            assert argument is not None
            module, _, name = argument.partition(" ")
            # as names of Python 2, which this protocol has, are read
            module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
            yield f"{module}.{name}"


def _states(tree: Any, at: At = ()) -> Iterator[tuple[At, State]]:
    """Yield the state dicts in what a file holds, the outermost first; what is no tensor is left out of them.

    An optimizer may keep tensors under the names of weights, and its averages are none of them.
    """
    if not isinstance(tree, dict) or len(at) == DEPTH:
        return
    named = {key: value for key, value in tree.items() if isinstance(key, str)}
    if state := {key: value for key, value in named.items() if isinstance(value, Tensor)}:
        yield at, state
    for key, value in named.items():
        if not key.lower().startswith(OPTIMIZER):
            yield from _states(value, (*at, key))


def _arrays(tree: Any, at: At = ()) -> Iterator[At]:
    """Yield the keys that lead to dicts of NumPy's arrays, the outermost first."""
    if not isinstance(tree, dict) or len(at) == DEPTH:
        return
    if any(isinstance(value, StandIn) and type(value).__name__.endswith(ARRAY) for value in tree.values()):
        yield at
    for key, value in tree.items():
        if isinstance(key, str):
            yield from _arrays(value, (*at, key))


def _stateless(path: Path, tree: Any) -> str:
    """Return the words for a file without a state dict."""
    if (place := next(_arrays(tree), None)) is not None:
        tensors = f"{{k: torch.as_tensor(v) for k, v in {load_expression(path, place)}.items()}}"
        return f"holds arrays of NumPy, not tensors; where you trust it, save tensors: {saved_alone(tensors)}"
    values = {(): tree} | ({(key,): value for key, value in tree.items()} if isinstance(tree, dict) else {})
    for at, value in values.items():
        if isinstance(value, StandIn):
            where = f" under {at[0]!r}" if at else ""
            return (
                f"holds a whole pickled {type(value).__name__}{where}: reading it runs code from it; where you trust "
                "it and its class can be imported, save its state dict: "
                f"{saved_alone(load_expression(path, at) + '.state_dict()')}"
            )
    return f"is no state dict but a {type(tree).__name__}" + (
        f" of {', '.join(map(repr, list(tree)[:5])) or 'nothing'}" if isinstance(tree, dict) else ""
    )
