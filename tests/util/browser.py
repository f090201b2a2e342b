"""A page as Chromium shows it, in a window as wide as a phone's or a desktop's."""

import html
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CHROMIUM = ["chromium", "--no-sandbox", "--headless", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
MEASURE = """<!doctype html><style>body{{margin:0}}iframe{{border:0;display:block}}</style>
<iframe width="{width}" height="2600" srcdoc="{page}"></iframe><script>addEventListener("load", () => {{
  const inner = document.querySelector("iframe"), root = inner.contentDocument.documentElement;
  const cards = inner.contentWindow.getComputedStyle(root.querySelector(".cards")).gridTemplateColumns;
  const drawn = [...root.querySelectorAll("img")].filter(image => image.complete && image.naturalWidth);
  document.title = [root.scrollWidth, inner.contentWindow.innerWidth, root.querySelectorAll("svg").length,
                    cards.split(" ").length, drawn.length].join(" ");
}})</script>"""


class Shown(NamedTuple):
    """What a page takes, in pixels, and has; `shot` is its picture in grey, (height, width)."""

    scroll: int
    inner: int
    charts: int
    columns: int
    images: int
    shot: NDArray[Any]


def show(page: str, work: Path, width: int, dark: bool) -> Shown:
    """Show a page, which has `.cards`; the screenshot is left as page.png in the folder `work`."""
    frame, picture = work / "frame.html", work / "page.png"  # no window is as narrow as a phone; a frame is
    frame.write_text(MEASURE.format(width=width, page=html.escape(page)))
    command = [
        *CHROMIUM, f"--user-data-dir={work / 'profile'}", f"--window-size={max(width, 600)},2600",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--screenshot={picture}", "--dump-dom",
        frame.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"<title>(\d+) (\d+) (\d+) (\d+) (\d+)</title>", done.stdout)
    assert found, done.stdout[:2000] + done.stderr
    shot = np.asarray(Image.open(picture).convert("L"), dtype=float)[:, :width]
    return Shown(*map(int, found.groups()), shot)
