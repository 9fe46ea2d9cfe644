"""`NAME:key=value`: one line that says the same everywhere, or a sentence about what is wrong."""

from dataclasses import dataclass
from typing import Literal

import pytest

from pmtl.errors import PmtlError
from pmtl.spec import construct, explain_wrong_calls, parse_spec, unknown


@pytest.mark.parametrize(
    ("spec", "name", "options"),
    [
        ("pmtl", "pmtl", {}),
        ("pmtl:lam=0.5", "pmtl", {"lam": "0.5"}),
        ("a:b=1, c = x ", "a", {"b": "1", "c": "x"}),
        ("package.module:factory", "package.module:factory", {}),
        ("package.module:factory:width=3", "package.module:factory", {"width": "3"}),
        ("folder/data.csv:target=y", "folder/data.csv", {"target": "y"}),
        ("C:\\data.csv", "C:\\data.csv", {}),
        ("name:formula=a=b", "name", {"formula": "a=b"}),
        ("d.jsonl:reader=own:read", "d.jsonl", {"reader": "own:read"}),
        ("d.jsonl:a=1,reader=own:read,b=2", "d.jsonl", {"a": "1", "reader": "own:read", "b": "2"}),
        ("a:b=c/d.csv:target=y", "a:b=c/d.csv", {"target": "y"}),
    ],
)
def test_a_spec_is_a_name_and_its_options(spec, name, options):
    assert parse_spec(spec) == (name, options)


@pytest.mark.parametrize("spec", ["a:b=1,c", "a:b=", "a:=1", "a:b=1,,c=2", "a:b=1,"])
def test_options_that_cannot_be_read_are_told_where(spec):
    with pytest.raises(PmtlError, match="write NAME:key=value,key=value"):
        parse_spec(spec)


def test_an_option_given_twice_is_refused():
    with pytest.raises(PmtlError, match="gives 'b' twice"):
        parse_spec("a:b=1,b=2")


@dataclass(frozen=True)
class Thing:
    count: int = 1
    share: float = 0.5
    on: bool = False
    limit: int | None = None
    either: int | float = 0
    word: str = ""
    kind: Literal["a", "b"] = "a"


def test_text_becomes_the_type_of_the_field():
    made = construct(
        Thing,
        {"count": "3", "share": "1", "on": "True", "limit": "7", "either": "2.5", "word": "1"},
        "thing",
    )
    assert made == Thing(3, 1.0, True, 7, 2.5, "1")
    assert isinstance(made.share, float)
    assert isinstance(made.word, str)
    assert construct(Thing, {"on": "false", "kind": "b"}, "thing") == Thing(kind="b")
    assert construct(Thing, {"either": "2"}, "thing").either == 2


def test_values_that_are_no_text_are_taken_as_they_are():
    assert construct(Thing, {"count": 4, "on": True}, "thing") == Thing(count=4, on=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"count": "3.5"}, "count of thing must be a whole number, but '3.5' was given"),
        ({"share": "half"}, "share of thing must be a number, but 'half' was given"),
        ({"on": "yes"}, "on of thing must be true or false, but 'yes' was given"),
        ({"limit": "none"}, "limit of thing must be a whole number, but 'none' was given"),
        ({"shar": "1"}, "There is no option of thing named 'shar'. Did you mean 'share'?"),
    ],
)
def test_a_wrong_option_is_told_in_a_sentence(options, sentence):
    with pytest.raises(PmtlError) as refused:
        construct(Thing, options, "thing")
    assert sentence in str(refused.value)


def test_types_are_guessed_from_defaults_where_nothing_is_annotated():
    def plain(size=3, rate=0.1, name=None):
        return size, rate, name

    assert construct(plain, {"size": "4", "rate": "1", "name": "x"}, "plain") == (4, 1.0, "x")


def test_what_is_fixed_cannot_be_given():
    def sized(shape, width=3):
        return shape, width

    assert construct(sized, {"width": "5"}, "sized", shape=(2,)) == ((2,), 5)
    with pytest.raises(PmtlError, match=r"no option of sized named 'shape'\. Known: width\."):
        construct(sized, {"shape": "9"}, "sized", shape=(2,))


def test_an_unknown_name_is_answered_with_the_nearest_and_all_that_are_known():
    sentence = str(unknown("colour", "gren", ["red", "green", "blue"]))
    assert sentence == ("There is no colour 'gren'. Did you mean 'green'? Known: blue, green, red.")
    assert "Did you mean" not in str(unknown("colour", "xyz", ["red"]))


@dataclass
class Oven:
    heat: int = 3


@explain_wrong_calls({"sugar": "bread has none"}, oven=Oven)
def bake(flour, water=1, *, oven=None, **more):
    return flour, water, oven, more


@explain_wrong_calls({"sugar": "bread has none"}, oven=Oven)
def knead(flour, water=1, *, oven=None):
    return flour, water, oven


class TestExplained:
    def test_a_right_call_is_left_alone(self):
        assert knead(1, oven=2) == (1, 1, 2)
        assert bake(1, 2, sugar=3) == (1, 2, None, {"sugar": 3})
        assert knead.__name__ == "knead"

    @pytest.mark.parametrize(
        ("args", "kwargs", "sentence"),
        [
            ((), {}, "knead needs flour: write flour=…"),
            ((1,), {"sugar": 2}, "knead has no argument 'sugar': bread has none"),
            ((1,), {"heat": 2}, r'knead has no argument .heat.: oven has it: write oven=."heat"'),
            ((1,), {"watr": 2}, "no argument of knead named 'watr'. Did you mean 'water'"),
            ((1, 2, 3), {}, r"by place \(flour, water\) and all others by name"),
            ((1,), {"flour": 2}, "knead got flour twice"),
        ],
    )
    def test_a_wrong_call_is_a_sentence(self, args, kwargs, sentence):
        with pytest.raises(PmtlError, match=sentence):
            knead(*args, **kwargs)

    def test_errors_inside_are_not_changed(self):
        @explain_wrong_calls()
        def fail():
            raise TypeError("inside")

        with pytest.raises(TypeError, match="inside"):
            fail()
