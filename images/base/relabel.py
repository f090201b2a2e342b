"""relabel.py VERSION: let the installed torch call itself VERSION, a pre-release with a local part as NVIDIA's does.

pip then replaces it for any requirement such as `torch>=2.15`, so a careless install shows here and not first on the
real image.
"""

import importlib.metadata
import re
import shutil
import sys
from pathlib import Path

version = sys.argv[1]
distribution = importlib.metadata.distribution("torch")
site = Path(str(distribution.locate_file("")))
old = site / f"torch-{distribution.version}.dist-info"
new = site / f"torch-{version}.dist-info"

metadata = old / "METADATA"
metadata.write_text(re.sub(r"(?m)^Version: .*$", f"Version: {version}", metadata.read_text(), count=1))
record = old / "RECORD"
record.write_text(record.read_text().replace(f"{old.name}/", f"{new.name}/"))
shutil.move(old, new)  # not a rename: a layer below holds the folder
module = site / "torch" / "version.py"
module.write_text(re.sub(r"(?m)^__version__ = .*$", f"__version__ = {version!r}", module.read_text(), count=1))
