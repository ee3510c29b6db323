"""Whether HTML closes what it opens."""

import pytest

from xla_nb.record.displays import is_closed


@pytest.mark.parametrize(
    "html",
    [
        "",
        "words, 1 < 2 & more",
        "<b>bold</b><br><img src=x>",
        "<p>one</p><ul><li>a</li></ul>",
        "<table><tr><td>1</td></tr></table>",
        "<svg><path d='M0'/><g><circle/></g></svg>",
        "<iframe src='x'></iframe>",
        "<DIV title='a > b'>x</div>",
        "<a href=http://there/ data-x='1'class=b>x</a>",
        "<!DOCTYPE html><p>x</p>",
        "<style>p > a {}</style>",
        "<html><head></head><body><h1>page</h1></body></html>",
    ],
)
def test_html_that_ends_what_it_begins_is_closed(html):
    assert is_closed(html)


@pytest.mark.parametrize(
    "html",
    [
        "<div>",
        "<div/>",
        "<b>bold",
        "</div>",
        "<p></div></p>",
        "<!-- open",
        "<div class='",
        "<style>p",
        "<textarea>rest",
        "<title>" * 3,
        "<i>" * 1000 + "</i>" * 1000,
        "<a title='it",
        "<b><i></b></i>",
        "<p>one<p>two",  # which a browser ends by itself
    ],
)
def test_html_that_reaches_into_what_follows_is_not(html):
    assert not is_closed(html)


@pytest.mark.parametrize(
    "html",
    [
        """<div a"><!--"></div>""",
        """<style title="></style>">""",
        "<style-x><!--</style>",
        "<style></style x><!--</style>",
        "<svg><style><!--</style></svg>",
        "<svg><title><!--</title></svg>",
        "<svg><![CDATA[></svg>",
        "<select><style><!--</style></select>",
        "<xmp><!--</xmp>",
        "<plaintext></plaintext>",
        "<\N{LATIN SMALL LETTER LONG S}tyle><!--</\N{LATIN SMALL LETTER LONG S}tyle>",
        "<!-- --!> <div>",
    ],
)
def test_html_that_only_looks_closed_is_not(html):
    assert not is_closed(html)
