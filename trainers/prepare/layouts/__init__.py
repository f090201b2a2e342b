"""The layouts by their names in the settings."""

from trainers.prepare.layouts.base import Layout
from trainers.prepare.layouts.folders import Folders
from trainers.prepare.layouts.imagefolder import ImageFolder
from trainers.prepare.layouts.imagenet import ImageNet
from trainers.prepare.layouts.table import TableLayout
from trainers.prepare.settings import Config


def layout_of(config: Config) -> Layout:
    """Make the layout that the settings name."""
    if config.layout == "csv":
        return TableLayout(config.csv, config.seed)
    if config.layout == "folders":
        return Folders(config.val_fraction, config.seed)
    return ImageNet() if config.layout == "imagenet" else ImageFolder()
