"""What mkdocs calls while it builds the site (hooks in mkdocs.yml)."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from hack.site.pages import HOME, MOVED

SOURCES = {to: path for path, to in MOVED.items()} | {"index.md": HOME}
GENERATED = ("docs/reference/", "charts/")


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the link *edit* lead to the file that people edit; generated pages and pages that show a file have none."""
    source = SOURCES.get(page.file.src_uri, page.file.src_uri)
    shows_a_file = "search" in page.meta  # the front matter of hack.site.pages.HIDDEN
    editable = config.repo_url and not shows_a_file and not source.startswith(GENERATED)
    page.edit_url = f"{str(config.repo_url).rstrip('/')}/{config.edit_uri}{source}" if editable else None
    return markdown
