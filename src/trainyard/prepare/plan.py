"""Which sample goes where: a pure function of the catalogue, the shard size and the seed.

The samples are shuffled once, so that even reading shards from first to last gives a random order. Shuffling single
samples would need one request for each. Instead, runs of neighbours move together, small enough that every shard draws
from at least PIECES places of the archive, and the samples within a shard are shuffled one by one.

The archive's directory gives all sizes, so each sample's position in its shard is known before the first byte arrives:
samples are written in any order, and the bytes are the same for any parallelism.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.prepare import converting, decoding, rewriting
from trainyard.prepare.catalogue import Catalogue
from trainyard.prepare.settings import Preparation
from trainyard.shards.manifest import FORMAT, SPLITS
from trainyard.shards.tar_member import BLOCK, OVERHEAD, TAR_END

PIECES = 256


@dataclass(frozen=True)
class ShardPlan:
    """The plan of one shard: its samples in order, and the offset of each one's header in the tar."""

    split: str
    number: int
    first_id: int
    members: NDArray[Any]
    positions: NDArray[np.uint64]
    bytes: int

    @property
    def stem(self) -> str:
        """Path below the prepared folder, without an ending."""
        return f"{self.split}/shard-{self.number:05d}"


@dataclass(frozen=True)
class DatasetPlan:
    """All shards, and the key that tells this plan from any other."""

    key: str
    shards: list[ShardPlan]

    def of(self, split: str) -> list[ShardPlan]:
        """Return a split's shards in order."""
        return [shard for shard in self.shards if shard.split == split]


def make_plan(catalogue: Catalogue, wanted: Mapping[str, Any]) -> DatasetPlan:
    """Plan every shard of every split; `wanted` holds the settings that determine the result."""
    text = json.dumps([FORMAT, PIECES, wanted, catalogue.fingerprint], sort_keys=True)
    shards: list[ShardPlan] = []
    for split in SPLITS:
        shards += _plan_split(split, catalogue.splits[split], wanted["shard_mb"] * 1_000_000, wanted["seed"])
    return DatasetPlan(hashlib.sha256(text.encode()).hexdigest(), shards)


def meaning(config: Preparation) -> dict[str, Any]:
    """Return the settings that determine the bytes of the result, so not the number of workers or `decode`."""
    chosen = config.model_dump(mode="json", include={"layout", "shard_mb", "seed", "skip"})
    # Only where they are set: folders that were prepared before these keys existed stay as they are
    if config.layout == "csv":
        chosen["csv"] = config.csv.model_dump(mode="json")
    if config.layout == "folders":
        chosen |= {"val_fraction": config.val_fraction, "drawn": "of each class"}
    chosen |= {key: getattr(config, key) for key in ("class_file", "class_names") if getattr(config, key)}
    if config.convert != "none":
        chosen |= {"convert": config.convert, "converter": converting.converter()}
    if config.reencode:
        chosen |= {"reencode": config.reencode.model_dump(mode="json"), "encoder": decoding.encoder()}
    if config.seekable and (rewriter := rewriting.rewriter()):
        chosen["seekable"] = rewriter
    return {**chosen, "source": config.source.describe()}


def _plan_split(split: str, members: NDArray[Any], shard_bytes: int, seed: int) -> list[ShardPlan]:
    """Shuffle neighbours together, cut into shards of even size, and shuffle within each."""
    number = SPLITS.index(split)
    order = _shuffle_blocks(_cost(members), shard_bytes // PIECES, _generator(seed, number, 0))
    costs = _cost(members[order])
    before = np.cumsum(costs) - costs
    total = int(costs.sum())
    count = max(1, -(-total // shard_bytes))
    # An image larger than a shard would leave an empty neighbour: equal borders count once
    borders = np.unique(np.searchsorted(before, np.arange(count + 1) * total // count))
    plans = []
    for shard, (start, stop) in enumerate(itertools.pairwise(borders)):
        chosen = members[_generator(seed, number, shard + 1).permutation(order[start:stop])]
        sizes = _cost(chosen)
        positions = (np.cumsum(sizes) - sizes).astype(np.uint64)
        plans.append(ShardPlan(split, shard, int(start), chosen, positions, int(sizes.sum()) + TAR_END))
    return plans


def _shuffle_blocks(costs: NDArray[np.int64], block_bytes: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Order the samples by shuffled blocks of neighbours."""
    block = (np.cumsum(costs) - costs) // max(block_bytes, 1)
    _, block = np.unique(block, return_inverse=True)
    rank = generator.permutation(int(block[-1]) + 1)
    return np.argsort(rank[block], kind="stable")


def _cost(members: NDArray[Any]) -> NDArray[np.int64]:
    """Bytes that each sample takes in a tar."""
    return OVERHEAD + -(-members["size"].astype(np.int64) // BLOCK) * BLOCK


def _generator(seed: int, split: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, split << 32 | stream]))
