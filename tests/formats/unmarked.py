"""Documents whose texts are translated without their marks, to test what stands around them."""

from transduct.formats import marked


def translated(document, translate):
    """The document with what `translate` makes of its texts; marks are put in place without
    links."""
    texts = translate([*map(marked.plain, document.segments)])
    return document.translated(map(marked.placed, document.segments, texts))
