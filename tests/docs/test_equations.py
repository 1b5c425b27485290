"""Both pages of equations run when they are pasted into Python's prompt after `make demo`, and the
pictures they show are the ones they draw.

`python -m tests.docs.test_equations` draws them anew.
"""

import code
import re
import sys
import tomllib
import warnings
from contextlib import chdir
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch

from transduct.kernels import cpu

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["equations.md", "equations.ko.md"]
# the code, and what follows it
BLOCK = re.compile(r"```python\n(.*?)```(.*?)(?=```python|\Z)", re.DOTALL)
PICTURE = re.compile(r"!\[[^]]+\]\((pictures/\w+\.svg)\)")
EXTRAS = ["ctranslate2", "matplotlib", "onnx", "PIL", "scipy", "soundfile", "transformers"]
NUMBER = re.compile(r"#[0-9a-f]{6}|-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def read(page):
    return (DOCS / page).read_text(encoding="utf-8")


class Prompt(code.InteractiveConsole):
    """Python's prompt, but an error ends the test."""

    def showtraceback(self):
        raise

    def showsyntaxerror(self, *args, **given):
        raise

    def paste(self, text):
        """Enter a text line by line; nothing may be left open at its end."""
        more = False
        for line in text.splitlines():
            more = self.push(line)
        assert not more, f"the prompt waits for more after:\n{text}"


@pytest.fixture(scope="module")
def core_alone():
    """Only what `make demo` installs can be imported. Kernels, which draw dropout in another way,
    are absent, so that the pictures are the same on every processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "library", lambda: None)
        for name in list(sys.modules):
            if name.partition(".")[0] in EXTRAS:
                patch.delitem(sys.modules, name)
        for name in EXTRAS:
            patch.setitem(sys.modules, name, None)
        yield


def draw(page, folder):
    """Paste a page into a prompt in a folder; for each block the pictures shown beneath it and
    those it has made."""
    prompt, pairs, pictures = Prompt(), [], folder / "pictures"
    pictures.mkdir(exist_ok=True)
    for picture in pictures.iterdir():
        picture.unlink()
    with chdir(folder), torch.random.fork_rng(), warnings.catch_warnings(action="error"):
        for text, after in BLOCK.findall(read(page)):
            before = set(pictures.iterdir())
            prompt.paste(text)
            made = {f"pictures/{picture.name}" for picture in set(pictures.iterdir()) - before}
            pairs.append((set(PICTURE.findall(after)), made))
    return pairs


@pytest.fixture(scope="module", params=PAGES)
def drawn(request, core_alone, tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    return folder, draw(request.param, folder)


def parts(svg):
    """The text of a picture without its numbers, and its numbers; a colour is three of them."""
    numbers = []
    for number in NUMBER.findall(svg):
        colour = number.startswith("#")
        numbers += (
            [int(number[i : i + 2], 16) / 255 for i in (1, 3, 5)] if colour else [float(number)]
        )
    return NUMBER.sub("", svg), numbers


def test_every_block_makes_the_pictures_beneath_it(drawn):
    _, ((_, nothing), *pairs) = drawn  # the first block imports
    assert not nothing
    for shown, made in pairs:
        assert shown == made != set()


def test_the_pictures_are_those_of_the_page(drawn):
    folder, _ = drawn
    made, kept = (
        sorted(path.name for path in (root / "pictures").iterdir()) for root in (folder, DOCS)
    )
    assert made == kept
    for name in made:
        new, old = (
            (root / "pictures" / name).read_text(encoding="utf-8") for root in (folder, DOCS)
        )
        if new != old:  # on another processor the last digits may differ
            (structure, numbers), (expected_structure, expected) = parts(new), parts(old)
            assert structure == expected_structure, name
            assert numbers == pytest.approx(expected, rel=0.02, abs=0.02), name
        assert len(new) < 60_000


def test_both_pages_hold_the_same_code_equations_functions_and_pictures():
    def skeleton(page):
        text = read(page)
        equations, functions = (
            re.findall(r"\$\$\n.*?\n\$\$", text, re.DOTALL),
            re.findall(r"`([\w.]+)`", text),
        )
        titles = re.findall(r"^(#+ \d*)", text, re.MULTILINE)
        return (
            [block for block, _ in BLOCK.findall(text)],
            equations,
            functions,
            titles,
            PICTURE.findall(text),
        )

    assert skeleton(PAGES[0]) == skeleton(PAGES[1])


@pytest.mark.parametrize(
    "text",
    ["for i in range(2):\n    n = i\nprint(n)\n", "n = [1,\n\n", "import scipy.optimize\n"],
)
def test_a_block_that_cannot_be_pasted_is_noticed(core_alone, text):
    with pytest.raises((SyntaxError, AssertionError, ImportError)):
        Prompt().paste(text)


def test_what_extras_bring_is_kept_from_the_pages():
    held = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    brought = {"pillow" if name == "PIL" else name for name in EXTRAS}
    assert brought <= {
        re.split("[><]", each)[0]
        for held in held["optional-dependencies"].values()
        for each in held
    }


def test_every_function_named_exists():
    for line in re.findall(r"^\*The functions?:\* (.*)$", read(PAGES[0]), re.MULTILINE):
        for name in re.findall(r"`([\w.]+)`", line):
            assert callable(resolve_name(name)), name


def test_every_equation_has_a_function_code_and_a_picture():
    for page in PAGES:
        for section in read(page).split("\n## ")[1:]:
            title = section.splitlines()[0]
            assert section.count("$$") == 2, title
            assert re.search(r"^\*(The functions?|함수):\* `", section, re.MULTILINE), title
            assert section.count("```python") == 1, title
            assert PICTURE.search(section), title


if __name__ == "__main__":
    torch.set_num_threads(1)
    draw(PAGES[0], DOCS)
