"""The support table is what the importer's tables say."""

from tests.campaign.onnx_support import DOCUMENT, table


def test_the_document_is_up_to_date():
    message = "run python -m tests.campaign.onnx_support"
    assert DOCUMENT.read_text() == table(), message


def test_the_table_knows_what_is_refused_and_what_is_not():
    text = table()
    rows = {
        line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")
    }
    assert "converted" in rows["Conv"]
    assert "with shapes" in rows["Expand"]
    for name in ("ImageDecoder", "StringSplit"):
        assert name not in rows
        assert name in text.partition("## Refused")[2]
