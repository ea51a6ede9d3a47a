"""Pages: well-formed, self-contained, and nothing that a model is called can break out of its place."""

import json
import re
from html.parser import HTMLParser

from hetero_tvm.pages.page import Html, fragment, name, page, retype, section, share_bar, table, text, tiles

EVIL = "</script><script>alert(1)</script>&\"'"
VOID = {"meta", "!doctype", "wbr"}


class Tree(HTMLParser):
    """Parser that fails on elements that are not closed where they should be."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.data = [], [], ""

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.data += data


def parsed(markup):
    tree = Tree()
    tree.feed(markup)
    tree.close()
    assert tree.open == []
    return tree


def test_a_page_is_whole_and_alone():
    parts = [
        tiles([("a call", "1 ms")]),
        section("Kernels", table(("kernel", "ms"), [(EVIL, 1.5)], numbers=(1,)), EVIL),
        section("Empty"),
    ]
    markup = page(EVIL, EVIL, parts, {"name": EVIL})
    tree = parsed(markup)
    assert [tag for tag, _ in tree.seen].count("script") == 1
    assert json.loads(tree.data) == {"name": EVIL}
    assert "<!--" not in page("", "", [], {"name": "<!--<script>"})  # after it, "</script>" ends nothing
    assert not [a for _, a in tree.seen if {"src", "href"} & set(a)] and "http" not in markup
    assert "prefers-color-scheme: dark" in markup and "Empty" not in markup


def test_what_is_html_stays_html():
    assert text(Html("<b>x</b>")) == "<b>x</b>" and text("<b>") == "&lt;b&gt;"
    assert share_bar(None) == "" and "25.0%" in share_bar(0.25)


def test_a_fragment_leaves_the_notebook_alone():
    markup = fragment(section("A", "b"))
    parsed(markup)
    style = re.search("<style>(.*)</style>", markup, re.S)[1]
    rules = re.findall(r"([^{}]+)\{[^{}]*\}", style)
    selectors = [one.strip() for rule in rules for one in rule.split(",")]
    assert {".hetero-tvm.hetero-tvm", ".hetero-tvm.hetero-tvm td.t"} <= set(selectors)
    assert all(one == ":root" or one.startswith(".hetero-tvm.hetero-tvm") for one in selectors), selectors
    # The dark colours and what is for telephones stay in their @media, tables in their @container.
    assert style.count("{") == style.count("}") == len(rules) + style.count("@")


def test_cells_name_their_columns_where_a_row_becomes_a_paragraph():
    wide = table(("kernel", "ms", EVIL), [("a", 1.5, "x")], numbers=(1,))
    cells = [attributes.get("data-of") for tag, attributes in parsed(wide).seen if tag == "td"]
    assert cells == ["kernel", "ms", EVIL] and 'class="wide rows"' in wide
    assert "rows" not in table(("fusion", "count"), [("gelu", 2)])
    assert 'class="wide rows many"' in table("abcdefgh", ["12345678"])


def test_options_of_a_command_stay_whole():
    markup = retype("python -m hetero_tvm.tune 'a  b' --out out")
    parsed(markup)
    assert '<span class="word">--out</span> <span' in markup
    assert re.sub("<[^>]*>", "", markup) == text("python -m hetero_tvm.tune 'a  b' --out out")


def test_names_may_be_broken_after_their_parts():
    assert name("matmul_1x2_bias") == "matmul_<wbr>1x2_<wbr>bias" and name("<a/b>") == "&lt;a/<wbr>b&gt;"
    assert name("bias; /a_8x8") == "bias; /a_<wbr>8x8"  # a slash stays with the name that it begins
    assert name("2026-11-27, verified") == '<span style="white-space:nowrap">2026-11-27</span>, verified'
    assert name("1.25") == "1.25" and name(Html("a_b")) == "a_b"
