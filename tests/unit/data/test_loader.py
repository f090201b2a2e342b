"""The loader: order, readahead on slow storage, large reads, clear errors, and the user's own datasets."""

import dataclasses
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starting import opened

from tests import patience
from trainyard import config
from trainyard.core.exits import UserError
from trainyard.data import user
from trainyard.data.loader import Batch, Loader, read_ahead
from trainyard.shards import reader as shards_module
from trainyard.shards.reader import Shards, open_split

NO_FUNCTION = 0.0


def settings(data: Path | str, **over: Any) -> config.Config:
    base = {"data.dir": str(data), "data.image_size": 16, "data.val_resize": 18, "epochs": 1, "batch.global": 8}
    return config.build(*[config.parse_override(f"{key}={value}") for key, value in {**base, **over}.items()])


def jobs(count: int, size: int = 8) -> list[tuple[int, Any]]:
    """Batches of the training split in a shuffled order."""
    order = np.random.Generator(np.random.Philox(key=[1, 2])).permutation(58)
    return [(epoch, order[:size] if not epoch else np.roll(order, epoch)[:size]) for epoch in range(count)]


def as_bytes(batches: list[Batch]) -> list[bytes]:
    return [batch.images.contiguous().numpy().tobytes() + batch.labels.numpy().tobytes() for batch in batches]


def test_batches_for_a_gpu_are_in_its_memory_format_unless_told_otherwise(data: Path) -> None:
    for told, for_gpu, for_cpu in (("null", True, False), ("true", True, True), ("false", False, False)):
        for pin, expected in ((True, for_gpu), (False, for_cpu)):
            splits = opened(settings(data, **{"model.channels_last": told}), pin=pin)
            assert (splits.train.channels_last, splits.val.channels_last) == (expected, expected)


@pytest.mark.parametrize("decoder", ["native", "torchvision"])
@pytest.mark.parametrize("policy", ["none", "trivial", "rand", "rand_increasing"])
def test_batches_do_not_depend_on_threads_or_readahead(data: Path, policy: str, decoder: str) -> None:
    found = []
    augment = {"data.decoder": decoder, "augment.policy": policy, "augment.erase": 0.5}
    for over in ({"data.workers": 1, "data.readahead": 0}, {"data.workers": 3, "data.readahead": 3, "data.readers": 5},
                 {"data.workers": 2, "data.prefetch": 4, "model.channels_last": True}):  # fmt: skip
        loader = opened(settings(data, **augment, **over)).train
        batches = list(loader.batches(jobs(6)))
        assert [batch.ids.tolist() for batch in batches] == [ids.tolist() for _, ids in jobs(6)]
        form = torch.channels_last if loader.channels_last else torch.contiguous_format
        assert all(batch.images.is_contiguous(memory_format=form) for batch in batches)
        found.append(as_bytes(batches))
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 6


@pytest.mark.parametrize("over", [{}, {"data.decoder": "pillow"}, {"data.dir": "synthetic"}])
def test_each_batch_may_have_a_size_of_its_own(data: Path, over: dict[str, Any]) -> None:
    """What a loader of that size alone would give, however far ahead it is prepared; generated images are cut."""
    sizes, over = [12, 12, 30, 7], {"data.val_resize": 0, "data.readahead": 3, "augment.policy": "trivial", **over}

    def made(size: int, asked: list[int] | None) -> list[Batch]:
        chosen: dict[str, Any] = {"data": data, "data.image_size": size, **over}
        loader = opened(settings(**chosen)).train
        return list(loader.batches(jobs(4), asked))

    found = made(30, sizes)
    assert [batch.images.shape for batch in found] == [(8, 3, size, size) for size in sizes]
    for place, size in enumerate(sizes):
        whole = made(30 if "data.dir" in over else size, None)[place]
        assert torch.equal(found[place].images, whole.images[..., :size, :size])


@pytest.mark.parametrize("last", [True, False])
def test_pictures_are_written_to_their_places_in_the_batch(data: Path, last: bool) -> None:
    over = {"augment.policy": "trivial", "augment.erase": 0.5, "model.channels_last": last}
    splits = opened(settings(data, **over))
    for loader in (splits.train, splits.val):
        placed: list[tuple[int, bool]] = []

        def make(content: Any, sample: int, draw: int, out: torch.Tensor, real: Any = loader.make) -> torch.Tensor:
            made: torch.Tensor = real(content, sample, draw, out)
            placed.append((out.data_ptr(), made is out))  # noqa: B023
            return made

        batch = next(dataclasses.replace(loader, make=make).batches([(0, np.arange(8))]))
        assert sorted(placed) == [(picture.data_ptr(), True) for picture in batch.images]


def test_an_empty_batch_of_a_ragged_end(data: Path) -> None:
    loader = opened(settings(data)).train
    batch = next(loader.batches([(0, np.empty(0, np.int64))]))
    assert batch.images.shape == (0, 3, 16, 16)
    assert batch.labels.shape == (0,)


class Storage:
    """Storage that answers reads only together, so many at once; the sizes of all reads, and the most at once."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.at_once, self.most = threading.Barrier(1), 0
        self._now, self._lock, self._read = 0, threading.Lock(), shards_module._read_exactly

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        with self._lock:
            self.sizes.append(size)
            self._now += 1
            self.most = max(self.most, self._now)
        self.at_once.wait(patience.IDLE)
        with self._lock:
            self._now -= 1
        return self._read(descriptor, size, offset)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Storage:
    found = Storage()
    monkeypatch.setattr(shards_module, "_read_exactly", found.read)
    return found


@pytest.mark.parametrize(("readahead", "at_once"), [(0, 2), (2, 16)])
def test_readahead_asks_slow_storage_for_many_pictures_at_once(
    data: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch, readahead: int, at_once: int
) -> None:
    """Without it the two threads that decode read, each one picture after the other; with it 16 others do."""
    monkeypatch.setattr(shards_module, "MAX_GAP", -1)  # these pictures are so small that one read would fetch all
    storage.at_once = threading.Barrier(at_once)
    loader = opened(settings(data, **{"data.workers": 2, "data.readahead": readahead})).train
    assert len(list(loader.batches(jobs(20)))) == 20
    assert len(storage.sizes) == 20 * 8
    assert storage.most == at_once


def test_reading_in_order_takes_few_large_reads(data: Path, storage: Storage) -> None:
    loader = opened(settings(data)).val
    ids = np.arange(1000)
    batches = list(loader.batches((0, part) for part in np.split(ids, 10)))
    assert sum(len(batch.ids) for batch in batches) == 1000
    assert len(storage.sizes) <= 12
    assert max(storage.sizes) <= shards_module.MAX_READ


def test_reads_are_as_large_as_allowed_and_no_larger(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = open_split(data, "val")
    ids = np.random.Generator(np.random.Philox(key=[3, 4])).permutation(1003)
    one_by_one = [shards.read(int(i)) for i in ids]
    monkeypatch.setattr(shards_module, "MAX_READ", 9000)
    groups = shards.neighbours(ids)
    assert sorted(np.concatenate(groups).tolist()) == list(range(1003))
    assert 20 < len(groups) < 1003
    assert shards.read_many(ids) == one_by_one
    assert shards.read_many(np.array([5, 5, 4])) == [shards.read(5), shards.read(5), shards.read(4)]
    monkeypatch.setattr(shards_module, "MAX_GAP", 0)
    assert len(shards.neighbours(np.array([1, 3, 5]))) == 3
    assert shards.neighbours(np.empty(0, np.int64)) == []


def test_threads_end_with_the_batches(data: Path) -> None:
    before = set(threading.enumerate())
    batches = opened(settings(data)).train.batches(jobs(50))
    next(batches)
    own = set(threading.enumerate()) - before
    assert own
    batches.close()  # type: ignore[attr-defined]
    assert not own & set(threading.enumerate())


def test_threads_of_the_loader_start_none_of_torchs() -> None:
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found: list[int] = []

        def make(content: Any, sample: int, draw: int, out: torch.Tensor) -> torch.Tensor:
            found.append(torch.get_num_threads())
            return torch.zeros(3, 4, 4, dtype=torch.uint8)

        list(Loader(list, make, np.zeros(9, np.int64), 4, workers=3).batches([(0, np.arange(9))]))
        assert found == [1] * 9
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(usual)


def test_ahead_draws_so_many_and_no_more() -> None:
    drawn: list[int] = []

    def items() -> Any:
        for number in range(6):
            drawn.append(number)
            yield number

    found = read_ahead(items(), 2)
    assert next(found) == 0
    assert drawn == [0, 1, 2]
    assert list(found) == [1, 2, 3, 4, 5]


def with_content(shards: Shards, content: bytes) -> Loader:
    loader = opened(settings(shards.root)).train
    return Loader(lambda ids: [content] * len(ids), loader.make, loader.labels, 16)


def test_a_picture_that_cannot_be_decoded_is_named_with_its_shard(data: Path) -> None:
    loader = with_content(open_split(data, "train"), b"no picture")
    named = r"sample 17 of train \(.*train/shard-00000.tar; train/class\d/\d+.jpg of the source\)"
    with pytest.raises(UserError, match=f"{named}: an image cannot be decoded"):
        next(loader.batches([(0, np.array([17]))]))


# Datasets of the user's own, as `data.dataset` names them


class Own:
    """Ten pictures of three kinds."""

    classes = ("red", "green", "blue")

    def __init__(self, split: str) -> None:
        self.split = split

    def __len__(self) -> int:
        return 10 if self.split == "train" else 4

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        pixels = np.zeros((20, 24, 3), np.uint8)
        pixels[..., index % 3] = 200
        image = Image.fromarray(pixels)
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        forms = [image, torch.from_numpy(pixels).permute(2, 0, 1), buffer.getvalue()]
        return forms[(index + (self.split == "val")) % 3], np.int64(index % 3)


class Broken(Own):
    item: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.item is None:
            raise KeyError("no such file")
        return self.item


def broken(**over: Any) -> type[Own]:
    return type("Odd", (Broken,), over)


nothing = broken()
no_pair = broken(item=7)
wrong_label = broken(item=(torch.zeros(3, 8, 8, dtype=torch.uint8), 3))
wrong_picture = broken(item=(torch.zeros(3, 8, 8), 1))
wrong_mode = broken(item=(Image.fromarray(np.ones((8, 8), np.float32)), 1))
deep = broken(item=(Image.fromarray(np.full((8, 8), 0x8001, np.uint16)), 1))
no_classes = broken(classes=None, item=(torch.zeros(3, 8, 8, dtype=torch.uint8), 4))
empty = broken(__len__=lambda self: 0)


def no_split() -> None:
    """Takes no split."""


@pytest.mark.parametrize("decoder", ["native", "torchvision", "pillow"])
def test_a_dataset_of_the_users_own(decoder: str) -> None:
    name = f"{__name__}:Own"
    splits = opened(settings("", **{"data.dataset": name, "data.decoder": decoder}))
    assert (splits.classes, splits.class_names) == (3, ["red", "green", "blue"])
    assert (len(splits.train.labels), len(splits.val.labels)) == (10, 4)
    for loader, count in ((splits.train, 10), (splits.val, 4)):
        batch = next(loader.batches([(0, np.arange(count)[::-1])]))
        assert batch.labels.tolist() == [index % 3 for index in range(count)][::-1]
        assert torch.equal(batch.images.float().mean((2, 3)).argmax(1), batch.labels)
        assert batch.images.amax().item() == 200


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", r"sample 2 of train cannot be read \(KeyError: 'no such file'\)"),
        ("no_pair", r"sample 2 of train is int; it must be a pair \(image, label\)"),
        ("wrong_label", r"sample 2 of train has label 3; it must be a whole number from 0 to 2"),
        ("wrong_picture", r"sample 2 of train is Tensor of torch.float32 .* it must be a PIL image"),
        ("wrong_mode", r"sample 2 of train is an image of mode F .*no value is known to be white"),
        ("no_classes", r"model.num_classes = 0: .* set model.num_classes"),
        ("empty", r"its split 'train' is empty"),
        ("no_split", r"called with split='train', it failed \(TypeError"),
        ("absent", r"cannot be imported .* PYTHONPATH"),
        ("NO_FUNCTION", r"called with split='train', it failed"),
    ],
)
def test_a_dataset_that_does_not_fit_is_refused_in_words(name: str, words: str) -> None:
    def read() -> None:
        splits = opened(settings("", **{"data.dataset": f"{__name__}:{name}"}))
        next(splits.train.batches([(0, np.array([2]))]))

    with pytest.raises(UserError, match=words):
        read()


def test_a_picture_of_16_bits_of_the_users_own_is_not_white() -> None:
    pixels = user.open_dataset(f"{__name__}:deep", "train", 3).read(np.array([1]))[0]
    assert pixels.shape == (3, 8, 8)
    assert bool((pixels == 0x80).all())


def test_classes_can_be_counted_by_the_settings() -> None:
    dataset = user.open_dataset(f"{__name__}:no_classes", "train", 7)
    assert len(dataset.class_names) == 7
    assert dataset.read(np.array([1]))[0].shape == (3, 8, 8)
    with pytest.raises(UserError, match=r"must be `package\.module:function`"):
        user.open_dataset("nowhere", "train", 7)
    wrong = {"data.dataset": f"{__name__}:Own", "model.num_classes": 5}
    with pytest.raises(UserError, match=r"model.num_classes = 5: the data in .*:Own has 3 classes"):
        opened(settings("", **wrong))
