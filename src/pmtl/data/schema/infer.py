"""A schema from the rows of a table: for an experiment, or for a person to review.

A schema is inferred from all clients' rows without noise. `Inferred.disclosed` describes this
disclosure. Production never infers a schema.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pmtl.data.client_names import canonical
from pmtl.data.readers.cells import Table
from pmtl.data.readers.columns import Roles, wrong_kind
from pmtl.data.schema.cells import find_category
from pmtl.data.schema.column import Column
from pmtl.data.schema.problems import refuse
from pmtl.data.schema.profile import Profile
from pmtl.data.schema.schema import Schema
from pmtl.errors import PmtlError, how_many, listed

#: Text with more different values than the first is hashed into the second number of columns.
#: Every column needs noise, so there are few.
MOST_CATEGORIES, HASHED_VALUES = 30, 8
#: A target with more classes than this is refused.
MOST_CLASSES = 1000
#: Of whole numbers with more values than this a person has to say whether they are amounts. More
#: than `MOST_CLASSES` are.
MOST_NUMBERS = 100
#: A text column with at least _ID_ROWS cells identifies rows if _ID_SHARE of them are distinct.
_ID_SHARE, _ID_ROWS = 0.9, 20
#: What tools call a column that numbers the rows, and how people call one that identifies them.
_ID_NAME = re.compile(
    r"(?i:^(|unnamed: 0|index|row[_. ]?(names?|numbers?))$|"
    r"(^|[_\W])(id|uid|uuid|guid|identifier)$)|[a-z](Id|ID)$"
)


@dataclass
class Inferred:
    """A schema, and what a person should know about it."""

    schema: Schema
    notes: dict[str, str]  #: why each column is as it is, by name
    disclosed: tuple[str, ...] = field(init=False)  #: what was taken from all clients' rows
    decided: str = field(init=False)  #: a sentence with everything that was decided

    def __post_init__(self) -> None:
        columns = [c for c in self.schema.columns if c.role in ("feature", "target", "dropped")]
        alike: dict[str, list[str]] = {}
        for column in columns:
            alike.setdefault(self.notes[column.name], []).append(column.name)
        reasons = " · ".join(f"{', '.join(names)}: {note}" for note, names in alike.items())
        self.decided = (
            f"No schema was given, so it was inferred from the cells. {reasons}. "
            "`pmtl data schema` writes it to a file, which you can change and give with --schema."
        )
        listing = [c.name for c in columns if c.categories and c.role == "feature"]
        filled = [c.name for c in self.schema.features if c.missing == "indicator"]
        more = f", the categories of {listed(listing)}" if listing else ""
        odd = [c.name for c in self.schema.features if c.missing_values]
        more += f", which cells of {listed(odd)} are no dates" if odd else ""
        more += f", which columns have empty cells ({listed(filled)})" if filled else ""
        self.disclosed = (
            f"The columns were not described beforehand. Their kinds{more} and the classes were "
            "read from all clients' rows without noise and are treated as public: a value that "
            "only one client has identifies that client. A schema (--schema) avoids this.",
        )


class Found(NamedTuple):
    """What a column was found to be."""

    column: Column
    note: str  #: the reason, for a person
    problem: str = ""  #: a sentence, if an experiment must not go on with this by itself


def infer(table: Table, roles: Roles, task: str | None = None, review: bool = False) -> Inferred:
    """The schema that fits the rows of a table, which is read once.

    Whole numbers are amounts if the `task` is regression. `review`: a person will correct the
    schema; otherwise everything that needs a person's decision is refused, at once."""
    names = [*roles.features, *roles.targets]
    profiles = {name: Profile(name) for name in names}
    for _, batch in table.batches(names):
        for name, profile in profiles.items():
            profile.add(batch.column(name))
    columns, notes, problems = [], {}, []
    for name in table.names:
        if name in (roles.client, roles.split):
            columns.append(Column(name, None, "client" if name == roles.client else "split"))
        elif name in roles.dropped:
            columns.append(Column(name, None, "dropped"))
            notes[name] = "left out, as you said"
        elif name in profiles:
            profile, alone = profiles[name], len(roles.targets) == 1
            target = name in roles.targets
            found = _target(profile, task, alone) if target else _feature(profile)
            columns.append(found.column)
            notes[name] = found.note + _on_missing(found.column, profile)
            problems += [found.problem] if found.problem else []
            if review:
                notes[name] += _seen(found.column, profile)
    if not review:
        refuse(table.where, problems, public=False)
    return Inferred(Schema(tuple(columns)), notes)


def _feature(profile: Profile) -> Found:
    name, values = profile.name, len(profile.values)

    def kept(note: str, kind: str, **settings: Any) -> Found:
        gaps = profile.missing or settings.get("missing_values")
        missing = "indicator" if gaps else "fill"
        return Found(Column(name, kind, missing=missing, **settings), note)

    def left_out(reason: str, problem: str = "") -> Found:
        return Found(Column(name, None, "dropped"), f"left out, because {reason}", problem)

    def dates(formats: list[str | None], others: tuple[str, ...] = ()) -> Found:
        if len(formats) > 1:
            ways = ", ".join(str(format) for format in formats)
            several = f"its dates can be read in several ways ({ways})"
            return left_out(f'{several}; kind = "date" with a format says which')
        note = "date, in days since 2000-01-01"
        if others:
            count = sum(profile.values[text] for text in others)
            least = "at least " if profile.counted < profile.present else ""
            cells = least + how_many(count, "cell")
            note += f"; other text ({cells}: {listed(others, 3)}) counts as empty: check this"
        return kept(note, "date", format=formats[0], missing_values=others)

    if profile.unreadable:
        return left_out(
            f"it holds {profile.unreadable}",
            f"the feature column {name!r} holds {profile.unreadable}, not numbers, text or dates: "
            f"leave it out with drop={name}.",
        )
    if not profile.present:
        return left_out("all cells are empty")
    if profile.is_boolean:
        return kept("boolean", "boolean")
    if profile.is_number:
        if _ID_NAME.search(name) and profile.whole and profile.distinct == 1 and values > 1:
            return left_out("it numbers the rows")
        return kept("number", "number")
    if formats := profile.date_formats:
        return dates(formats)
    if profile.mixed_dates:
        return left_out(
            'its dates are written in several ways; kind = "date" with format = '
            "['%Y-%m-%d', '%d.%m.%Y'] lists them"
        )
    if profile.decimal_comma:
        return kept("number with a decimal comma", "number", decimal=",")
    if profile.with_commas:
        return left_out(
            "its numbers are written with a comma",
            f"the feature column {name!r} is numbers written with a comma (such as "
            f"{profile.texts[0][:40]!r}), which may stand before decimals or between thousands: "
            f'say decimal = "," under [columns.{name}] of a schema (pmtl data schema), write them '
            f"without thousands separators, or leave the column out with drop={name}.",
        )
    if 2 * profile.numbers >= profile.present:
        return _mixed(profile)
    formats, others = profile.nearly_dates()
    if formats:
        return dates(formats, others)
    names_rows = profile.distinct >= _ID_SHARE and profile.present >= _ID_ROWS
    if names_rows and profile.words < 3:
        return left_out("nearly every row has another value")
    if values <= MOST_CATEGORIES:
        categories = tuple(canonical(profile.values))
        return kept(f"category ({listed(categories, 5)})", "category", categories=categories)
    if profile.words >= 4:
        return left_out('it is free text; kind = "text" and hash = 32 use its words')
    note = f"category with {values} values, hashed into {HASHED_VALUES} columns"
    return kept(note, "category", hash=HASHED_VALUES)


def _mixed(profile: Profile) -> Found:
    """Numbers with some cells of text, whose meaning a person has to decide."""
    name, texts = profile.name, tuple(profile.texts[:20])
    cells = "1 cell" if profile.wrong == 1 else f"{profile.wrong} cells"
    return Found(
        Column(name, "number", missing="indicator", missing_values=texts),
        f"number, in which {cells} of text count as empty; check that this is right",
        f"the feature column {name!r} is numbers, but for {cells} of text (such as "
        f"{texts[0][:40]!r}): correct that, list it in missing_values under [columns.{name}] of a "
        f"schema (pmtl data schema), or leave the column out with drop={name}.",
    )


def _target(profile: Profile, task: str | None, alone: bool) -> Found:
    name, values = profile.name, len(profile.values)
    number = Column(name, "number", "target")
    if profile.unreadable:
        raise wrong_kind("the table", "target", name, profile.unreadable)
    if profile.date_formats or not profile.present:
        holds = "dates" if profile.present else "no values"
        raise PmtlError(
            f"The target column {name!r} holds {holds}: make a number or classes of it, or name "
            "another with --target."
        )
    spelled = {value.lower() for value in profile.values} <= {"true", "false"}
    if profile.is_boolean and (spelled or not alone):  # Other words stay names of classes.
        return Found(Column(name, "boolean", "target"), "target, true or false")
    zero_one = {find_category(value, {"0": 0, "1": 1}) for value in profile.values} == {0, 1}
    whole = profile.whole or zero_one  # Some tools write 1 as 1.0.
    if profile.is_number and (not alone or not whole or task == "regression"):
        return Found(number, "target, a number")
    if profile.decimal_comma:
        number = Column(name, "number", "target", decimal=",")
        return Found(number, "target, a number with a decimal comma")
    if not alone:
        raise wrong_kind("the table", "target", name, "text")
    amounts = task != "classification" or values <= MOST_CLASSES
    if profile.is_number and values > MOST_NUMBERS and amounts:
        problem = (
            f"the target column {name!r} is {values} different whole numbers: say task=regression "
            "(--data FILE:task=regression) if they are amounts, or give a schema with its "
            "categories if they are classes."
        )
        return Found(
            number,
            'target, a number; if these are classes, say kind = "category" with categories',
            problem if values <= MOST_CLASSES else "",
        )
    if values > MOST_CLASSES:
        raise PmtlError(
            f"The target column {name!r} has more than {MOST_CLASSES} classes: group them."
        )
    classes = ("0", "1") if zero_one else tuple(canonical(profile.values))
    column = Column(name, "category", "target", categories=classes)
    amounts = profile.is_number and values > 2
    hint = "; if these are amounts, say --data FILE:task=regression" if amounts else ""
    return Found(column, f"target with the classes {listed(classes, 5)}{hint}")


def _on_missing(column: Column, profile: Profile) -> str:
    if not profile.missing or column.role != "feature":
        return ""
    if column.kind in ("category", "text"):
        return f"; empty cells ({profile.missing:,}) are a category of their own"
    return f"; empty cells ({profile.missing:,}) are filled inside each client, and marked"


def _seen(column: Column, profile: Profile) -> str:
    """The range of the values, for a person who writes bounds."""
    if column.kind != "number" or not profile.numbers:
        return ""
    return (
        f"\nseen in the rows: {profile.low:g} to {profile.high:g}, which is not public; write low "
        "and high only if you know them without the rows"
    )
