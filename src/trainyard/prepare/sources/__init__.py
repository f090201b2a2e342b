"""Sources of archives: each reads any range of bytes of one object that must not change."""

from pathlib import Path

from trainyard.prepare.settings import SourceSettings
from trainyard.prepare.sources.base import Source, Traffic
from trainyard.prepare.sources.path import PathSource
from trainyard.prepare.sources.retry import Patience
from trainyard.prepare.sources.secrets import DATASET, Signed, signed_address


def open_source(
    config: SourceSettings, traffic: Traffic, patience: Patience | None = None, signed: Signed = DATASET
) -> Source:
    """Open the object that the settings name, `signed` as it says where they may not hold that; raises UserError."""
    if config.kind == "http":
        # Each imported where it is needed: an archive on a volume needs no client of the network
        from trainyard.prepare.sources.http import HttpSource

        return HttpSource(config.url, traffic, locate=lambda: signed_address(config.url, signed), patience=patience)
    if config.kind == "kaggle":
        from trainyard.prepare.sources.kaggle import open_competition

        return open_competition(config.competition, traffic, patience)
    if config.kind == "kaggle-dataset":
        from trainyard.prepare.sources.kaggle import open_dataset

        return open_dataset(config.dataset, traffic, patience)
    if config.kind == "objectstore":
        from trainyard.prepare.sources.objectstore import ObjectSource

        return ObjectSource(
            config.url, traffic, endpoint=config.endpoint, anonymous=config.anonymous, patience=patience
        )
    return PathSource(Path(config.path), traffic)
