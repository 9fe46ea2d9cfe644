"""A message is one readable line, whatever a file put into it."""

import pytest

from pmtl.errors import (
    MAX_MESSAGE_LENGTH,
    PmtlError,
    errors_naming,
    how_many,
    is_out_of_memory,
    require_package,
)


def test_what_would_break_the_line_or_speak_to_the_terminal_is_escaped():
    told = str(PmtlError("The name \x1b[2J\r\n\u2028 of ε = ∞ is odd."))
    assert told == "The name \\x1b[2J\\r\\n\\u2028 of ε = ∞ is odd."


def test_a_long_message_keeps_its_beginning_and_its_end():
    told = str(PmtlError(f"The name {'x' * 10**6!r} is long: shorten it."))
    assert len(told) < MAX_MESSAGE_LENGTH
    assert told.startswith("The name 'xxx")
    assert told.endswith("xxx' is long: shorten it.")
    assert len(str(PmtlError("\x00" * 10**6))) < MAX_MESSAGE_LENGTH


@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        ("Row 3 is empty.", "In a/d.csv: Row 3 is empty."),
        ("a/d.csv has no rows.", "a/d.csv has no rows."),
        ("The option x of d.csv is odd.", "The option x of d.csv is odd."),
        ("There is no d.csvx.", "In a/d.csv: There is no d.csvx."),
    ],
)
def test_a_file_is_named_once(sentence, told):
    with pytest.raises(PmtlError) as refused, errors_naming("a/d.csv"):
        raise PmtlError(sentence)
    assert str(refused.value) == told


@pytest.mark.parametrize(
    ("error", "wanting"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB."), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("a view of memory that two tensors share"), False),
    ],
)
def test_want_of_memory_is_told_from_other_words_about_memory(error, wanting):
    assert is_out_of_memory(error) is wanting


def test_a_package_that_is_not_installed_is_a_sentence():
    with pytest.raises(PmtlError, match="needs it"), require_package("This needs it."):
        import no_such_package  # noqa: F401


def test_a_number_and_what_is_counted():
    assert how_many(0, "row") == "0 rows"
    assert how_many(1, "row") == "1 row"
    assert how_many(1000, "shared number") == "1,000 shared numbers"
