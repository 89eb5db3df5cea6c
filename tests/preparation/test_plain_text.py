"""Texts without markup, checked by eye; and a log with markup, or with accents apart, as the plain one."""

import unicodedata

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedyfeed.cli.prepare import print_summary
from speedyfeed.data.store import DOCUMENT_FREQUENCIES
from speedyfeed.encoding.inputs import Articles, open_packed
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.plain_text import plain_text
from speedyfeed.preparation.prepare import prepare

PAGE = (
    '<div class="article-body js-9f3ac1"><p data-nid="8842315">The council votes on the budget &amp; transport'
    '&nbsp;plan</p><img src="https://cdn.example.org/7f3e2a9c41b8.jpg?w=640&h=360" alt="5 > 4"></div>'
)
PIECES = [
    "a",
    " ",
    "\n",
    "<",
    ">",
    "&",
    ";",
    "<p class='x>y'>",
    "</b>",
    "<b>",
    "<script>",
    "</script>",
    "<!--",
    "-->",
    "&amp;",
    "&lt;",
    "&gt;",
    "&#39;",
    "b",
    "amp;",
    "/",
    '="',
    "u\u0308",
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PAGE, "The council votes on the budget & transport plan"),
        ("<P>one<br/>two</p>\r\n\n<p>th<b>r</b>ee", "one\ntwo\nthree"),
        ("x<script>var a = '<p>';</script>y<STYLE>p {}</STYLE ><!-- <b> -->z", "x\ny\nz"),
        ("&lt;p&gt;It&amp;#8217;s &amp;lt;b&amp;gt;here", "It’s here"),  # escaped, once or twice
        ("cut in <script>alert(1)", "cut in"),
        ("Z\u0075\u0308rich", "Zürich"),
    ],
)
def test_markup_is_taken_out(text, expected):
    assert plain_text("body", text) == expected
    assert plain_text("title", text) == expected.replace("\n", " ")


@pytest.mark.parametrize(
    "text",
    [
        "a < b and c > d",
        "I <3 it",
        "AT&T, R&D",
        "x &foo; &notit; y",
        "<quote> <pnews>",
        " two  spaces\n\n",
        "&copy=1",
    ],
)
def test_other_texts_stay_as_they_are(text):
    assert plain_text("body", text) == plain_text("title", text) == text


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_a_plain_text_is_plain(text):
    plain = plain_text("body", text)
    assert plain_text("body", plain) == plain
    assert unicodedata.is_normalized("NFC", plain)
    if "<" not in text and "&" not in text:
        assert plain == unicodedata.normalize("NFC", text)


def store_of(folder, titles, bodies):
    folder.mkdir()
    items = pa.table({"item": ["a", "b"], "title": titles, "body": bodies})
    clicks = pa.table({"user": ["u"] * 4, "item": ["a", "b"] * 2, "time": [1_600_000_000 + n for n in range(4)]})
    pq.write_table(items, folder / "items.parquet")
    pq.write_table(clicks, folder / "interactions.parquet")
    return prepare(folder, folder / "store", PrepareConfig()).store


def test_a_log_with_markup_is_the_plain_log_and_so_are_its_articles(tmp_path, capsys):
    titles = ["Caf\u00e9 & budget", "हिन्दी समाचार"]
    written = [unicodedata.normalize("NFD", titles[0]).replace("&", "&amp;"), titles[1]]
    bodies = ["The council votes on the budget & transport plan", "Caf\u00e9"]
    plain = store_of(tmp_path / "plain", titles, bodies)
    other = store_of(tmp_path / "other", written, [PAGE, bodies[1]])
    news = ("news.parquet", "bodies.parquet", DOCUMENT_FREQUENCIES)
    arrays = [name for name in plain.manifest.files if name.startswith(("news/", "word_tokens/"))]
    assert len(arrays) > 10
    for name in (*news, *arrays):
        assert plain.manifest.files[name] == other.manifest.files[name], name
    counts = [
        (one.texts_with_markup, one.texts_decomposed)
        for one in (plain.manifest.counts.news, other.manifest.counts.news)
    ]
    assert counts == [(0, 0), (2, 1)]
    print_summary(other)
    summary = capsys.readouterr().out
    assert "bodies with HTML: 2;" in summary
    assert "characters of their own: 1;" in summary
    pack = Articles(other.text_facts, document_frequencies=other.document_frequencies, encoder="minilm")
    packed = pack([(written[0], "", PAGE), (titles[1], "", unicodedata.normalize("NFD", bodies[1]))])
    assert packed.tokens_T.tolist() == open_packed(plain).tokens_T.tolist()
