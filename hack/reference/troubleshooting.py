"""Remedies of docs/troubleshooting.md: trainyard why's answer to each message that the page lists."""

import re
from pathlib import Path

from trainyard.cluster import remedies

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
ROW = re.compile(r"^\| `(?P<said>.+)` \| .+ \| (?P<tried>.+) \|$", re.M)  # what is said, what to do, tried
LISTED = (*remedies.ADMISSION, *remedies.SCHEDULING)  # every remedy of these has a row


def write() -> str:
    """Return the page with the remedies of today. Raises ValueError where a message or a remedy has none."""
    text = PAGE.read_text()
    rows = {row["said"]: remedies.remedy(row["said"].replace("\\|", "|")) for row in ROW.finditer(text)}
    if unknown := [said for said, answer in rows.items() if not answer]:
        raise ValueError(f"{PAGE.name}: remedies.py has no remedy for {unknown}: correct or remove the rows")
    if missing := [answer for _, answer in LISTED if answer not in rows.values()]:
        raise ValueError(f"{PAGE.name}: add a row with a message that these answer: {missing}")
    return ROW.sub(lambda row: f"| `{row['said']}` | {rows[row['said']]} | {row['tried']} |", text)
