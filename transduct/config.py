"""Recipes: YAML files read into typed, frozen records, with `section.key=value` overrides."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from transduct.errors import TransductError, UnknownKey, require, rewording
from transduct.records import described, did_you_mean, holds, numbered, record

PROFILES = "profiles"
ENDINGS = (".yaml", ".yml")  # of recipes
# the keys, in their sections, that hold paths
PATHS = (
    *(("data", "root"), ("data", "corpus"), ("model", "start_from")),
    ("training", "backup"),
)
MERGE = "tag:yaml.org,2002:merge"
LARGEST = 100_000  # values in a recipe, and ten times as many bytes
SHOWN = 60  # characters of an override quoted in an error message


@dataclass(frozen=True)
class Recipe:
    """The sections of a recipe; the task turns each into a record of its own.

    Attributes:
        task: the task to learn; the name of a module in `transduct/tasks`.
        data: the training, validation and test data, and how to read them.
        tokenizer: how text is split into tokens.
        model: family and sizes.
        training: steps, batches, learning rate, checkpoints.
        decoding: default decoding options, which a call may override.
        stages: trainings run one after another. Each is a mapping of sections merged over the
            recipe's own and starts from the model of the stage before; a stage may have another
            task.
        ensemble: train the stages independently and combine their models into one.
    """

    task: str
    data: dict[str, Any] = field(default_factory=dict)
    tokenizer: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    decoding: dict[str, Any] = field(default_factory=dict)
    stages: list[dict[str, Any]] = field(default_factory=list)
    ensemble: bool = False


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads `1e-3` as a number, `1:30` and `0100` as text, and refuses a key given
    twice."""

    merged = 0  # values that merge keys (`<<`) have copied

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key '{key.value}' appears twice", problem_mark=key.start_mark
                    )
                seen.add((key.tag, key.value))
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Apply merge keys (`<<`): a mapping's own keys win, then those of the first mapping it
        merges. PyYAML 6.0.4 lets the last one win unless a key is a single character, for it
        compares keys by identity (its issue 953)."""
        layers: list[Any] = []
        for key, value in node.value:
            if key.tag == MERGE:
                layers += value.value if value.id == "sequence" else [value]
        # Else PyYAML raises below.
        if layers and all(isinstance(layer, yaml.MappingNode) for layer in layers):
            pairs = {}
            for layer in reversed(layers):
                self.flatten_mapping(layer)
                pairs.update(
                    {(key.tag, str(key.value)): (key, value) for key, value in layer.value}
                )
            own = [pair for pair in node.value if pair[0].tag != MERGE]
            names = {(key.tag, str(key.value)) for key, _ in own}
            node.value = [pair for name, pair in pairs.items() if name not in names] + own
            self.merged += len(pairs)
            if self.merged > LARGEST:
                raise yaml.MarkedYAMLError(
                    problem=f"merges (<<) of more than {LARGEST:,} values",
                    problem_mark=node.start_mark,
                )
        super().flatten_mapping(node)


class _Dumper(yaml.SafeDumper):
    """Safe YAML that quotes the string `1e-3`, which would otherwise be read back as a number, and
    escapes U+0085, which would be read back as a space."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar(
            "tag:yaml.org,2002:str", data, style='"' if "\x85" in data else None
        )


_Dumper.add_representer(str, _Dumper.represent_str)
for _yaml in (_Loader, _Dumper):
    _yaml.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?([0-9][0-9_]*)(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
        list("-+0123456789"),
    )
# YAML 1.1 reads 1:30 as 90 and 0100 as 64; the first matching resolver wins.
_AS_TEXT = re.compile(r"^[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)$")
for _first in "-+0123456789":
    _Loader.yaml_implicit_resolvers[_first].insert(0, ("tag:yaml.org,2002:str", _AS_TEXT))


def load_recipe(
    path: str | Path, overrides: Sequence[str] = (), profile: str | None = None
) -> Recipe:
    """Read a recipe, then merge the named profile and the overrides over it, in that order.

    Args:
        overrides: words such as "training.steps=2000".

    Raises:
        TransductError: if the file is missing or not a recipe, the profile or a key is unknown, or
            a value has the wrong type.
    """
    require(
        not isinstance(overrides, str | Mapping),
        f"found overrides {overrides!r:.60}, expected a list such as ['training.steps=2000']",
    )
    path = os.path.expanduser(path)
    tree = _with_profile(_read_tree(path), profile, path)
    for override in overrides:
        tree = _with_override(tree, override)
    with placed(path, overrides, profile):
        recipe = recipe_from(tree)
    return with_paths(recipe, os.path.expanduser)


def _read_tree(path: str) -> dict[str, Any]:
    """The mapping in a recipe's file, its profiles included."""
    problem = "cannot read the recipe ({error})"
    missing = f"{problem}; give the path of a YAML file"
    with rewording(OSError, missing, file=path), open(path, "rb") as file:
        data = file.read(10 * LARGEST + 1)
    require(
        len(data) <= 10 * LARGEST,
        f"longer than {10 * LARGEST:,} bytes; expected a recipe, a YAML file",
        file=path,
    )
    with rewording(UnicodeDecodeError, f"{problem}; save it in UTF-8, as an editor can", file=path):
        tree = _parse_yaml(data.decode("utf-8"), path)
    require(
        isinstance(tree, dict),
        f"found {described(tree)}, expected a recipe with the key 'task'",
        file=path,
    )
    return tree


def _with_profile(tree: dict[str, Any], profile: str | None, path: str) -> dict[str, Any]:
    """The recipe without its profiles, and with the overrides of one of them."""
    profiles = tree.pop(PROFILES, None) or {}
    require(
        isinstance(profiles, dict),
        f"{{key}} is {described(profiles)}, expected a mapping of names to overrides",
        key=PROFILES,
        file=path,
    )
    if profile is None:
        return tree
    profiles = {str(name): over for name, over in profiles.items()}
    near = did_you_mean(profile, profiles) if profiles else "; the recipe has none"
    require(profile in profiles, f"no profile '{profile}'{near}", file=path)
    over = profiles[profile] or {}
    require(
        isinstance(over, dict),
        f"{{key}} is {described(over)}, expected a mapping of keys to change",
        key=f"{PROFILES}.{profile}",
        file=path,
    )
    return merge(tree, over)


def recipe_from(tree: Any, source: str | None = None) -> Recipe:
    """The recipe that a tree of YAML holds; see `record`."""
    hint = "; a key of a section is written with it, as in training.steps=100"
    return record(Recipe, tree, "", source, hint=hint)


def with_paths(recipe: Recipe, change: Callable[[str], str]) -> Recipe:
    """The recipe with its paths changed, also those of its stages."""

    def changed(sections: Mapping[str, Any]) -> dict[str, Any]:
        result = dict(sections)
        for name, key in PATHS:
            section = result.get(name)
            if isinstance(section, dict) and isinstance(section.get(key), str):
                result[name] = {**section, key: change(section[key])}
        return result

    whole = changed({"data": recipe.data, "model": recipe.model, "training": recipe.training})
    return replace(recipe, **whole, stages=[changed(stage) for stage in recipe.stages])


def absolute_path(path: str) -> str:
    """A path of a recipe, so that it means the same in any working directory; an address is."""
    return path if "://" in path else str(Path(path).resolve())


@contextmanager
def placed(
    path: str | None, overrides: Sequence[str] = (), profile: str | None = None
) -> Iterator[None]:
    """Context manager that adds to an error about a key of the recipe the override, or the file and
    line, that set the value at fault."""
    text = ""
    if path is not None and Path(path).is_file():  # a pipe can be read only once
        with suppress(OSError, UnicodeDecodeError):  # reported elsewhere
            text = Path(path).read_text(encoding="utf-8")
    try:
        yield
    except TransductError as error:
        if error.key is None or error.file is not None:
            raise
        name = [part for part in re.split(r"[.\[\]]+", error.key) if part]
        # A key of a stage may be set there or, for all stages, above them.
        layers: list[list[str]] = [[]]
        if name[:1] == ["stages"] and len(name) > 1:
            layers, name = [name[:2], []], name[2:]
        names = [[*layer, *name] for layer in layers]
        if override := _overriding(overrides, names, isinstance(error, UnknownKey)):
            shown = override if len(override) <= SHOWN else f"{override[:SHOWN]}..."
            raise error.at(file=f"the override '{shown}'") from error
        searched: list[list[str]] = []
        for layer in layers:  # a profile wins over what it changes
            searched += [[PROFILES, profile, *layer], layer] if profile else [layer]
        line = _line(yaml.compose(text, _Loader), searched, name)
        raise error.at(file=path, line=line) from error


def _overriding(overrides: Sequence[str], names: list[list[str]], unknown: bool) -> str | None:
    """The last override that sets one of these names, or a section containing it; of unknown names,
    also one that sets something inside them."""
    for override in reversed(overrides):
        key = override.partition("=")[0].split(".")
        if any(name[: len(key)] == key or (unknown and key[: len(name)] == name) for name in names):
            return override
    return None


def _line(tree: yaml.Node | None, layers: list[list[str]], name: list[str]) -> int | None:
    """The line of the longest part of a name that the recipe contains, in the first layer to have
    it; None if none has."""
    deepest, line = 0, None
    for layer in layers:
        node, depth = tree, -len(layer)
        for part in [*layer, *name]:
            entry = _entries(node).get(part)
            if entry is None:
                break
            depth, node = depth + 1, entry[1]
            if depth > deepest:
                deepest, line = depth, entry[0].start_mark.line + 1
    return line


def _entries(node: yaml.Node | None) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """The node each entry of a mapping or list starts with and the node of its value, by key or
    index."""
    if isinstance(node, yaml.SequenceNode):
        return {str(place): (item, item) for place, item in enumerate(node.value)}
    if isinstance(node, yaml.MappingNode):
        return {key.value: (key, value) for key, value in node.value}
    return {}


def _with_override(tree: Mapping[str, Any], override: str) -> dict[str, Any]:
    """The recipe with an override, applied also to every stage that sets the same key itself."""
    over, names = parse_override(override), override.partition("=")[0].split(".")
    result = merge(tree, over)
    stages = result.get("stages")
    if names[0] != "stages" and isinstance(stages, list):
        result["stages"] = [
            merge(stage, over) if holds(stage, names) else stage for stage in stages
        ]
    return result


def is_key(word: str) -> bool:
    """Whether a word of a command is the name of a key, without its value, and of no file."""
    section = word.rstrip(":").partition(".")[0]
    return section in {each.name for each in fields(Recipe)} and not os.path.exists(word)


def recipe_words(
    words: Sequence[str], is_table: Callable[[str], object] = lambda _: False
) -> tuple[list[str], list[str]]:
    """The recipes, at most one, or tables, and the overrides in the words of a command.

    Raises:
        TransductError: a key and its value are apart, or there are two recipes.
    """
    paths: list[str] = []
    for place, word in enumerate(words):
        if "=" in word and not (word.endswith(ENDINGS) and os.path.isfile(word)):
            continue
        before = words[place - 1] if place else ""
        if before.endswith("=") and not os.path.isfile(word):
            name = words[place - 2] if before == "=" and place > 1 else before[:-1]
            raise TransductError(f"found a space after '{name}='; write {name}={word}")
        if is_key(word):
            rest = [each.lstrip("=") for each in words[place + 1 : place + 3] if each != "="]
            remedy = f"{word.rstrip(':')}={rest[0] if rest else 'VALUE'}"
            raise TransductError(f"found '{word}', a key without its '='; write {remedy}")
        paths.append(word)
    if len(paths) > 1 and not all(map(is_table, paths)):
        raise _several(paths)
    return paths, [word for word in words if word not in paths]


def _several(paths: Sequence[str]) -> TransductError:
    """The error for several recipes, with what was probably meant."""
    found = f"found {len(paths)} recipes ({', '.join(paths)})"
    named = [path for path in paths if path.endswith(ENDINGS)]
    if len(paths) == 2 and not named:
        remedy = f"give one, or train on two texts with: --source {paths[0]} --target {paths[1]}"
        return TransductError(f"{found}; {remedy}")
    for path in paths:
        if path not in named and not os.path.isfile(path):
            remedy = "write section.key=value, as in training.steps=100"
            return TransductError(f"{found}; '{path}' is no file and no override: {remedy}")
    return TransductError(f"{found}; give one")


def parse_override(text: str) -> dict[str, Any]:
    """`training.steps=2000` -> `{"training": {"steps": 2000}}`; the value is read as YAML."""
    name, equals, value = text.partition("=")
    require(
        name and all(name.split(".")), f"the override '{text}' has no key; write section.key=value"
    )
    require(equals, f"the override '{text}' has no value; write {text}=value")
    tree = _parse_yaml(value, f"the override '{text}'", lines=False)
    for key in reversed(name.split(".")):
        tree = {key: tree}
    assert isinstance(tree, dict)
    return tree


def merge(base: Mapping[str, Any], over: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Merge `over` into a copy of `base`, recursively.

    A mapping with integer keys changes those items of a list (`stages.0.training.steps=100`). Any
    other value is replaced. `where` is the full name of the mapping.
    """
    require(
        isinstance(over, Mapping), f"found {described(over)}, expected a mapping of keys to change"
    )
    result = dict(base)
    for key, value in over.items():
        old, name = result.get(key), f"{where}.{key}" if where else str(key)
        if isinstance(value, Mapping) and isinstance(old, list):
            result[key] = _merge_items(old, value, name)
        elif isinstance(value, Mapping) and isinstance(old, Mapping):
            result[key] = merge(old, value, name)
        else:
            result[key] = value
    return result


def _merge_items(items: list[Any], over: Mapping[Any, Any], name: str) -> list[Any]:
    """Merge `over`, whose keys are indices, into the items of a list."""
    known = numbered(items)
    for key in over:
        require(
            str(key) in known,
            f"'{name}' has no item '{key}'; it has {len(items)}, counted from 0",
        )
    return list(merge(known, {str(key): value for key, value in over.items()}, name).values())


def dump(tree: Any) -> str:
    """YAML text of plain mappings, lists and scalars, with keys in the order given."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _parse_yaml(text: str, source: str, lines: bool = True) -> Any:
    try:
        tree = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark and lines else None
        found = f"not valid YAML: {error.problem}"
        raise TransductError(found, file=source, line=line) from error
    except yaml.YAMLError as error:
        raise TransductError(f"not valid YAML: {error}", file=source) from error
    # an impossible date; brackets nested thousands deep
    except (ValueError, RecursionError) as error:
        found = f"not valid YAML: {error}; put text in quotes"
        raise TransductError(found, file=source) from error
    require(
        _is_small(tree),
        f"what its aliases (*name) stand for expands to more than {LARGEST:,} values; write none",
        file=source,
    )
    return tree


def _is_small(tree: Any) -> bool:
    """Whether a tree has at most `LARGEST` values, each alias replaced by what it stands for. One
    that holds itself has more."""
    waiting, count = [tree], 0
    while waiting and count + len(waiting) <= LARGEST:
        value, count = waiting.pop(), count + 1
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
    return not waiting


def stages_of(recipe: Recipe) -> list[Recipe]:
    """The recipe of each training in order: the recipe itself, or each of its stages merged over
    it.

    Raises:
        TransductError: if a stage is not a mapping of sections, or has stages itself.
    """
    for number, stage in enumerate(recipe.stages):
        for name in ("stages", "ensemble"):
            require(
                name not in stage,
                "{key} is for the whole recipe; write it above stages",
                key=f"stages[{number}].{name}",
            )
    whole = asdict(recipe) | {"stages": [], "ensemble": False}
    return [
        record(Recipe, merge(whole, stage), f"stages[{i}]") for i, stage in enumerate(recipe.stages)
    ] or [recipe]
