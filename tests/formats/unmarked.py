"""Documents whose texts are translated without their marks, to test what stands around them."""

from transduct.formats import marked
from transduct.formats.documents import Document


def translated(document, translate):
    """The document with what `translate` makes of its texts; marks are put in place without
    links."""
    texts = translate([*map(marked.plain, document.segments)])
    return document.translated(map(marked.placed, document.segments, texts))


def upper(texts):
    return [f"«{text.upper()}»" for text in texts]


def made(kind, content, translate=upper):
    """A document of a kind with what `translate` makes of its texts, or with these texts."""
    translations = (lambda _: translate) if isinstance(translate, list) else translate
    return translated(Document(kind, "a", content.encode()), translations).decode()


def texts_of(kind, content):
    return [marked.plain(each) for each in Document(kind, "a", content.encode()).segments]
