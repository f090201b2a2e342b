"""Small images within our pages."""

import base64
import html
import io
from collections.abc import Sequence

from trainyard.data import limits
from trainyard.data.plain import to_rgb

LARGEST = 160  # pixels of the longer side
STYLE = (
    "<style>.shots{display:grid;gap:12px;grid-template-columns:repeat(auto-fill,minmax(150px,1fr))}"
    ".shots figure{margin:0;min-width:0}.shots img{width:100%;height:150px;object-fit:contain;background:var(--bg);"
    "border-radius:8px;display:block}.shots figcaption{font-size:12px;line-height:1.35;margin-top:4px;"
    "overflow-wrap:anywhere}.shots span{color:var(--soft);display:block}</style>"
)


def figure(content: bytes, title: str, remarks: Sequence[str]) -> str:
    """Return an image with what it is below it."""
    lines = "".join(f"<span>{html.escape(remark)}</span>" for remark in remarks)
    return (
        f'<figure><img src="{thumbnail(content)}" alt="{html.escape(" ".join(remarks[-1:]), quote=True)}" '
        f'loading="lazy"><figcaption><b>{html.escape(title)}</b>{lines}</figcaption></figure>'
    )


def shots(figures: Sequence[str]) -> str:
    """Figures side by side."""
    return f'<div class="shots">{"".join(figures)}</div>'


def thumbnail(content: bytes) -> str:
    """Return an encoded image as a data URI, no larger than LARGEST; raises what Pillow raises, and ValueError."""
    with limits.read_header(content) as image:
        image.draft("RGB", (2 * LARGEST, 2 * LARGEST))
        small = to_rgb(image)
    small.thumbnail((LARGEST, LARGEST))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
