"""The layouts by their names in the settings."""

from trainyard.prepare.layouts.base import Layout
from trainyard.prepare.layouts.folders import Folders
from trainyard.prepare.layouts.imagefolder import ImageFolder
from trainyard.prepare.layouts.imagenet import ImageNet
from trainyard.prepare.layouts.table import TableLayout
from trainyard.prepare.settings import Preparation


def layout_of(config: Preparation) -> Layout:
    """Make the layout that the settings name."""
    if config.layout == "csv":
        return TableLayout(config.csv, config.seed)
    if config.layout == "folders":
        return Folders(config.val_fraction, config.seed)
    return ImageNet() if config.layout == "imagenet" else ImageFolder()
