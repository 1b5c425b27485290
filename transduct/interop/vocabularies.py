"""Tokenizers of published models, with their tokens in our order: unknown, begin, end, the others.

A folder has a `tokenizer.json`, which its own code obeys, or SentencePiece models. Of the first we
keep the rules as they are and rename what no text may be cut into.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from transduct import storage
from transduct.data.pieces import HIDDEN
from transduct.data.tokenizer import SIDE_TOKENIZERS, TOKENIZER, Tokenizer
from transduct.data.tokenizer_file import read as read_file
from transduct.errors import TransductError, require
from transduct.interop import sentencepiece

SPECIAL_NAMES, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
# Marian's, of source and target; and the tokenizers that `convert` writes in the library's format.
SIDES, LISTED = ("source.spm", "target.spm"), ("vocab.json", "target_vocab.json")
OWN = (TOKENIZER, SIDE_TOKENIZERS[1])
MODELS = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "source.spm")
LISTS = ("special_tokens_map.json", "added_tokens.json")
# How models name a language: the pattern of a token, and the template of the token or text.
TOKENS = (
    (re.compile(r"__([a-z]{2,3})__"), "__{}__"),
    (re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"), "{}"),
    (re.compile(r"([a-z]{2}_[A-Z]{2})"), "{}"),
)
TEXTS = (
    (re.compile(r"<2([A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*)>"), "<2{to}> "),
    (re.compile(r">>([^<>]+)<<"), ">>{to}<< "),
)
PEGASUS = 103  # tokens before those of a Pegasus tokenizer's pieces
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")  # before those of mBART and NLLB, in place of three


# The languages of M2M-100 and of the model of WMT 2021, in the order of their ids, which no file of
# theirs says.
M2M = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl "
        "gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
        "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl "
        "tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}


@dataclass(frozen=True)
class Words:
    """The vocabulary of a published model.

    Attributes:
        ids: their id of each of our tokens.
        names: the name of each of their tokens, by their id.
        text: the tokenizer in our format.
    """

    ids: list[int]
    names: list[str]
    text: str

    def ours(self, theirs: int) -> int | None:
        """Our id of a token of theirs; the first, if it has two."""
        return self.ids.index(theirs) if theirs in self.ids else None


def special(directory: Path) -> dict[str, Any]:
    """What a folder says of its tokenizer."""
    path = directory / SPECIAL_NAMES
    return storage.read_object(path, "the names of special tokens") if path.exists() else {}


def chat_template(directory: Path) -> str:
    """How a model reads a chat, in Jinja, by a file of its own or among its tokenizer's settings;
    empty if neither says it.

    Raises:
        TransductError: the file is damaged.
    """
    if (path := directory / TEMPLATE).exists():
        return storage.read_file(path, "a chat template").decode("utf-8", "replace")
    found = special(directory).get("chat_template", "")
    if isinstance(found, list):  # of several, for tools and the like
        named = {str(each.get("name")): each for each in found if isinstance(each, dict)}
        found = named.get("default", {}).get("template", "")
    return found if isinstance(found, str) else ""


def in_our_order(size: int, unknown: int, begin: int, end: int, padding: int) -> list[int]:
    """Their ids in our order. The begin token is moved if it only pads, else it gets a row of its
    own beside the one that it has."""
    first = [unknown, begin, end]
    moved = {unknown, end} | ({begin} if begin == padding else set())
    return [*first, *(number for number in range(size) if number not in moved)]


def sides_of(directory: Path, kind: str, settings: Any, begin: int) -> tuple[Words, Words]:
    """The vocabularies of source and target.

    Args:
        kind: the architecture.
        settings: its settings; they name the special tokens by id.
        begin: the token with which outputs begin.

    Raises:
        TransductError: a file is missing or damaged, or does not fit the model.
    """
    if kind != "marian":
        words = words_of(directory, kind, settings, begin, directory / storage.CONFIG)
        return words, words
    if (directory / OWN[0]).exists() and not (directory / SIDES[0]).exists():
        return _of_ours(directory, settings, begin)
    return _of_two(directory, settings, begin)


def _of_ours(directory: Path, settings: Any, begin: int) -> tuple[Words, Words]:
    """Those of a model that `convert` wrote in the library's own format."""
    paths = [directory / name for name in OWN]
    if settings.share_encoder_decoder_embeddings or not paths[1].exists():
        paths[1] = paths[0]  # one tokenizer may have two embedding tables
    found = []
    for path, size in zip(paths, _sizes(settings), strict=True):
        storage.check_file(path, "a tokenizer")
        tokenizer, end = Tokenizer.load(path), settings.eos_token_id
        require(
            (tokenizer.size, begin, end) == (size, Tokenizer.BEGIN, Tokenizer.END),
            f"{path}: {tokenizer.size} tokens, outputs begin after {Tokenizer.BEGIN} and end "
            f"with {Tokenizer.END}; {storage.CONFIG} says {size}, {begin} and {end}: copy "
            "both files again",
        )
        found.append(Words([*range(size)], tokenizer.pieces(range(size)), _unended(path)))
    return found[0], found[1]


def _sizes(settings: Any) -> tuple[int, int]:
    return settings.vocab_size, settings.decoder_vocab_size or settings.vocab_size


def _unended(path: Path) -> str:
    """A tokenizer file without post-processor, padding and truncation, like ours."""
    file = storage.read_object(path, "a tokenizer") | dict.fromkeys(
        ("post_processor", "padding", "truncation")
    )
    return str(tokenizers.Tokenizer.from_str(json.dumps(file)).to_str())


def _of_two(directory: Path, settings: Any, begin: int) -> tuple[Words, Words]:
    """Those of a SentencePiece model for each side, and one list that numbers the pieces of both,
    or a list for each."""
    named, lists = special(directory), [directory / name for name in LISTED]
    both = settings.share_encoder_decoder_embeddings
    if both and named.get("separate_vocabs") and lists[1].exists():
        raise TransductError(
            f"{lists[1]}: a list of its own, {storage.CONFIG} says that both sides share theirs"
        )
    if both or not lists[1].exists():
        lists[1] = lists[0]
    unknown, padding, last = (
        token.get("content", default) if isinstance(token, dict) else token
        for key, default in (("unk_token", "<unk>"), ("pad_token", "<pad>"), ("eos_token", "</s>"))
        for token in [named.get(key, default)]
    )
    numbered = (settings.pad_token_id, begin, settings.eos_token_id)
    found = []
    for side, (path, size) in enumerate(zip(lists, _sizes(settings), strict=True)):
        # The configuration numbers those of the target.
        specials = numbered if both or side else (padding, padding, last)
        names, ids = _numbered(path, size, (unknown, *specials))
        text = sentencepiece.read(directory / SIDES[side], [names[number] for number in ids])
        found.append(Words(ids, names, text))
    return found[0], found[1]


def _numbered(path: Path, size: int, specials: Sequence[int | str]) -> tuple[list[str], list[int]]:
    """Read a list of tokens: the name of each id, and the ids in our order.

    Args:
        specials: unknown, padding, begin and end, by id or name.
    """
    numbers = storage.read_object(path, "the id of each token")
    found = {number for number in numbers.values() if type(number) is int}
    whole = all(name == name.encode("utf-8", "replace").decode() for name in numbers)
    require(
        found != {*range(len(numbers))} or len(numbers) >= size,
        f"{path}: {len(numbers)} tokens, {storage.CONFIG} says {size}: copy both files again "
        "or, if the model's tables were enlarged, run "
        f"model.resize_token_embeddings({len(numbers)}) there and save it",
    )
    require(
        len(numbers) == size and found == {*range(size)} and whole,
        f"{path}: {len(numbers)} tokens, {storage.CONFIG} says {size}; expected each id below "
        "that once, for a name of whole characters: copy both files again",
    )
    unknown, padding, begin, end = (
        numbers.get(name, -1) if isinstance(name, str) else name for name in specials
    )
    first = unknown, begin, end
    require(
        {padding, *first} <= found and unknown not in (begin, end),
        f"{path}: unknown, begin and end of a sentence have the ids {[*first]}, where -1 is "
        "none; expected three, the first different from the others",
    )
    return sorted(numbers, key=numbers.__getitem__), in_our_order(
        size, unknown, begin, end, padding
    )


def words_of(directory: Path, kind: str, settings: Any, begin: int, where: Path) -> Words:
    """The vocabulary of a folder.

    Args:
        kind: the architecture.
        settings: its settings; they name the special tokens by id.
        begin: the token with which outputs begin.

    Raises:
        TransductError: a file is missing or damaged, or does not fit the model.
    """
    size, end, padding = settings.vocab_size, settings.eos_token_id, settings.pad_token_id
    require(
        all(0 <= number < size for number in (begin, end, padding)),
        f"{where}: begin, end and padding are {begin}, {end} and {padding}, of {size} tokens; "
        "expected ids below that",
    )
    if (path := directory / TOKENIZER).exists():
        content = _canonical(path)
        names = _named(content, size, path)
        unknown = _unknown(content, names, path)
        ids = in_our_order(size, unknown, begin, end, padding)
        return Words(ids, names, _renamed(content, names, ids, path))
    path = next((directory / name for name in MODELS if (directory / name).exists()), path)
    require(
        path.name != TOKENIZER,
        f"{directory}: half a model, it holds no {TOKENIZER} and no SentencePiece model; copy "
        "all of its files",
    )
    names = _of_pieces(directory, path, kind, size)
    require("<unk>" in names, f"{path}: has no token <unk>; give the tokenizer of this model")
    ids = in_our_order(size, names.index("<unk>"), begin, end, padding)
    return Words(ids, names, sentencepiece.read(path, [names[number] for number in ids]))


def _canonical(path: Path) -> dict[str, Any]:
    """The content of a tokenizer file, checked and in the library's newest form."""
    try:
        text = read_file(path)
        content: dict[str, Any] = json.loads(str(tokenizers.Tokenizer.from_str(text).to_str()))
    except TransductError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise TransductError(f"{path}: not a tokenizer ({error}); copy it again") from error
    if content["model"]["type"] not in ("BPE", "Unigram"):
        raise TransductError(
            f"{path}: a tokenizer of type '{content['model']['type']}'; expected BPE or Unigram"
        )
    return content


def _entries(content: Mapping[str, Any]) -> dict[str, int]:
    vocabulary = content["model"]["vocab"]
    if content["model"]["type"] == "BPE":
        return dict(vocabulary)
    return {name: number for number, (name, _) in enumerate(vocabulary)}


def _named(content: Mapping[str, Any], size: int, path: Path) -> list[str]:
    """The name of each id of the model; what the tokenizer lacks is named by its number."""
    entries = _entries(content)
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    beyond = [name for name, number in entries.items() if number >= size and name not in added]
    require(
        not beyond,
        f"{path}: {len(entries):,} tokens, {storage.CONFIG} says {size:,}; it is of another "
        "model: copy both files again",
    )
    known = {number: name for name, number in (entries | added).items() if number < size}
    require(
        len(known) >= size / 2,
        f"{path}: {len(known):,} tokens, {storage.CONFIG} says {size:,}, of which it names "
        f"{100 * len(known) // size} %; it is of another model: copy both files again",
    )
    return [known.get(number, f"<unnamed {number}>") for number in range(size)]


def _unknown(content: Mapping[str, Any], names: Sequence[str], path: Path) -> int:
    model = content["model"]
    if model["type"] == "Unigram" and model["unk_id"] is not None:
        return int(model["unk_id"])
    name = model.get("unk_token") or "<unk>"
    require(name in names, f"{path}: has no unknown token; give the tokenizer of this model")
    return names.index(name)


def _renamed(
    content: Mapping[str, Any], names: Sequence[str], ids: Sequence[int], path: Path
) -> str:
    """A tokenizer file with its tokens in our order. What no text may be cut into has a name that
    begins with a blank."""
    entries = _entries(content)
    added = {token["content"]: token for token in content["added_tokens"]}
    hidden = {name for name, token in added.items() if token["special"]}
    hidden |= {name for name in names if name not in entries and name not in added}
    ours = [HIDDEN + name for name in Tokenizer.SPECIALS]
    for number in ids[len(ours) :]:
        name = names[number]
        clash = HIDDEN if name in Tokenizer.SPECIALS else ""
        ours.append(HIDDEN + clash + name if name in hidden else name)
    model = dict(content["model"])
    if model["type"] == "BPE":
        model["vocab"] = {name: number for number, name in enumerate(ours)}
        model["unk_token"] = ours[0]
        model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    else:
        scores = dict(model["vocab"])
        theirs = [names[number] for number in ids]
        model["vocab"] = [
            [own, scores.get(name, 0.0)] for own, name in zip(ours, theirs, strict=True)
        ]
        model["unk_id"] = 0
    place = {name: number for number, name in enumerate(ours)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokens = [
        {**flags, "content": name, "id": number, "special": True}
        for name, number in place.items()
        if name.startswith(HIDDEN)
    ]
    tokens += [
        {**token, "id": place[name]}
        for name, token in added.items()
        if name in place and not token["special"]
    ]
    file = {
        **content,
        "model": model,
        "added_tokens": sorted(tokens, key=lambda token: token["id"]),
        **dict.fromkeys(("post_processor", "padding", "truncation")),
    }
    try:
        text = str(tokenizers.Tokenizer.from_str(json.dumps(file)).to_str())
        Tokenizer(text)
    except Exception as error:  # the library raises nothing narrower
        raise TransductError(f"{path}: not a tokenizer ({error}); copy it again") from error
    return text


def _of_pieces(directory: Path, path: Path, kind: str, size: int) -> list[str]:
    """The name of each id, of a SentencePiece model and what a folder says beside it."""
    pieces = sentencepiece.pieces_of(path)
    listed = _listed(directory)
    if (directory / "vocab.json").exists():  # M2M-100
        numbers = storage.read_object(directory / "vocab.json", "the id of each token")
        require(
            all(type(number) is int for number in numbers.values()),
            f"{directory / 'vocab.json'}: holds an id that is no number",
        )
        known = {number: name for name, number in numbers.items()}
        codes = M2M.get(str(special(directory).get("language_codes")), M2M["m2m100"])
        missing = [f"__{code}__" for code in codes.split() if f"__{code}__" not in numbers]
        known |= {len(numbers) + place: name for place, name in enumerate(missing)}
    elif kind == "pegasus":
        unused = [f"<unk_{number}>" for number in range(2, PEGASUS)]
        first = ["<pad>", "</s>", "<mask_1>", "<mask_2>", *unused]
        known = dict(enumerate(first))
        known |= {PEGASUS + place: name for place, name in enumerate(pieces) if place > 1}
    elif kind in ("mbart", "m2m_100", "bart"):
        known = dict(enumerate([*FAIRSEQ, *pieces[3:]]))
        languages = [name for name in listed if any(p.fullmatch(name) for p, _ in TOKENS)]
        known |= {len(known) + place: name for place, name in enumerate([*languages, "<mask>"])}
    else:
        known = dict(enumerate(pieces))
        extra = [name for name in listed if re.fullmatch(r"<extra_id_\d+>", name)]
        known |= {
            len(pieces) + len(extra) - 1 - place: f"<extra_id_{place}>"
            for place in range(len(extra))
            if f"<extra_id_{place}>" not in pieces
        }
    beyond = [name for number, name in known.items() if number >= size and name in {*pieces}]
    require(
        not beyond and len(known) >= size / 2,
        f"{path}: {len(pieces):,} pieces, {storage.CONFIG} says {size:,} tokens; it is of "
        "another model: copy both files again",
    )
    return [known.get(number, f"<unnamed {number}>") for number in range(size)]


def _listed(directory: Path) -> list[str]:
    """The special tokens that a folder lists, in its order."""
    settings = special(directory)
    found: list[Any] = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        found += settings.get(key) or []
    numbered = settings.get("added_tokens_decoder")
    if isinstance(numbered, dict):
        found += numbered.values()
    for name in LISTS:
        if (directory / name).exists():
            listed = storage.read_object(directory / name, "special tokens")
            found += listed.get("additional_special_tokens") or []
            if name == LISTS[1]:
                found += sorted(
                    listed, key=lambda each: (not isinstance(listed[each], int), listed[each])
                )
    names = [each.get("content") if isinstance(each, dict) else each for each in found]
    return [*dict.fromkeys(name for name in names if isinstance(name, str))]


def languages_in(names: Sequence[str]) -> tuple[list[str], str, str]:
    """The languages that the tokens of a vocabulary name: their codes, the template of a token, and
    that of a text before a source; the latter empty where there is none."""
    for patterns, as_text in ((TOKENS, False), (TEXTS, True)):
        for pattern, template in patterns:
            codes = [found[1] for name in names if (found := pattern.fullmatch(name))]
            if codes:
                return codes, "" if as_text else template, template if as_text else ""
    return [], "", ""
