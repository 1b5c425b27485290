"""The models of a server: their names and pairs of languages, and which of them are loaded."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, permutations
from pathlib import Path
from typing import Any

from transduct.data.languages import SCRIPTS, find, is_language, listed, named, nearest, parts_of
from transduct.errors import TransductError, require
from transduct.inference.engine import captures
from transduct.interop.vocabularies import chat_template
from transduct.predictors.base import configuration, load, model_directory, predictor_class
from transduct.predictors.options import with_options
from transduct.serving.hosted import Hosted
from transduct.serving.jobs import ignore
from transduct.serving.requests import Problem
from transduct.storage import CONFIG

UNDETERMINED = "und"  # the language of a model whose pair nobody has named
PREFIX = "transduct:"  # of the names of pairs, such as transduct:en-ko
MOST_NAMED = 200  # pairs of one model that a list of models names
Pair = tuple[str, str]
log = logging.getLogger("transduct")


@dataclass(eq=False)
class Served:
    """A model that requests may ask for, loaded or not.

    Attributes:
        name: what requests call it.
        path: where it is; None for one that is given loaded.
        task: of it, such as translation.
        verbs: what it can do; see `Predictor`.
        template: how a language model reads a chat, in Jinja; empty if nobody says.
        codes: a code of each of its languages -> its own; empty if it has one pair.
        pairs: of languages, by these codes; empty if they are unknown, or it does not translate.
        size: the bytes of its weights.
        hosted: it, if it is loaded.
        used: when it was, among the others.
    """

    name: str
    path: Path | None = None
    own_pair: Pair | None = None
    task: str = ""
    reads: str = "text"
    paints: bool = False
    verbs: frozenset[str] = frozenset()
    template: str = ""
    codes: dict[str, str] = field(default_factory=dict)
    pairs: frozenset[Pair] = frozenset()
    size: int = 0
    stamp: tuple[Any, ...] = ()
    hosted: Hosted | None = None
    used: int = 0

    @property
    def translates(self) -> bool:
        """Whether it translates."""
        return "translate" in self.verbs

    @classmethod
    def of_words(cls, words: str) -> "Served":
        """The model that a command names: PATH, NAME=PATH or en-de=PATH.

        Raises:
            TransductError: there is none.
        """
        name, _, path = words.rpartition("=")
        served = cls(name, Path(path or words), pair_of(name))
        served.read()
        served.name = name or Path(path or words).resolve().name
        return served

    def describe(self, kind: Any, config: Mapping[str, Any]) -> None:
        """Take over what a class and a `config.json` say."""
        self.reads, self.paints, self.verbs = kind.reads, kind.paints, kind.able(config)
        self.task = config.get("task", "")
        self.codes = _short((config.get("languages") or {}).get("codes") or [])
        source, target = (config.get(name) for name in ("source_language", "target_language"))
        pair = self.own_pair
        if pair is None and isinstance(source, str) and isinstance(target, str):
            pair = _code(source), _code(target)
        self.pairs = frozenset({pair} if pair else permutations(self.codes, 2))

    def read(self) -> bool:
        """Read what the model's folder says, again or for the first time, and return whether it
        has changed.

        Raises:
            TransductError: there is no model.
        """
        assert self.path is not None
        directory = model_directory(self.path)
        weights = sorted(directory.rglob("*.safetensors"))
        stats = [path.stat() for path in (directory / CONFIG, *weights)]
        self.template = chat_template(directory)
        before, self.stamp = self.stamp, tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in stats)
        if before == self.stamp:
            return False
        self.describe(predictor_class(directory), configuration(directory))
        self.size = sum(each.st_size for each in stats[1:])
        return True

    @property
    def separate(self) -> str | None:
        """Why its texts join no running batch; empty if they do, None while it is not loaded."""
        if not self.verbs & {"translate", "continued"}:
            return "it does not write texts token by token"
        if self.hosted is None:
            return None
        model = self.hosted.model
        return "its searches are captured on a GPU" if captures(model.model, model.decoding) else ""

    def options(self, source: str, target: str) -> dict[str, str]:
        """The options of a call that translates from one language into another."""
        named = {"source_language": source, "target_language": target}
        return {name: self.codes[code] for name, code in named.items() if code in self.codes}


@dataclass(frozen=True)
class Step:
    """One translation on the way from one language to another."""

    served: Served
    source: str
    target: str


class Models:
    """The models of a server.

    Args:
        every: the models, the first for requests that name none.
        waiting: how many inputs may wait for each.
        memory: the most bytes of weights to hold; None for no limit.
        pivot: whether two models are chained where none has a pair.
        options: laid over the options of each model.

    Attributes:
        watch: called after each batch; see `Hosted`.
    """

    def __init__(
        self,
        every: Sequence[Served],
        waiting: int = 1_000,
        memory: int | None = None,
        pivot: bool = True,
        device: str = "auto",
        precision: str = "float32",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.every, self.waiting, self.memory, self.pivot = list(every), waiting, memory, pivot
        self.watch: Callable[[int, float], None] = ignore
        self._load = device, precision
        self._options, self._ticks = dict(options or {}), count(1)
        self._loading, self._freed, self._retired = asyncio.Lock(), asyncio.Event(), set[Hosted]()
        names = [each.name for each in self.every]
        for each in self.every:
            name, megabytes = each.name, -(-each.size // 10**6)
            require(
                names.count(name) == 1,
                f"two models are called '{name}'; name one: NAME={name}",
            )
            require(
                memory is None or each.size <= memory,
                f"--memory is too little for {name}; it takes {megabytes} MB",
            )
            if each.hosted is not None:
                each.hosted = self._hosted(each, each.hosted.model)

    # what there is

    @property
    def loaded(self) -> list[Hosted]:
        """The models that are loaded."""
        return [each.hosted for each in self.every if each.hosted is not None]

    @property
    def advice(self) -> int:
        """The estimated seconds until everything now here is done."""
        return max((each.batcher.advice for each in self.loaded), default=1)

    @property
    def status(self) -> str:
        """ok, warming or broken."""
        found = {each.status for each in self.loaded}
        return next((each for each in ("broken", "warming") if each in found), "ok")

    @property
    def translators(self) -> list[Served]:
        """The models that translate."""
        return [each for each in self.every if each.translates]

    @cached_property
    def pairs(self) -> dict[Pair, Served]:
        """Each pair of languages, and the first model that has it. Kept until models are read
        again: some have ten thousand pairs."""
        found: dict[Pair, Served] = {}
        for each in self.translators:
            for pair in sorted(each.pairs):
                found.setdefault(pair, each)
        return found

    @property
    def open(self) -> Served | None:
        """The lone translator, if no pair is known of it: it answers every pair."""
        found = self.translators
        return found[0] if len(found) == 1 and not found[0].pairs else None

    def targets(self, source: str) -> list[str]:
        """The languages that a source language can be translated into."""
        pairs = self.pairs
        near = list(dict.fromkeys(target for start, target in pairs if start == source))
        far = [t for middle in near for start, t in pairs if self.pivot and start == middle]
        return [each for each in dict.fromkeys([*near, *far]) if each != source]

    @property
    def sources(self) -> list[str]:
        """The languages that can be translated from."""
        return list(dict.fromkeys(source for source, _ in self.pairs))

    def languages(self) -> list[dict[str, Any]]:
        """Each source language, with its targets."""
        targets = {each: self.targets(each) for each in self.sources}
        if self.open is not None or not targets:
            targets = {UNDETERMINED: [UNDETERMINED]}
        return [{"code": k, "name": self.name_of(k), "targets": v} for k, v in targets.items()]

    def name_of(self, code: str) -> str:
        """The English name of a language."""
        return named(code) or ("Undetermined" if code == UNDETERMINED else code)

    def names(self) -> list[str]:
        """The names of all models, and of the pairs of languages."""
        few = [pair for pair, served in self.pairs.items() if len(served.pairs) <= MOST_NAMED]
        return [each.name for each in self.every] + [f"{PREFIX}{a}-{b}" for a, b in few]

    # finding one

    def named(self, name: str | None, verb: str = "predict") -> Served:
        """The model of a name; the first that has the verb for none.

        Raises:
            Problem: there is none.
        """
        able = [each for each in self.every if verb == "predict" or each.translates]
        if not name and able:
            return able[0]
        for each in self.every:
            if each.name == name:
                return each
        known = listed(each.name for each in self.every)
        raise Problem(404, f"no model is called '{name or verb:.60}'; there are: {known}", "model")

    def route_of_name(self, name: str | None) -> tuple[Served | None, Pair | None]:
        """The model or the pair that a request for a translation names.

        Raises:
            Problem: there is neither.
        """
        if not name or any(each.name == name for each in self.every):
            return (self.named(name) if name else None), None
        pair = pair_of(name.removeprefix(PREFIX))
        if pair is None or (pair not in self.pairs and not self._middles(*pair)):
            return self.named(name), None  # which says what there is
        return None, pair

    def code(self, given: str, target: bool = False) -> str:
        """The code of a language as requests name it.

        Raises:
            Problem: no model has it.
        """
        if self.open is not None or not given:
            return given
        codes = list(dict.fromkeys(pair[target] for pair in self.pairs))
        try:
            return find(given, codes)
        except TransductError as error:
            way = "into" if target else "from"
            known = nearest(given.strip().lower(), codes, "there are:")
            raise Problem(
                400,
                f"no model translates {way} '{given:.40}'{known}",
                "target" if target else "source",
            ) from error

    def route(self, source: str, target: str, served: Served | None = None) -> list[Step]:
        """The models that translate one after another.

        Args:
            served: the model to use, where the request names one.

        Raises:
            Problem: none does.
        """
        served = served or self.open
        if served is not None and (not served.pairs or (source, target) in served.pairs):
            return [Step(served, source, target)]
        if served is None and (source, target) in self.pairs:
            return [Step(self.pairs[source, target], source, target)]
        if served is None and (middles := self._middles(source, target)):
            ends = (source, middles[0]), (middles[0], target)
            return [Step(self.pairs[pair], *pair) for pair in ends]
        known = listed(f"{a}-{b}" for a, b in (served.pairs if served else self.pairs))
        raise Problem(400, f"no model translates {source}-{target}; there are: {known}", "target")

    def _middles(self, source: str, target: str) -> list[str]:
        """The languages over which two models can be chained."""
        pairs = self.pairs
        if not self.pivot or source == target:
            return []
        return [b for a, b in pairs if a == source and (b, target) in pairs]

    # loading

    def load(self) -> None:
        """Load what fits, before the server begins.

        Raises:
            TransductError: a model cannot be loaded.
        """
        held = 0
        for each in self.every:
            held += each.size
            if each.hosted is None and (self.memory is None or held <= self.memory):
                each.hosted = self._loaded(each)

    def _loaded(self, served: Served) -> Hosted:
        model = load(str(served.path), *self._load)
        if self._options:
            model.decoding = with_options(model.decoding, self._options)
        return self._hosted(served, model)

    def _hosted(self, served: Served, model: Any) -> Hosted:
        return Hosted(model, served.name, self.waiting, lambda *batch: self.watch(*batch))

    def start(self) -> None:
        """Begin to answer requests; in the event loop."""
        for each in self.loaded:
            each.start()

    def stop(self) -> None:
        """Answer no more."""
        for each in [*self.loaded, *self._retired]:
            each.stop()

    @asynccontextmanager
    async def use(self, served: Served) -> AsyncIterator[Hosted]:
        """A model, which is loaded if need be and stays as long as it is used."""
        if served.hosted is None:
            async with self._loading:
                await self._load_late(served)
        assert served.hosted is not None
        hosted, served.used = served.hosted, next(self._ticks)
        hosted.users += 1
        try:
            yield hosted
        finally:
            hosted.users -= 1
            self._freed.set()
            if not hosted.users and hosted in self._retired:
                self._retired.discard(hosted)
                hosted.stop()

    async def _load_late(self, served: Served) -> None:
        """Load a model, once there is room; the one unused longest goes, never one with work."""
        while served.hosted is None:
            others = [(each, each.hosted) for each in self.every if each.hosted is not None]
            total = served.size + sum(each.size for each, _ in others)
            idle = [pair for pair in others if not pair[1].users and pair[0].path is not None]
            if self.memory is None or total <= self.memory:
                hosted = await asyncio.to_thread(self._loaded, served)
                hosted.start()
                served.hosted = hosted
            elif idle:
                oldest, hosted = min(idle, key=lambda pair: pair[0].used)
                hosted.stop()
                oldest.hosted = None
            else:
                self._freed.clear()
                await self._freed.wait()

    async def reload(self) -> None:
        """Read the models' folders again. A changed model answers from now on; requests under way
        end with the old one. One that cannot be read stays as it is."""
        for each in self.every:
            try:
                changed = each.path is not None and each.read()
                vars(self).pop("pairs", None)
                if not changed or each.hosted is None:
                    continue
                async with self._loading:
                    fresh = await asyncio.to_thread(self._loaded, each)
            except TransductError as error:
                log.error("%s stays as it was: %s", each.name, error)
                continue
            old, each.hosted = each.hosted, fresh
            fresh.start()
            if old is not None and old.users:
                self._retired.add(old)
            elif old is not None:
                old.stop()


def pair_of(name: str) -> Pair | None:
    """The pair of languages in a name such as en-de or zh-Hans-en, or None."""
    parts = name.split("-")
    for place in range(1, len(parts)):
        both = "-".join(parts[:place]), "-".join(parts[place:])
        if all(is_language(each) and each[:2].isascii() for each in both):
            return _code(both[0]), _code(both[1])
    return None


def _code(given: str) -> str:
    """The shortest code of a language; its script stays if it is not the usual one."""
    key, script = parts_of(given)
    return key if script in ("", SCRIPTS.get(key, script)) else f"{key}-{script.title()}"


def _short(codes: Iterable[str]) -> dict[str, str]:
    """A code of each language -> a model's own code of it."""
    found: dict[str, str] = {}
    for own in codes:
        found.setdefault(_code(own), own)
    return found
