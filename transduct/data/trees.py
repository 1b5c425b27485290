"""Bracketed trees of the Penn Treebank (Marcus et al. 1993), and their views: words, tags and
linearised brackets."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from transduct.errors import TransductError

PUNCTUATION = (",", ":", "``", "''", ".")  # tags that evalb's COLLINS.prm ignores
WORD, ROOT, TRACE = "XX", "TOP", "-NONE-"
# the treebank's notation for brackets that are words
ESCAPES = str.maketrans({"(": "-LRB-", ")": "-RRB-"})


@dataclass(frozen=True)
class Tree:
    """A constituent: a label, and children that are constituents or words; a tag is a label over a
    single word."""

    label: str
    children: tuple["Tree | str", ...]

    @classmethod
    def parse(cls, text: str) -> "Tree":
        """Parse a tree such as "(S (NP (PRP It)) (VP (VBZ works)))"; labels may be empty.

        Raises:
            ValueError: the brackets do not match, one is empty, or the text is not a single tree.
        """
        stack: list[tuple[str, list[Tree | str]]] = [("", [])]
        for opened, closed, word in re.findall(r"(\([^\s()]*)|(\))|([^\s()]+)", text):
            if opened:
                stack.append((opened[1:], []))
            elif closed and len(stack) == 1:
                raise ValueError("found a closing bracket too many")
            elif closed:
                label, children = stack.pop()
                if not children:
                    raise ValueError(f"found the empty bracket '({label})'")
                stack[-1][1].append(cls(label, tuple(children)))
            else:
                stack[-1][1].append(word)
        if len(stack) > 1:
            raise ValueError(f"found {len(stack) - 1} brackets that are not closed")
        match stack[0][1]:
            case [Tree() as tree]:
                return tree
            case found:
                raise ValueError(f"found {len(found)} words or trees beside each other")

    def __str__(self) -> str:
        return f"({' '.join([self.label, *map(str, self.children)])})"

    @property
    def is_tag(self) -> bool:
        """Whether it is a tag over its word."""
        return len(self.children) == 1 and isinstance(self.children[0], str)

    def constituents(self) -> Iterator["Tree"]:
        """The children; raises ValueError if one is a word without a tag."""
        for child in self.children:
            if isinstance(child, str):
                raise ValueError(f"found the word '{child}' without a tag of its own")
            yield child

    def leaves(self) -> Iterator[tuple[str, str]]:
        """The (label, word) pairs, in order."""
        for child in self.children:
            if isinstance(child, Tree):
                yield from child.leaves()
            else:
                yield self.label, child


def cleaned(tree: Tree) -> Tree | None:
    """A tree as parsers are trained on; None if it holds only traces.

    Removes traces and the constituents they leave empty, function tags and indices ("NP-SBJ-1"
    becomes "NP"), and an outer bracket without a label; several trees in one such bracket are put
    under TOP.
    """
    if tree.label:
        pruned = _pruned(tree)
        return pruned if pruned is None or not pruned.is_tag else Tree(ROOT, (pruned,))
    children = tuple(filter(None, map(_pruned, tree.constituents())))
    if len(children) == 1 and not children[0].is_tag:
        return children[0]
    return Tree(ROOT, children) if children else None


def _pruned(tree: Tree) -> Tree | None:
    if tree.label == TRACE:
        return None
    if tree.is_tag:
        return tree
    children = tuple(filter(None, map(_pruned, tree.constituents())))
    return Tree(re.split("[-=|]", tree.label)[0] or tree.label, children) if children else None


def linearised(tree: Tree) -> str:
    """Linearise a tree as a sequence of tokens (Vinyals et al. 2015): "(S (NP XX )NP (VP XX )VP .
    )S".

    Closing brackets repeat the label; a word becomes XX, or its tag if that is punctuation.
    """
    tokens = [f"({tree.label}"]
    for child in tree.constituents():
        if child.is_tag:
            tokens.append(child.label if child.label in PUNCTUATION else WORD)
        else:
            tokens.append(linearised(child))
    return " ".join([*tokens, f"){tree.label}"])


def bracketed(linear: str, words: Sequence[str]) -> str:
    """Insert `words` into a linearised tree: "(S (NP The cat) (VP sat) .)".

    Accepts any text: open brackets are closed at the end, unmatched closing brackets are ignored,
    surplus words are appended to the outermost constituent, places without a word are removed along
    with the constituents they leave empty, and several trees are put under TOP. Parentheses in
    words become -LRB- and -RRB-, as in the treebank.
    """
    rest = iter([word.translate(ESCAPES) for word in words])
    stack: list[tuple[str, list[str]]] = [(ROOT, [])]

    def close() -> None:
        label, children = stack.pop()
        if children:
            stack[-1][1].append(f"({label} {' '.join(children)})")

    for token in linear.split():
        if token.startswith("(") and len(token) > 1:
            stack.append((token[1:], []))
        elif token.startswith(")") and len(token) > 1:
            if len(stack) > 1:
                close()
        elif word := next(rest, ""):
            stack[-1][1].append(word)
    while len(stack) > 1:
        close()
    match stack[0][1]:
        case [tree] if tree.startswith("("):
            return " ".join([tree.removesuffix(")"), *rest]) + ")"
        case children:
            text = " ".join([*children, *rest])
            return f"({ROOT} {text})" if text else ""


VIEWS: dict[str, Callable[[Tree], str]] = {
    "words": lambda tree: " ".join(word for _, word in tree.leaves()),
    "tags": lambda tree: " ".join(tag for tag, _ in tree.leaves()),
    "brackets": linearised,
}


def read_tree(line: str, views: Sequence[str]) -> list[str]:
    """The given `VIEWS` of a tree after cleaning; "" for an empty one.

    Raises:
        TransductError: the line is not a bracketed tree with tags over its words.
    """
    try:
        tree = cleaned(Tree.parse(line))
        return ["" if tree is None else VIEWS[view](tree) for view in views]
    except (ValueError, RecursionError) as error:
        found = "brackets too deep" if isinstance(error, RecursionError) else error
        expected = "expected one tree a line, such as (S (NP (PRP It)) (VP (VBZ works)))"
        raise TransductError(f"{found}, {expected}; fix or remove the line") from error
