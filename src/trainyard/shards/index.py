"""The index beside each shard: where every sample's image lies, its label, and its CRC-32."""

import hashlib
import io
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainyard.core.exits import UserError
from trainyard.core.files import drop_cached_file
from trainyard.core.storage import storage
from trainyard.shards import manifest as manifests

INDEX_DTYPE: Final = np.dtype([("offset", "<u8"), ("size", "<u4"), ("label", "<u4"), ("crc32", "<u4")])


def load_index(root: Path, entry: manifests.ShardEntry, classes: int) -> NDArray[Any]:
    """Read one index and check it against the manifest, since a changed label would go unnoticed in training.

    Raises UserError and StorageError.
    """
    path = root / entry.index
    try:
        for _ in range(2):  # what a second look shows too is so
            data = storage.read_bytes(path, listed=True)
            # First of all: numpy's own errors on a damaged file are of many kinds
            if sound := hashlib.sha256(data).hexdigest() == entry.index_sha256:
                break
            drop_cached_file(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; {manifests.REMEDY}") from None
    if not sound:
        raise UserError(f"{path} does not have its SHA-256; {manifests.REPAIR.format(root)}")
    index = np.load(io.BytesIO(data), allow_pickle=False)
    if index.dtype != INDEX_DTYPE or len(index) != entry.samples or int(index["label"].max(initial=0)) >= classes:
        raise UserError(f"{path} does not fit the manifest; {manifests.REMEDY}")
    return index  # type: ignore[no-any-return]
