"""The documentation site: `sphinx-build -W docs build/site` writes it; CONTRIBUTING.md says more.

Pages are the Markdown files of this folder. The reference is made from docstrings, in the groups of surface.md; the
tutorials of learn/ are programs that run while the site is built, and whose output becomes a part of the page.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

HERE = Path(__file__).resolve().parent
# `python -m sphinx` searches the clone first. Unless it is compiled in place, the installed package is the one to read.
if PathFinder.find_spec("dynet_cy.core.threads", [str(HERE.parent / "dynet_cy" / "core")]) is None:
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != HERE.parent]

import dynet_cy  # noqa: E402

project = "dynet_cy"
author = "The dynet_cy developers"
project_copyright = "The dynet_cy developers, Apache-2.0"
version = release = dynet_cy.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["learn"]  # the tutorials are pages of tutorials/, where the gallery writes them
source_suffix = [".rst", ".md"]
default_role = "py:obj"  # in docstrings: a link where there is something to link to, else code
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "dollarmath"]
suppress_warnings = ["config.cache"]  # of functions among the gallery's settings

autodoc_member_order = "bysource"


def public_classes() -> Iterator[tuple[type, str]]:
    """The public classes, and where the reference has them."""
    modules = [dynet_cy, *filter(inspect.ismodule, (getattr(dynet_cy, name) for name in dynet_cy.__all__))]
    for module in modules:
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type):
                yield value, f"{module.__name__}.{name}"


def shared_bases(classes: Collection[type]) -> dict[type, str]:
    """The bases of several public classes that are not public themselves, but have members to document."""
    users = Counter(base for value in classes for base in value.__mro__[1:] if base not in classes)
    return {
        base: f"{base.__module__}.{base.__qualname__}"
        for base, number in users.items()
        if number > 2
        and base.__module__.startswith("dynet_cy.")
        and any(not name.startswith("_") and getattr(value, "__doc__", None) for name, value in vars(base).items())
    }


CLASSES = dict(public_classes())
SHARED = shared_bases(CLASSES)
CLASSES.update(SHARED)
# What a class has from one of these stands there, and is not repeated.
ELSEWHERE = {*CLASSES, Future, *(value for value in vars(builtins).values() if isinstance(value, type))}
autodoc_default_options = {
    "members": True,
    "inherited-members": ", ".join(sorted(value.__name__ for value in ELSEWHERE)),
}
autodoc_typehints = "none"  # they are in the signature
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"dynet_cy {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


class ByNumber:
    """Tutorials in the order of their numbers."""

    def __init__(self, folder: str) -> None:
        pass

    def __call__(self, path: str) -> int:
        return int(Path(path).name.partition("_")[0])


sphinx_gallery_conf = {
    "examples_dirs": ["learn"],
    "gallery_dirs": ["tutorials"],
    "filename_pattern": r"/\d+_",
    "within_subsection_order": ByNumber,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "reference_url": {},
    "copyfile_regex": r".*\.svg",
    "image_scrapers": ("matplotlib",),
    "matplotlib_animations": False,
    "capture_repr": (),
}

# ---- the reference: a page for each group of surface.md --------------------------------------------------------------

DIRECTIVES = {"class": "autoclass", "exception": "autoexception", "function": "autofunction", "data": "autodata"}


def kind(name: str) -> str:
    """The directive for a public name."""
    value = getattr(dynet_cy, name)
    if inspect.ismodule(value):
        return "automodule"
    if isinstance(value, type):
        return DIRECTIVES["exception" if issubclass(value, BaseException) else "class"]
    return DIRECTIVES["function" if callable(value) else "data"]


def block(name: str) -> str:
    """The documentation of a public name.  A module's page leaves out what it has from another module, which documents
    it."""
    value = getattr(dynet_cy, name)
    options = ""
    if inspect.ismodule(value):
        home = value.__name__
        others = [n for n in value.__all__ if not getattr(getattr(value, n), "__module__", home).startswith(home)]
        options = f"   :exclude-members: {', '.join(others)}\n" if others else ""
    return f"```{{eval-rst}}\n.. {kind(name)}:: dynet_cy.{name}\n{options}```\n"


# Groups of functions of one kind are sections of one page; they are named as in surface.md.
KINDS = {
    "Losses": ["softmax", "losses", "functions.losses", "functions.sequences"],
    "Products": ["linalg", "products", "functions.contraction"],
    "Sums, means, norms": ["reduce", "functions.reductions", "functions.norms"],
    "Normalization": ["norm"],
    "Shapes, selection, sorting": ["shape", "select", "functions.shapes"],
    "Convolution and pooling": ["conv", "functions.convolutions"],
    "Random numbers, dropout, choices": ["random", "functions.choices"],
}


class Group(NamedTuple):
    """A group of public names: its title and key in surface.md, the guide that the text there links to, the names."""

    title: str
    key: str
    guide: str
    names: list[str]


def groups() -> list[Group]:
    """The public names under the bold words of surface.md, each once."""
    found = []
    seen: set[str] = set()
    for paragraph in (HERE / "surface.md").read_text(encoding="utf-8").split("\n\n"):
        title = re.match(r"\*\*(.+?)\*\*(?: \(`([\w.]+)`\))?(?= \(|[:,])", paragraph)
        if title is None:
            continue
        named = dict.fromkeys(re.findall(r"`(\w+)`", paragraph))
        names = [name for name in named if name in dynet_cy.__all__ and name not in seen]
        seen.update(names)
        guide = re.search(r"\]\(([\w-]+\.md)", paragraph)
        if names:
            found.append(Group(title[1], title[2] or "", guide[1] if guide else "", names))
    rest = [name for name in dynet_cy.__all__ if name not in seen and not name.startswith("__")]
    if rest:
        raise ValueError(f"surface.md does not name {', '.join(rest)}")
    return found


def bases_of(name: str) -> Iterator[str]:
    """The entries of shared bases of a public class, or of a module's classes, that no page has yet."""
    value = getattr(dynet_cy, name)
    members = [getattr(value, n) for n in value.__all__] if inspect.ismodule(value) else [value]
    for base in [base for member in members if isinstance(member, type) for base in member.__mro__]:
        if base in SHARED:
            yield f"```{{eval-rst}}\n.. autoclass:: {SHARED.pop(base)}\n```\n"


def page_of(title: str, parts: list[Group]) -> str:
    """A page of the reference. Its title is marked, as guides have such titles too."""
    text = f"# {title} (API)\n"
    for guide in dict.fromkeys(part.guide for part in parts if part.guide):
        text += f"\n[Guide](../{guide})\n"
    for part in parts:
        heading = f"\n## {part.title}\n" if len(parts) > 1 else ""
        entries = [block(name) for name in part.names]
        entries += [base for name in part.names for base in bases_of(name)]
        text += heading + "".join(f"\n{entry}" for entry in entries)
    return text


# Modules whose names are not among those of the package, and what their pages are called.
MODULES = {
    "commandline": "Command lines",
    "serving.web": "Web applications",
    "profiling": "Profiles",
    "loggers": "Loggers and training curves",
    "config": "Settings",
}


def write_reference(folder: Path) -> None:
    """Write the pages of the reference, where they have changed."""
    folder.mkdir(exist_ok=True)
    kinds = {key: title for title, keys in KINDS.items() for key in keys}
    parts: dict[str, list[Group]] = {}
    for group in groups():
        parts.setdefault(kinds.pop(group.key, group.title), []).append(group)
    if kinds:
        raise ValueError(f"surface.md has no {', '.join(kinds)}")
    pages = {f"{re.sub(r'[^a-z0-9]+', '-', title.lower())}.md": page_of(title, of) for title, of in parts.items()}
    for name, title in MODULES.items():
        pages[f"{name}.md"] = f"# {title} (API)\n\n```{{eval-rst}}\n.. automodule:: dynet_cy.{name}\n```\n"
    listed = "\n".join(pages)
    pages["index.md"] = (
        "# Reference\n\nEvery public name, from its docstring. All of them are in `dynet_cy`, which programs import "
        f"as `dy`.\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    )
    for old in folder.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        page = folder / name
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


write_reference(HERE / "reference")

# ---- index.md lists the pages in four parts; what lies outside of this folder becomes pages too ----------------------

OUTSIDE = {
    "../benchmarks/RESULTS.md": "project/results.md",
    "../examples/README.md": "project/examples.md",
    "../CHANGELOG.md": "project/changelog.md",
    "../CONTRIBUTING.md": "project/contributing.md",
}


def write_outside() -> None:
    """Copy the Markdown files outside of this folder into it, with links that lead to the same places, or none."""
    (HERE / "project").mkdir(exist_ok=True)
    known = {(HERE / source).resolve(): target for source, target in OUTSIDE.items()}
    for path, target in known.items():

        def moved(link: re.Match[str], folder: Path = path.parent) -> str:
            words, goal, anchor = link[1], (folder / link[2]).resolve(), link[3] or ""
            if goal.suffix == ".svg":
                return f"[{words}](../{goal.relative_to(HERE).as_posix()})"
            if goal.suffix == ".md" and goal.is_relative_to(HERE):
                return f"[{words}](../{goal.relative_to(HERE).as_posix()}{anchor})"
            return f"[{words}](../{known[goal]}{anchor})" if goal in known else words

        text = re.sub(r"\[([^]]+)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)", moved, path.read_text(encoding="utf-8"))
        (HERE / target).write_text(text, encoding="utf-8")


write_outside()


def write_examples() -> None:
    """A page for each example: what it is, what it prints, how its training goes, and the program."""
    folder, listed = HERE.parent / "examples", HERE / "project" / "examples.md"
    text = listed.read_text(encoding="utf-8")
    pages = {}
    # A folder with a page of its own is not one of programs to copy.
    inner = [path for path in sorted(folder.glob("*/*.py")) if not (path.parent / "README.md").exists()]
    for path in [*sorted(folder.glob("*.py")), *inner]:
        place, program = path.relative_to(folder), ast.parse(path.read_text(encoding="utf-8"))
        name = "_".join(place.with_suffix("").parts)
        about, after = ast.get_docstring(program) or "", (program.body[0].end_lineno or 0) + 2
        printed, picture = HERE / "gallery" / f"{name}.txt", HERE / "gallery" / f"{name}.svg"
        parts = [f"# {place.as_posix()}", about, "## What it prints"]
        parts.append(f"```{{literalinclude}} ../gallery/{printed.name}\n:language: text\n```")
        if picture.exists():
            parts.append(f"![the training of {place.name}](../gallery/{picture.name})")
        parts += [
            "## The program",
            f"```{{literalinclude}} ../../examples/{place.as_posix()}\n:language: python\n:lines: {after}-\n```",
        ]
        (HERE / "project" / f"example_{name}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        heading = f"## {place.parts[0]}\n"
        if heading not in text:
            raise ValueError(f"examples/README.md has no section {heading.strip()!r}")
        pages[f"example_{name}"] = text.index(heading)
        words = "The program" if len(place.parts) == 1 else f"`{place.name}`"
        text = text.replace(heading, f"{heading}\n[{words}, and all that it prints](example_{name}.md)\n")
    toctree = "\n".join(sorted(pages, key=pages.__getitem__))  # in the order of the sections
    listed.write_text(f"{text}\n```{{toctree}}\n:hidden:\n\n{toctree}\n```\n", encoding="utf-8")


write_examples()


def on_the_front_page(text: str) -> str:
    """index.md with what README says before it comes to installing, and its speeds before the first list."""
    readme = (HERE.parent / "README.md").read_text(encoding="utf-8")
    readme = re.sub(r"\]\((benchmarks|examples)/", r"](../\1/", readme.replace("](docs/", "]("))
    program = readme[readme.index("What it is for:") : readme.index("## Install")]
    speeds = readme[readme.index("## How fast it is") : readme.index("## Status")]
    for part, before in ((program, "New here?"), (speeds, "## Learn\n")):
        at = text.index(before)
        text = f"{text[:at]}{part}{text[at:]}"
    return text


def read_source(app: Sphinx, name: str, text: list[str]) -> None:
    """Lead links to files outside to their pages; make the tables of contents from the lists of index pages."""
    up = "../" * name.count("/")
    if name == "index":
        text[0] = on_the_front_page(text[0])
    for source, target in OUTSIDE.items():
        text[0] = text[0].replace(f"]({up}{source}", f"]({up}{target}")
    # Tutorials are programs in the clone and pages here.
    text[0] = re.sub(r"\]\(learn/(\w+)\.py\)", r"](tutorials/\1.rst)", text[0]).replace(
        "](learn)", "](tutorials/index.rst)"
    )
    if name in ("index", "lab/index"):
        for title, part in re.findall(r"^##? (.+?)\n(.*?)(?=^## |\Z)", text[0], flags=re.MULTILINE | re.DOTALL):
            pages = "\n".join(re.findall(r"^- \[.+?\]\((.+?)\.(?:md|rst)\)", part, flags=re.MULTILINE))
            if pages:
                text[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{pages}\n```\n"


def link_short_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: Element) -> Element | None:
    """Lead `dy.tanh`, as programs write it, to dynet_cy.tanh."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("dy."):
        return None
    full = f"dynet_cy.{target[3:]}"
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", full, node, text)


# Files of the clone that texts name, and their pages.
PAGE = re.compile(r"docs/([\w-]+)\.md|(benchmarks/RESULTS|examples/README|CHANGELOG|CONTRIBUTING)\.md")


def page_named(match: re.Match[str]) -> str:
    return f"/{match[1]}" if match[1] else "/" + OUTSIDE[f"../{match[2]}.md"].removesuffix(".md")


def link_pages(app: Sphinx, doctree: nodes.document) -> None:
    """Where a text names the file of a page, lead to the page."""
    for link in doctree.findall(pending_xref):  # names in single backticks in docstrings
        if match := PAGE.fullmatch(link["reftarget"]):
            link.attributes.update(refdomain="std", reftype="doc", reftarget=page_named(match), refexplicit=True)
    inside = (nodes.FixedTextElement, nodes.reference, nodes.title, nodes.raw, pending_xref)
    for text in list(doctree.findall(nodes.Text)):
        parts: list[nodes.Node] = []
        at, node = 0, text
        while node.parent is not None and not isinstance(node, inside):
            node = node.parent
        if isinstance(node, inside):
            continue
        for match in PAGE.finditer(text):
            link = pending_xref(
                "", refdomain="std", reftype="doc", reftarget=page_named(match), refexplicit=True, refwarn=True
            )
            link.append(nodes.inline("", match[0]))
            parts += [nodes.Text(text[at : match.start()]), link]
            at = match.end()
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(text[at:])])


def name_bases(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Below a class, the public classes whose members it has too."""
    if isinstance(obj, type):
        bases = [CLASSES[base] for base in obj.__mro__[1:] if base in CLASSES and name in CLASSES.values()]
        if bases:
            lines += ["", f"Has the members of {', '.join(f':py:class:`{base}`' for base in bases)} too.", ""]


def mark_blocks(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Formulas and code of docstrings stand as they are: what is indented after a blank line is a literal block."""
    marked: list[str] = []
    before = ""  # the last line that is not blank
    outside = -1  # indent of what a literal block stands in, while there is one
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if line and indent <= outside:
            outside = -1
        if line and outside < 0 and i and not lines[i - 1]:
            around = len(before) - len(before.lstrip())
            if indent > around and before:
                outside = around
                if not before.endswith("::"):
                    marked += [" " * around + "::", ""]
        marked.append(line)
        before = line or before
    lines[:] = marked


def skip_fields(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Fields of named tuples stand in the docstrings of their classes."""
    return True if (getattr(obj, "__doc__", "") or "").startswith("Alias for field number") else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-docstring", mark_blocks, priority=400)  # before napoleon's
    app.connect("autodoc-process-docstring", name_bases, priority=600)
    app.connect("source-read", read_source)
    app.connect("doctree-read", link_pages)
    app.connect("missing-reference", link_short_name)
