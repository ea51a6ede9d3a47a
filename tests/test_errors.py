"""What an error of ours says."""

from hetero_tvm.errors import HeteroTVMError, UnsupportedOperatorError, did_you_mean, last_line, shortened


def test_problems_and_the_hint_stand_on_lines_of_their_own():
    error = UnsupportedOperatorError("Two are unknown.", problems=iter(["a", "b"]), hint="Leave them out.")
    assert str(error) == "Two are unknown.\n  - a\n  - b\nWhat to do: Leave them out."
    assert isinstance(error, HeteroTVMError) and error.problems == ("a", "b")
    assert str(HeteroTVMError("Plain.")) == "Plain."


def test_long_lists_are_shortened():
    assert shortened(list("abc"), 3) == ["a", "b", "c"]
    assert shortened(list("abcde"), 3) == ["a", "b", "c", "and 2 more"]


def test_the_last_line_of_another_library_is_taken():
    assert last_line(ValueError("Traceback\n  InternalError: wrong \n\n")) == "InternalError: wrong"
    assert last_line(ValueError()) == "ValueError"


def test_dashes_of_options_make_no_two_alike():
    assert did_you_mean("--precison", ["--version", "--precision"]) == "did you mean '--precision'?"
    assert did_you_mean("--threads", ["--trust", "--version"]) == ""
