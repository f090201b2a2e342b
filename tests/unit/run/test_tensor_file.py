"""Reading a file of tensors that is not as it was written: an error, or what the safetensors library reads."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from trainyard.run import tensor_file

TREE = {
    "weights": torch.arange(24, dtype=torch.float32).view(2, 3, 4),
    "half": torch.arange(5, dtype=torch.bfloat16),
    "steps": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "none": torch.empty(0, 3),
    "nested": {"moments": [torch.ones(2, 2), torch.zeros(3)]},
}
NUMBERS = (-1, 0, 1, 2, 3, 4, 5, 8, 96, 2**31, 2**62, 2**64, 1.0, True, None, "2", [], [1])


def written(folder: Path) -> bytes:
    buffer = tensor_file.Buffer()
    tensor_file.copy(buffer.fit(TREE))
    buffer.write(folder / "whole")
    return (folder / "whole").read_bytes()


def changed_entry(header: dict[str, Any], draw: random.Random) -> None:
    name, other = draw.sample(sorted(header.keys() - {"__metadata__"}), 2)
    entry, list_of = header[name], draw.choice(("shape", "data_offsets"))
    match draw.randrange(7):
        case 0:
            del header[name]
        case 1:
            header[name], header[other] = header[other], entry
        case 2:
            entry["dtype"] = draw.choice([*tensor_file.NAMES, "F8", 3])
        case 3:
            entry[list_of] = header[other][list_of]
        case 4:
            entry[list_of] = [draw.choice(NUMBERS) for _ in range(draw.randrange(4))]
        case 5 if entry[list_of]:
            entry[list_of][draw.randrange(len(entry[list_of]))] = draw.choice(NUMBERS)
        case _:
            entry["data_offsets"] = [draw.choice((-8, -1, 0, 1, 8, 96)) for _ in range(2)]


def damaged(whole: bytes, draw: random.Random) -> bytes:
    """Another header, or another tree, behind a length that is right as a rule; or any other bytes."""
    end = 8 + int.from_bytes(whole[:8], "little")
    header, tensors = json.loads(whole[8:end]), whole[end:]
    kind = draw.randrange(6)
    if kind < 3:
        for _ in range(kind + 1):
            changed_entry(header, draw)
    elif kind == 3:
        tree = list(header["__metadata__"]["tree"])
        for _ in range(draw.randint(1, 2)):
            tree[draw.randrange(len(tree))] = draw.choice('0123456789[]{}",:xn')
        header["__metadata__"]["tree"] = "".join(tree)
    text = json.dumps(header).encode()
    data = bytearray((len(text) + draw.choice((0,) * 30 + (-1, 1, 2**40))).to_bytes(8, "little") + text + tensors)
    if kind == 4:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    if kind == 5:
        data = data[: draw.randrange(len(data))] if draw.random() < 0.5 else data + bytes(draw.randint(1, 9))
    return bytes(data)


def tensors_of(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return [tensor for part in parts for tensor in tensors_of(part)]


def told(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return tensor.dtype, tensor.shape, tensor.flatten().view(torch.uint8).numpy().tobytes()


def fuzz(folder: Path, seed: int, inputs: int = 0, seconds: float = 0) -> int:
    """Return how many inputs were read."""
    draw, whole, path, taken, done = random.Random(seed), written(folder), folder / "damaged", 0, 0
    end = time.monotonic() + seconds
    while done < inputs or time.monotonic() < end:
        data, done = damaged(whole, draw), done + 1
        path.write_bytes(data)
        try:
            found = tensor_file.read(path)
        except ValueError:
            with pytest.raises(ValueError, match="does not hold tensors"):
                tensor_file.check(path)
            continue
        tensor_file.check(path)
        taken += 1
        expected = [told(tensor) for tensor in safetensors.torch.load(data).values()]
        assert all(told(tensor) in expected for tensor in tensors_of(found)), (seed, done)
    return taken


def test_a_damaged_file_is_refused_or_read_as_by_the_library_of_the_format(tmp_path: Path) -> None:
    assert 100 < fuzz(tmp_path, seed=1, inputs=1500) < 1000


def test_a_shape_without_bytes_is_not_filled_from_memory(tmp_path: Path) -> None:
    whole = written(tmp_path)
    old, new = b'"shape": [0, 3]', b'"shape": [3, 3]'
    assert old in whole
    (tmp_path / "claims").write_bytes(whole.replace(old, new))
    with pytest.raises(ValueError, match=r"claims does not hold tensors as .*none does not lie where it must"):
        tensor_file.read(tmp_path / "claims")


@pytest.mark.soak
def test_a_damaged_file_is_refused_or_read_as_by_the_library_of_the_format_for_minutes(tmp_path: Path) -> None:
    fuzz(tmp_path, random.randrange(2**31), seconds=60)
