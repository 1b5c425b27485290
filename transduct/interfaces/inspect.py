"""What `transduct inspect` writes: the inside of one sentence as one page, with all that it needs.

The page has the same modules as that of the server. A browser loads a module
from a file only if it is in the page itself, so each one becomes a function here.
"""

import json
import re
from html import escape
from importlib.resources import files
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from transduct.errors import require
from transduct.interfaces.program import load
from transduct.interfaces.terminal import require_folders
from transduct.predictors.base import model_directory

IMPORT = re.compile(r'^import \{([^}]*)\} from "([^"]+)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
NAMES = re.compile(r"\bexport ?\{([^}]*)\};?")
# Nothing is loaded from elsewhere: the browser itself sees to it.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title} - transduct</title>
<link rel="icon" href="data:,">
<style>{style}</style>
<body>
<script type="application/json" id="inside">{data}</script>
<script>{library}</script>
<script type="module">{modules}</script>
</body>
</html>
"""


def inspect(model: str, text: str, out: Path, machine: dict[str, Any], **options: Any) -> None:
    """Write the page for a text; options as for the model's `translate`.

    Raises:
        TransductError: the text is blank, the model shows no attention or reads no text, or the
            file cannot be written.
    """
    require(text.strip(), "the text is empty; write a sentence, in quotes")
    require(out.suffix == ".html", f"{out}: the page is HTML; call it NAME.html")
    require_folders(out)
    directory = model_directory(model)
    predictor = load(str(directory), *machine.values(), "attention")
    require(predictor.reads == "text", f"{model}: it reads no text; see: transduct predict --help")
    from transduct.predictors.inside import everything
    from transduct.storage import write_file

    views = everything(predictor, text, directory, **options)
    write_file(out, page({"model": model, "text": text, "views": views}).encode())


def page(content: dict[str, Any]) -> str:
    """The page for a model, a text and its views."""
    web = files("transduct.serving").joinpath("web")
    style, own, library = (
        web.joinpath(*name.split("/")).read_text(encoding="utf-8")
        for name in ("style.css", "inside/style.css", "vendor/d3.js")
    )
    data = json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")
    modules = "const modules = {};\n" + "".join(bundled("inside/file.js", {}).values())
    return PAGE.format(
        policy=POLICY,
        title=escape(content["text"]),
        style=style + own,
        data=data,
        library=closed(library),
        modules=closed(modules),
    )


def closed(script: str) -> str:
    """A script that does not end the element that it stands in."""
    return script.replace("</script", "<\\/script")


def bundled(name: str, found: dict[str, str]) -> dict[str, str]:
    """A module and all that it imports, each a function that gives its exports; what is imported
    comes first."""
    text = files("transduct.serving").joinpath("web", *name.split("/")).read_text(encoding="utf-8")

    def taken(match: re.Match[str]) -> str:
        other = normpath(PurePosixPath(name).parent.joinpath(match[2]).as_posix())
        if other not in found:
            bundled(other, found)
        return f"const {{{match[1].replace(' as ', ': ')}}} = modules['{other}'];"

    body = IMPORT.sub(taken, text)
    given = [f"{n}: {n}" for n in EXPORT.findall(body)]
    for match in NAMES.finditer(body):  # of a library: own names as others
        pairs = [part.split(" as ") for part in match[1].split(",")]
        given += [f"{pair[-1].strip()}: {pair[0].strip()}" for pair in pairs]
    body = EXPORT.sub("", NAMES.sub("", body))
    exports = ", ".join(given)
    found[name] = f'modules["{name}"] = (() => {{\n{body}\nreturn {{{exports}}};\n}})();\n'
    return found
