"""Turn the files of the repository into pages of the site (`make docs`).

CONTRIBUTING.md, CHANGELOG.md and SECURITY.md become pages. The site does not hold source files, so
links to them become their paths.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
_PAGES = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
_SOURCE = re.compile(r"\[([^\]]+)\]\((?:\.\./)*((?:paceline|papers|tests|scripts)/[^)#]*)\)")

_BLOCK_TAG_OR_OPTION = re.compile(r"<pre.*?</pre>|<[^>]*>|(?<![\w-])--[a-z][\w-]*", re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that stand at the root of the repository."""
    for page, source in _PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, name in {**_PAGES, "index.md": "README.md"}.items():
            text = text.replace(f"]({name}", f"]({other}")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace a link to a source file by its path."""
    return _SOURCE.sub(
        lambda link: f"`{link[2]}`" if link[1].startswith("`") else f"{link[1]} (`{link[2]}`)",
        markdown,
    )


def on_page_content(html: str, **_: Any) -> str:
    """Keep a command-line option on one line: browsers break lines after its hyphens."""
    return _BLOCK_TAG_OR_OPTION.sub(
        lambda found: f'<span class="option">{found[0]}</span>' if found[0][0] == "-" else found[0],
        html,
    )
