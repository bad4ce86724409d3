#!/usr/bin/env python3
"""Makes the links of the site lead to files of the repository as well, and checks all of them.

    finish_site.py ROOT HTML

Doxygen takes links from page to page; one to a header goes to its source page, one to another file to a copy in HTML/files.
Exits 1 with the list if a link leads nowhere, a page is cut, or a Markdown page cannot be reached from the front page.
"""

import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote

LINK = re.compile(r'(href|src)="([^"]+)"')
NAME = re.compile(r'(?:id|name)="([^"]+)"')


def page_of(markdown):
    """What Doxygen calls the page of a Markdown file."""
    return "md_" + re.sub(r"\W", "_", str(markdown.with_suffix(""))) + ".html"


def finish(root, html):
    readme = Path("README.md")
    markdown = [
        path.relative_to(root) for folder in ("docs", "benchmarks") for path in sorted((root / folder).rglob("*.md"))
    ] + [Path("CHANGELOG.md"), Path("CONTRIBUTING.md"), Path("SECURITY.md")]
    pages = {path: page_of(path) for path in markdown if (html / page_of(path)).is_file()}
    pages[readme] = "index.html"
    sources = [page.name for page in html.glob("*_source.html")]  # of several with one name with the folder, too

    def target_of(file):
        """Where a file or folder of the repository is in the site, or None."""
        if file in pages:
            return pages[file]
        if (root / file).is_dir():
            return target_of(file / "README.md")
        if not (root / file).is_file():
            return None
        name = re.sub(r"_", "__", file.name).replace(".", "_8") + "_source.html"
        found = [source for source in sources if source == name or source.endswith("_2" + name)]
        folder = re.sub(r"_", "__", file.parent.name) + "_2" + name
        found = [source for source in found if source.endswith(folder)] or found
        if len(found) == 1:
            return found[0]
        copy = html / "files" / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / file, copy)
        return f"files/{file}"

    for path, page in pages.items():
        text = (html / page).read_text(encoding="utf-8")

        def mend(match, path=path):
            kind, link = match.groups()
            place, hash_, part = unquote(link).partition("#")
            if re.match(r"[a-z]+:|//", link) or not place or (html / place).exists():
                return match.group()
            file = (root / path.parent / place).resolve()
            target = target_of(file.relative_to(root)) if root in file.parents else None
            return match.group() if target is None else f'{kind}="{target}{hash_}{part}"'

        (html / page).write_text(LINK.sub(mend, text), encoding="utf-8")

    texts = {page.name: page.read_text(encoding="utf-8", errors="replace") for page in html.glob("*.html")}
    links = {name: [unquote(link) for _, link in LINK.findall(text)] for name, text in texts.items()}
    names = {name: set(NAME.findall(text)) for name, text in texts.items()}
    # A link whose text is broken between two lines is not understood, and nor is the rest of its page.
    wrong = [f"{name}: the page is cut: a link goes over two lines" for name in pages.values() if "@ref" in texts[name]]
    for name in links:
        for link in links[name]:
            place, _, part = link.partition("#")
            if re.match(r"[a-z]+:|//", link) or "$relpath" in link:
                continue
            if place and not (html / place).exists():
                wrong.append(f"{name}: {link} leads nowhere")
            elif part and name in pages.values() and part not in names.get(place or name, {part}):
                wrong.append(f"{name}: there is no {link}")

    reached, open_ = {"index.html"}, ["index.html"]
    while open_:
        for link in links[open_.pop()]:
            page = link.partition("#")[0]
            if page in pages.values() and page not in reached:
                reached.add(page)
                open_.append(page)
    wrong += [f"{path} cannot be reached from the front page" for path, page in pages.items() if page not in reached]
    return sorted(set(wrong)), len(pages)


def main(arguments):
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    wrong, number = finish(*(Path(argument).resolve() for argument in arguments))
    print("\n".join(wrong) if wrong else f"site: {number} pages, and no link that leads nowhere")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
