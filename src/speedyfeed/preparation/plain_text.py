"""Texts as a person reads them: without markup, in composed characters.

    <p class="lead">Fish &amp; <b>chip</b>s</p><script>x()</script>  ->  Fish & chips
    a < b and c > d                                                  ->  the same; only names of HTML are tags

Texts of a log and single articles pass through here before anything else reads them, so a model sees neither
tags nor addresses of images, and "Zürich" is one word however it is encoded. Plain texts stay as they are, byte
for byte.
"""

import html
import re
import unicodedata
from html.entities import html5

MAX_PASSES = 8
"""Number of times that what was taken away may uncover more, as escaped markup does."""
_INLINE = (
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|label|mark|nobr|q|rb|rp|rt|ruby|s|"
    "samp|small|span|strike|strong|sub|sup|time|tt|u|var|wbr"
)
_BLOCK = (
    "address|applet|area|article|aside|audio|base|basefont|blockquote|body|br|button|canvas|caption|center|"
    "circle|col|colgroup|datalist|dd|details|dialog|dir|div|dl|dt|embed|fieldset|figcaption|figure|footer|"
    "form|frame|frameset|g|h1|h2|h3|h4|h5|h6|head|header|hgroup|hr|html|iframe|img|input|legend|li|line|link|"
    "main|map|marquee|menu|meta|meter|nav|noframes|noscript|object|ol|optgroup|option|output|p|param|path|"
    "picture|polygon|pre|progress|rect|script|search|section|select|slot|source|style|summary|svg|table|"
    "tbody|td|template|textarea|tfoot|th|thead|title|tr|track|ul|use|video"
)


def _tags(names: str) -> re.Pattern[str]:
    """Opening and closing tags of these names; a value in quotes may hold any character."""
    return re.compile(rf"""</?(?:{names})(?=[\s/>])(?:=\s*"[^"]*"|=\s*'[^']*'|[^<>])*+>""", re.IGNORECASE)


# What is opened and not closed ends with the text, as in a browser; so every pattern takes linear time.
_HIDDEN = re.compile(
    r"<!--.*?(?:-->|\Z)|<!doctype\b[^<>]*>|<(script|style)(?=[\s/>])[^<>]*>.*?(?:</\1\s*>|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_INLINE_TAGS, _BLOCK_TAGS = _tags(_INLINE), _tags(_BLOCK)
_ENTITY = re.compile(
    r"&(?:(?:amp|#0{0,5}38|#x0{0,4}26);)*(#[0-9]{1,7}|#x[0-9a-f]{1,6}|[a-z][a-z0-9]{1,30});", re.IGNORECASE
)


def plain_text(field: str, text: str) -> str:
    """A text of this field (title, abstract or body) without markup, in composed characters (NFC)."""
    return compose(strip_markup(field, text))


def compose(text: str) -> str:
    """Combine letters with their accents where one character is both (NFC)."""
    return unicodedata.normalize("NFC", text)


def strip_markup(field: str, text: str) -> str:
    """Drop tags, comments, scripts and styles, and put characters in place of their entities.

    White space is collapsed in a text with markup; the blocks of a body become its lines.
    """
    plain = text
    for _ in range(MAX_PASSES):
        if "<" not in plain and "&" not in plain:
            break
        before = plain
        plain = _BLOCK_TAGS.sub("\n", _INLINE_TAGS.sub("", _HIDDEN.sub("\n", plain)))
        plain = _ENTITY.sub(_character, plain)
        if plain == before:
            break
    if plain == text:
        return text
    lines = (" ".join(line.split()) for line in plain.splitlines())
    return ("\n" if field == "body" else " ").join(line for line in lines if line)


def _character(entity: re.Match[str]) -> str:
    """The character of an entity; what is none stays as it is."""
    name = entity[1]
    return html.unescape(f"&{name};") if name[0] == "#" else html5.get(f"{name};", entity[0])
