"""Holds the plan of the house (design.md, section 3): imports go down one floor plan, and every
room stays small."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from transduct_course import catalogue

from transduct.predictors.base import TASKS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "transduct"
# Packages beside it, which add what they hold by entry points, and whose tests are where.
OTHERS = {
    "transduct_bench": "tests/transduct_bench",
    "transduct_corpora": "tests/transduct_corpora",
    "course/transduct_course": "course/tests",
}

CODE = ("transduct", "transduct_bench", "transduct_corpora", "course", "tests", "benchmarks")
# The layer of each package and each file beside them; imports go to the same layer or down.
LAYERS = {
    **dict.fromkeys(
        ("errors", "records", "added", "config", "segments", "storage", "devices", "transduct"), -1
    ),
    **dict.fromkeys(("kernels", "functional"), 0),
    **dict.fromkeys(("blocks", "data", "formats", "evaluation", "drawing"), 1),
    **dict.fromkeys(("models", "training", "decoding"), 2),
    "inference": 3,
    "predictors": 4,
    **dict.fromkeys(("tasks", "runs", "interop", "bulk"), 5),
    **dict.fromkeys(("serving", "interfaces"), 6),
}
# Within the layers: what a package may never import, though its layer lies below or beside.
NEVER = {
    "models": {"training", "decoding", "data", "evaluation"},
    "training": {"models", "decoding", "data", "evaluation", "drawing"},
    "decoding": {"models", "training", "data", "evaluation", "drawing"},
    "data": {"blocks", "evaluation"},
    "evaluation": {"blocks", "data"},
    "drawing": {"blocks", "evaluation"},
    "blocks": {"data", "evaluation", "drawing"},
    "predictors": {"training"},
    "tasks": {"runs", "interop"},
}
# Who may not import kernels, and the one module through which a package reaches them.
WITHOUT_KERNELS = ("data", "evaluation", "models", "decoding")
WAYS_TO_KERNELS = {"functional": "functional.fast", "blocks": "blocks.linear"}
# What readable code does not ask: on which device it runs, and whether a kernel would serve it.
READABLE = ("blocks", "models", "decoding")
DEVICE_QUESTIONS = ("is_cpu", "is_cuda", "cpu.", "cpu_", "triton", "CUDAGraph")
# Imports that go up, and why each must.
UPWARDS = {
    ("transduct", "predictors.base"): "`transduct.load`, when it is asked for",
    ("transduct", "interop.hub"): "`transduct.load`, of a folder of another tool",
}
# Libraries of the extras for a terminal and for a network.
FOR_PEOPLE = {"typer", "rich", "starlette", "uvicorn", "prometheus_client"}
# torch.utils.data is all of it that data may take
WITHOUT_TORCH = ("transduct", "errors", "added", "config", "interfaces.cli")
LONGEST_FUNCTION = 80
# Statements of the package, docstrings included. Growth by more than 2 % is a decision: who makes
# it changes this number and says in the commit what the growth is for.
STATEMENTS = 29_200
# Places that may catch every exception, and why.
BROAD_EXCEPTS = {
    "data.tokenizer.panics_as_errors": "a panic of the library is no Exception",
    "data.tokenizer.load": (
        "the tokenizers library raises nothing narrower than Exception, or panics"
    ),
    "interop.sentencepiece.read": "the tokenizers library raises nothing narrower than Exception",
    "interop.vocabularies._canonical": "the same library",
    "interop.vocabularies._renamed": "the same library",
    "interfaces.program.run": (
        "the end of the program: a mistake of ours is one line there, and a traceback with --debug"
    ),
    "training.log._or_without_board": (
        "what TensorBoard raises hangs on whether TensorFlow is installed"
    ),
    "runs.directory._undone_on_error": (
        "raised again once the folder of a run that never began is removed"
    ),
    "training.distributed.naming_lost": "raised again once the other ranks know why",
}
# Packages that ask no object of ours what it is: it says so in class attributes.
DECLARED = (
    *("predictors", "tasks", "runs", "serving", "interfaces", "drawing"),
    *("kernels", "functional", "blocks", "models", "training", "decoding", "inference"),
)
# Functions of these that look for an attribute of something that is not ours, and why.
GUESSES = {
    "kernels.cpu._compiled": "a library built from other sources lacks a function",
    "kernels.cpu.library": "PyTorch may be built with another OpenMP runtime",
}
# Verbs of regular expressions, which take a text.
SEARCHES = {"match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
# Modules whose tests have another name, and which.
TESTED_ELSEWHERE = {
    "transduct": "tasks/test_base.py",
}


@dataclass(frozen=True)
class Import:
    """What a line of a module imports: the full dotted name, a name taken from a module
    included."""

    module: str
    name: str
    line: int
    lazy: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.name}"


@dataclass(frozen=True)
class Module:
    """A module by its name without `transduct.`, and its syntax."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def imports(self) -> Iterator[Import]:
        """All imports but those for type checkers, which never run."""
        unseen = {
            node
            for branch in ast.walk(self.tree)
            if for_type_checkers(branch)
            for node in ast.walk(branch)
        }
        top = set(self.tree.body)
        for node in ast.walk(self.tree):
            if node in unseen:
                continue
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}:{node.lineno}: a relative import"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            yield from (Import(self.name, name, node.lineno, node not in top) for name in names)

    @property
    def ours(self) -> Iterator[tuple[Import, str]]:
        """The imports of our own modules, and the name of each."""
        for found in self.imports:
            if found.name.split(".")[0] == "transduct":
                yield found, own_module(found.name)


def for_type_checkers(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def own_module(name: str) -> str:
    """`transduct.data.text.TextSource` -> `data.text`: the longest part that is a file or a folder
    here."""
    parts = name.split(".")[1:]
    while (
        parts
        and not (PACKAGE / "/".join(parts)).is_dir()
        and not (PACKAGE / "/".join(parts)).with_suffix(".py").is_file()
    ):
        parts.pop()
    return ".".join(parts) or "transduct"


def parse(name: str, text: str, path: Path = PACKAGE) -> Module:
    return Module(name, path, ast.parse(text))


def all_modules() -> list[Module]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "transduct"
        found.append(parse(name, path.read_text(encoding="utf-8"), path))
    return found


MODULES = all_modules()
MODELS = {module.name for module in MODULES if module.name.startswith("models.")} - {"models.base"}
OUR_ERRORS = {"TransductError", "TrainingFailed"} | {
    node.name
    for module in MODULES
    for node in ast.walk(module.tree)
    if isinstance(node, ast.ClassDef)
    and {"TransductError", "TrainingFailed"} & {ast.unparse(base) for base in node.bases}
}
TRAINERS = {f"tasks.{name}" for name in TASKS}  # no task knows another
FILES = [
    module for module in MODULES if module.path.name != "__init__.py" or module.name == "transduct"
]


def trespasses(modules: Iterable[Module]) -> list[str]:
    """Imports that the floor plan forbids."""
    found = []
    for module in modules:
        own = module.name.split(".")[0]
        for each, name in module.ours:
            room = name.split(".")[0]
            upwards = LAYERS[room] > LAYERS[own] or room in NEVER.get(own, ())
            same = room == own and room in ("models", "tasks") and module.name in TRAINERS | MODELS
            other = same and name in TRAINERS | MODELS and name != module.name
            if (upwards and (module.name, name) not in UPWARDS) or other:
                found.append(str(each))
    return found


def ways_to_kernels(modules: Iterable[Module]) -> list[str]:
    """Imports of kernels from where none may be."""
    found = []
    for module in modules:
        own = module.name.split(".")[0]
        for each, name in module.ours:
            other_way = own in WAYS_TO_KERNELS and module.name != WAYS_TO_KERNELS[own]
            if name.startswith("kernels") and (own in WITHOUT_KERNELS or other_way):
                found.append(str(each))
    return found


def device_questions(modules: Iterable[Module]) -> list[str]:
    """Functions of readable code that name a device or a kernel in what they compute."""
    found = []
    for module in modules:
        if module.name.split(".")[0] not in READABLE:
            continue
        for function in functions_of(module):
            for node in ast.walk(function):
                named = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""
                compared = isinstance(node, ast.Compare) and "device.type" in ast.unparse(node)
                if compared or any(question in named for question in DEVICE_QUESTIONS):
                    found.append(f"{module.name}.{function.name}:{node.lineno}")
    return found


def of_layer_6(modules: Iterable[Module]) -> list[str]:
    """Imports of libraries for a terminal or a network below layer 6."""
    return [
        str(each)
        for module in modules
        for each in module.imports
        if each.name.split(".")[0] in FOR_PEOPLE and LAYERS[module.name.split(".")[0]] < 6
    ]


def guesses(modules: Iterable[Module]) -> set[str]:
    """Functions that ask whether something has an attribute: `hasattr`, `getattr` with a
    default."""
    return {
        f"{module.name}.{function.name}"
        for module in modules
        for function in functions_of(module)
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("hasattr", "getattr")
        and (ast.unparse(node.func) == "hasattr" or len(node.args) == 3)
    }


def names_in(node: ast.AST | None) -> set[str]:
    return {
        each.id if isinstance(each, ast.Name) else each.attr
        for each in ast.walk(node or ast.Tuple([]))
        if isinstance(each, ast.Name | ast.Attribute)
    }


def our_errors(scope: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The names that stand for an error of ours in a function, and where they do."""
    branches = {  # what is asked in them holds in them, unless it is denied
        asked: branch
        for branch in ast.walk(scope)
        if isinstance(branch, ast.If | ast.IfExp) and not isinstance(branch.test, ast.UnaryOp)
        for asked in ast.walk(branch.test)
    }
    for node in ast.walk(scope):
        match node:
            case ast.ExceptHandler(type=kind, name=str(name)) if names_in(kind) & OUR_ERRORS:
                yield name, node
            case ast.arg(arg=name, annotation=kind) if names_in(kind) & OUR_ERRORS:
                yield name, scope
            case ast.Call(func=ast.Name("isinstance"), args=[ast.Name(name), kind]):
                if names_in(kind) & OUR_ERRORS:
                    yield name, branches.get(node, scope)


def texts_of_errors(modules: Iterable[Module]) -> set[str]:
    """Where the text of an error of ours is searched, compared, cut or changed: facts are for
    programs, and the sentence is for people."""
    return {
        f"{module.name}:{line}"
        for module in modules
        for scope in ast.walk(module.tree)
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef)
        for name, place in our_errors(scope)
        for line in readings(name, place)
    }


def readings(error: str, place: ast.AST) -> Iterator[int]:
    """The lines that read the text of the error of this name."""
    copies: set[str] = set()

    def is_error(node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == error

    def is_text(node: ast.AST) -> bool:
        match node:
            case ast.Name(name):
                return name in copies
            case ast.Call(func=ast.Name("str" | "repr" | "format"), args=[given, *_]):
                return is_error(given) or is_text(given)
            case ast.Attribute(value=given, attr="message" | "problem" | "args"):
                return is_error(given)
            case ast.FormattedValue(value=given):
                return is_error(given) or is_text(given)
            case ast.JoinedStr(values=parts):
                return any(map(is_text, parts))
            case ast.BinOp(left=left, right=right):
                return is_text(left) or is_text(right)
            case ast.Call(func=ast.Attribute(value=given), args=given_too):
                return is_text(given) or any(map(is_text, given_too))
            case ast.Subscript(value=given):
                return is_text(given)
        return False

    for _ in range(2):  # a copy of a copy
        for node in ast.walk(place):
            match node:
                case ast.Assign(targets=[ast.Name(name)], value=value) if is_text(value):
                    copies.add(name)
                case ast.NamedExpr(target=ast.Name(name), value=value) if is_text(value):
                    copies.add(name)
    for node in ast.walk(place):
        match node:
            case ast.Call(func=ast.Attribute(value=given, attr=verb), args=arguments):
                searched = verb in SEARCHES and any(map(is_text, arguments))
                if is_text(given) or searched:
                    yield node.lineno
            case ast.Subscript(value=given) if is_text(given):
                yield node.lineno
            case ast.Compare(left=left, comparators=others) if any(map(is_text, [left, *others])):
                yield node.lineno


def circle(modules: Iterable[Module]) -> list[str]:
    """The modules of one circle of imports, lazy ones included; none if there is none."""
    graph = {
        module.name: {name for _, name in module.ours if name != module.name} for module in modules
    }
    visited: set[str] = set()

    def follow(name: str, way: list[str]) -> list[str]:
        if name in way:
            return way[way.index(name) :]
        if name in visited:
            return []
        visited.add(name)
        return next(
            filter(None, (follow(each, [*way, name]) for each in sorted(graph.get(name, ())))), []
        )

    return next(filter(None, (follow(name, []) for name in graph)), [])


def of_torch(modules: Iterable[Module], allowed: str = "") -> list[str]:
    """Imports of torch, save those of the part that is allowed."""
    return [
        str(each)
        for module in modules
        for each in module.imports
        if each.name.split(".")[0] == "torch" and not (allowed and each.name.startswith(allowed))
    ]


def unsafe(modules: Iterable[Module]) -> list[str]:
    """Ways to run what a file holds: pickle and its kin, torch.load, eval and exec."""
    found = []
    for module in modules:
        found += [
            str(each)
            for each in module.imports
            if each.name.split(".")[0] in ("pickle", "dill", "joblib", "shelve")
        ]
        for node in ast.walk(module.tree):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in (
                "eval",
                "exec",
                "torch.load",
                "np.load",
                "numpy.load",
                "yaml.unsafe_load",
            ):
                found.append(f"{module.name}:{node.lineno} calls {called}")
    return found


def broad_excepts(modules: Iterable[Module]) -> set[str]:
    """Functions that catch every exception and do not raise it again as it is."""
    found = set()
    for module in modules:
        for function in functions_of(module):
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler):
                    caught = ast.unparse(node.type) if node.type else "BaseException"
                    if {"Exception", "BaseException"} & set(caught.strip("()").split(", ")):
                        found.add(f"{module.name}.{function.name}")
    return found


def functions_of(module: Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef))


def statements(modules: Iterable[Module]) -> Counter[str]:
    """How many statements each package has, docstrings included."""
    found: Counter[str] = Counter()
    for module in modules:
        found[module.name.split(".")[0]] += sum(
            isinstance(node, ast.stmt) for node in ast.walk(module.tree)
        )
    return found


def long_functions(modules: Iterable[Module]) -> set[str]:
    return {
        f"{module.name}.{function.name}"
        for module in modules
        for function in functions_of(module)
        if function.end_lineno is not None
        and function.end_lineno - function.lineno + 1 > LONGEST_FUNCTION
    }


# the house as it stands


def test_imports_go_down():
    assert trespasses(FILES) == []


def test_kernels_are_reached_in_one_way():
    assert ways_to_kernels(FILES) == []


def test_readable_code_asks_for_no_device():
    assert device_questions(FILES) == []


def test_libraries_for_people_are_imported_at_the_top_alone():
    assert of_layer_6(FILES) == []


def test_what_an_object_can_do_is_declared_and_not_guessed():
    declared = [module for module in FILES if module.name.split(".")[0] in DECLARED]
    assert guesses(declared) == GUESSES.keys()


def test_nobody_reads_the_text_of_an_error():
    assert texts_of_errors(MODULES) == set()


@pytest.mark.parametrize(
    "line",
    [
        "str(error).removeprefix('recipe: ')",
        "f'{error}'.split(':')",
        "error.args[0]",
        "error.message.partition(':')",
        "'input 3' in str(error)",
        "re.match(r'input', str(error))",
        "NUMBERED.sub('', f'a {error}')",
        "str(error)[3:]",
        "(text := str(error)) and text.strip()",
        "('a ' + str(error)).replace('a', 'b')",
        "error.problem == 'odd'",
    ],
)
@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    try:\n        g()\n    except TransductError as error:\n        {line}",
        "def f(error: TransductError | None):\n    {line}",
        "def f(error):\n    if isinstance(error, TrainingFailed):\n        {line}",
    ],
)
def test_a_planted_reading_of_an_error_is_found(code, line):
    lines = code.count("\n") + 1
    assert texts_of_errors([parse("runs.planted", code.format(line=line))]) == {
        f"runs.planted:{lines}"
    }
    copied = code.replace("{line}", "text = str(error)\n        text.find('a')")
    if "try" in code:
        assert texts_of_errors([parse("runs.planted", copied)]) == {"runs.planted:6"}


@pytest.mark.parametrize(
    "line",
    [
        "print(error)",
        "failed.append(str(error))",
        "raise error.at(file='a', line=3)",
        "raise error.adding(f'; give {NAMES[0]}')",
        "raise Other(f'it failed: {error}')",
        "error.input == 3",
        "', '.join(names).replace('a', 'b')",
    ],
)
def test_what_may_be_done_with_an_error_is_not_found(line):
    code = f"def f():\n    try:\n        g()\n    except TransductError as error:\n        {line}"
    assert texts_of_errors([parse("runs.planted", code)]) == set()
    library = code.replace("TransductError", "OSError").replace(line, "str(error).split()")
    assert texts_of_errors([parse("runs.planted", library)]) == set()


def test_nothing_imports_in_circles():
    assert circle([module for module in MODULES if module.name != "transduct"]) == []


@pytest.mark.parametrize(
    "module", [m for m in MODULES if m not in FILES], ids=lambda module: module.name
)
def test_folders_say_nothing(module):
    assert module.path.read_text() == ""


def test_light_modules_do_not_import_torch():
    assert of_torch([module for module in FILES if module.name in WITHOUT_TORCH]) == []
    assert (
        of_torch(
            [module for module in FILES if module.name.startswith("data.")], "torch.utils.data"
        )
        == []
    )


def test_at_the_top_of_the_command_line_stand_only_the_standard_library_and_typer():
    names = (
        "interfaces.cli",
        "interfaces.options",
        "interfaces.program",
        "interfaces.terminal",
        "errors",
    )
    top = {
        each.name
        for module in FILES
        if module.name in names
        for each in module.imports
        if not each.lazy
    }
    light = tuple(f"transduct.{name}" for name in names)
    roots = {name.split(".")[0] for name in top if not name.startswith(light)}
    assert roots <= sys.stdlib_module_names | {"typer"}


@pytest.mark.parametrize(
    "statement",
    [
        "from transduct_bench import command",
        "from transduct_course import command",
        "import transduct",
        "from transduct.interfaces import cli, terminal",
        "import transduct.config",
    ],
)
def test_what_must_be_quick_to_import_imports_no_torch(statement):
    script = (
        f"import sys; {statement}; print(*sorted({{'torch', 'numpy', 'pyarrow', "
        f"'tokenizers'}} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("module", FILES, ids=lambda module: module.name)
def test_every_module_has_its_tests(module):
    parts = module.name.split(".")
    mirrored = "/".join([*parts[:-1], f"test_{parts[-1]}.py"])
    tests = ROOT / "tests" / TESTED_ELSEWHERE.get(module.name, mirrored)
    assert tests.exists()
    assert "def test_" in tests.read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", OTHERS)
def test_packages_beside_it_have_their_tests_and_are_known_by_entry_points_alone(folder):
    known = {
        str(each)
        for module in FILES
        for each in module.imports
        if each.name.startswith(folder.split("/")[-1])
    }
    assert not known
    experiments = set()
    if folder.endswith("transduct_course"):  # experiments run in miniature, all in one way
        experiments = {place.partition(":")[0] for place in catalogue.PLACES.values()}
    for path in (ROOT / folder).glob("[!_]*.py"):
        assert path.stem in experiments or (ROOT / OTHERS[folder] / f"test_{path.name}").exists()


def test_the_package_grows_by_decision():
    sizes = statements(FILES)
    total = sum(sizes.values())
    print(f"{total:,} statements of {STATEMENTS:,}:", dict(sizes.most_common()))
    longest = sorted(FILES, key=lambda module: -len(module.path.read_text().splitlines()))
    print("longest files:", *(module.name for module in longest[:10]))
    assert total <= 1.02 * STATEMENTS


def test_no_function_is_longer_than_a_screen():
    assert long_functions(FILES) == set()


def test_no_line_is_longer_than_100_characters():
    files = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    assert [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 100
    ] == []


def test_nothing_that_a_file_holds_is_run():
    [allowed] = {line.split(":")[0] for line in unsafe(FILES)}
    assert allowed == "interop.pickled", "which reads tensors only, in a process of its own"


def test_no_error_is_caught_without_knowing_which():
    assert broad_excepts(FILES) == BROAD_EXCEPTS.keys()


# the checker itself


PLANTED = {
    "a task imports another": ("tasks.text_to_image", "from transduct.tasks.translation import x"),
    "a lazy import": (
        "functional.losses",
        "def loss():\n    from transduct.blocks.attention import x",
    ),
    "a model imports another": ("models.rnn", "from transduct.models.transformer import Config"),
    "an upper floor": ("training.trainer", "import transduct.tasks.base"),
    "search knows a model": ("decoding.search", "from transduct.models import transformer"),
    "who answers knows who trains": (
        "predictors.translation",
        "import transduct.tasks.translation",
    ),
    "who answers trains": (
        "predictors.translation",
        "from transduct.training.distributed import Terms",
    ),
    "config knows a task": ("config", "from transduct.tasks import base"),
    "the trainer knows data": ("training.trainer", "from transduct.data.text import x"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_trespass_is_found(name):
    module, text = PLANTED[name]
    assert len(trespasses([parse(module, text)])) == 1


@pytest.mark.parametrize(
    "module", ["data.text", "evaluation.text", "models.rnn", "decoding.search", "blocks.attention"]
)
def test_a_planted_way_to_kernels_is_found(module):
    text = "def f():\n    from transduct.kernels import cpu"
    assert len(ways_to_kernels([parse(module, text)])) == 1
    assert ways_to_kernels([parse("blocks.linear", text), parse("training.step", text)]) == []


@pytest.mark.parametrize(
    "line", ["if x.is_cpu: pass", "a = x.device.type == 'cuda'", "return cpu.supports(x)"]
)
def test_a_planted_question_for_a_device_is_found(line):
    planted = f"def f(x):\n    {line}"
    assert len(device_questions([parse("blocks.attention", planted)])) == 1
    assert device_questions([parse("inference.engine", planted)]) == []


@pytest.mark.parametrize(
    "module, text",
    [
        ("blocks.attention", "from transduct.segments import Segments"),
        ("decoding.search", "from transduct.blocks.attention import KVCache"),
        ("tasks.translation", "from transduct.predictors.base import Report"),
        (
            "config",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
            "    from transduct.tasks import base",
        ),
    ],
)
def test_what_is_allowed_is_not_found(module, text):
    assert trespasses([parse(module, text)]) == []


def test_planted_faults_of_other_kinds_are_found():
    ring = [
        parse("data.text", "from transduct.data.corpus import a"),
        parse("data.corpus", "def b():\n    from transduct.data import tokenizer"),
        parse("data.tokenizer", "import transduct.data.text"),
    ]
    assert sorted(circle(ring)) == ["data.corpus", "data.text", "data.tokenizer"]
    assert circle(ring[:2]) == []
    assert of_torch([parse("config", "def f():\n    import torch.nn")]) == [
        "config:2 imports torch.nn"
    ]
    assert (
        of_torch([parse("data.x", "from torch.utils.data import Dataset")], "torch.utils.data")
        == []
    )
    caught = "def f():\n    try:\n        pass\n    except (OSError, Exception):\n        pass"
    bad = parse("data.x", f"import pickle\ntorch.load('a')\n{caught}")
    assert len(unsafe([bad])) == 2
    asks = "def f(x):\n    return hasattr(x, 'a') or getattr(x, 'b', None)"
    assert guesses([parse("runs.x", asks)]) == {"runs.x.f"}
    assert guesses([parse("runs.x", "def f(x, name):\n    return getattr(x, name)")]) == set()
    assert of_layer_6([parse("tasks.x", "def f():\n    import rich.progress")]) == [
        "tasks.x:2 imports rich.progress"
    ]
    assert of_layer_6([parse("serving.x", "import uvicorn")]) == []
    assert broad_excepts([bad]) == {"data.x.f"}
    assert statements([parse("a.b", "x = 1\nif x:\n    y = 2"), parse("a.c", "'s'")]) == {"a": 4}
    assert long_functions(
        [parse("x", "def f():\n" + "    1\n" * 80), parse("y", "def f():\n" + "    1\n" * 79)]
    ) == {"x.f"}
