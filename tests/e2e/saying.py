"""Wait for words of trainyard why."""

from tests.e2e.cluster import until, why


def says(release: str, namespace: str, *words: str) -> str:
    """Wait until trainyard why says all words, and return what it says."""
    seen = [""]

    def look() -> str:
        seen[0] = why(release, namespace)
        return seen[0] if all(word in seen[0] for word in words) else ""

    return until(lambda: f"trainyard why says {words}; it says:\n{seen[0]}", look, pause=1.0)
