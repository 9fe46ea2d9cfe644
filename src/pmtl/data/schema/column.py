"""One column of a table: what it holds, and which features it becomes."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pmtl.data.readers.bounds import Range, checked_range
from pmtl.errors import PublicError, did_you_mean

ROLES = ("feature", "target", "client", "split", "dropped")
MISSING = ("indicator", "fill", "drop", "refuse")
UNKNOWN = ("zeros", "other", "refuse")
PARTS = ("month", "weekday")
#: The settings of each kind, beside those of every kind.
KINDS: dict[str, tuple[str, ...]] = {
    "number": ("low", "high", "decimal"),
    "category": ("categories", "hash", "unknown"),
    "boolean": (),
    "date": ("low", "high", "format", "parts"),
    "text": ("hash",),
}
#: Settings of columns that are features or targets, whatever their kind.
_ALWAYS = ("kind", "missing", "missing_values")
_TARGET_KINDS = ("number", "category", "boolean")
MOST_HASHED = 2**16
#: Dates are counted in days from here.
EPOCH = datetime.datetime(2000, 1, 1)


@dataclass(frozen=True)
class Column:
    """What is publicly known about one column of a table."""

    name: str  #: as in the table
    kind: str | None = "number"  #: None for a column that is neither a feature nor a target
    role: str = "feature"  #: feature, target, client, split or dropped
    low: float | None = None  #: the least possible number or date (in days since 2000-01-01)
    high: float | None = None  #: the largest possible one; both are public, or None
    #: The possible values of a category, or the classes of a target.
    categories: tuple[str, ...] | None = None
    #: Into how many columns the values of a category or the words of a text are hashed, instead of
    #: a list of categories.
    hash: int | None = None
    #: A value that is not among the categories becomes "zeros" or "other" (a column of its own), or
    #: is refused ("refuse").
    unknown: str = "zeros"
    #: An empty cell is filled inside the client ("fill"; in a category it is all zeros), also with
    #: a column that says so ("indicator"), leaves its row out ("drop"), or is refused ("refuse").
    missing: str = "refuse"
    missing_values: tuple[str, ...] = ()  #: further spellings of an empty cell
    #: The mark before decimals in text, "." or ",". With a comma, points are between thousands.
    decimal: str = "."
    #: How dates are written (as for `datetime.strptime`), one way or several, which are tried in
    #: their order; None: ISO 8601.
    format: str | tuple[str, ...] | None = None
    parts: tuple[str, ...] = ()  #: what else a date becomes: points on the circles of `PARTS`

    def __post_init__(self) -> None:
        for item in fields(self):
            if isinstance(value := getattr(self, item.name), list):
                object.__setattr__(self, item.name, tuple(value))
        chosen = (("role", ROLES), ("missing", MISSING), ("unknown", UNKNOWN), ("decimal", ".,"))
        for key, known in chosen:
            self._choose(key, getattr(self, key), tuple(known))
        if self.role not in ("feature", "target"):
            self._refuse_given(f"a column with the role {self.role!r}", ())
            object.__setattr__(self, "kind", None)
            return
        self._choose("kind", self.kind, KINDS)
        self._refuse_given(f"a column of kind {self.kind!r}", KINDS[self.kind or ""] + _ALWAYS)
        for key in ("categories", "missing_values", "parts"):
            self._texts(key)
        for part in self.parts:
            self._choose("parts", part, PARTS)
        if (self.low is None) != (self.high is None):
            raise self._error("has one of low and high: give both, or none.")
        if self.range is not None:
            pair = tuple(map(_days, self.range)) if self.kind == "date" else self.range
            low, high = checked_range(self.name, pair)
            object.__setattr__(self, "low", low)
            object.__setattr__(self, "high", high)
        self._check_format()
        self._check_categories()
        if self.role == "target":
            self._check_target()

    @property
    def formats(self) -> tuple[str, ...]:
        """The ways in which dates are written, beside ISO 8601."""
        return (self.format,) if isinstance(self.format, str) else self.format or ()

    @property
    def range(self) -> Range | None:
        """The public bounds (low, high), if there are any."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features that the column becomes, in their order."""
        if self.role != "feature":
            return ()
        names = [self.name]
        if self.kind == "category" or self.kind == "text":
            if self.hash is not None:
                names = [f"{self.name}#{place}" for place in range(self.hash)]
            else:
                names = [f"{self.name}={value}" for value in self.categories or ()]
            names += [f"{self.name} is other"] if self.unknown == "other" else []
        for part in self.parts:
            names += [f"{self.name} {part} sin", f"{self.name} {part} cos"]
        return (*names, *([f"{self.name} is missing"] if self.missing == "indicator" else []))

    @property
    def ranges(self) -> tuple[Range | None, ...]:
        """The range of every feature: the column's own, or what follows from its encoding."""
        circle = {f"{self.name} {part} {side}" for part in self.parts for side in ("sin", "cos")}
        own = self.name if self.kind in ("number", "date") else None
        return tuple(
            self.range if name == own else (-1.0, 1.0) if name in circle else (0.0, 1.0)
            for name in self.features
        )

    def to_dict(self) -> dict[str, Any]:
        """The settings that are not the default; without the name."""
        values: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "kind":
                values |= {} if value is None else {"kind": value}
            elif item.name != "name" and value != item.default:
                values[item.name] = list(value) if isinstance(value, tuple) else value
        return values

    @classmethod
    def from_dict(cls, name: str, values: Any) -> Column:
        """The inverse of `to_dict`; unknown settings are refused.

        Args:
            name: the name of the column.
            values: what `to_dict` returned.
        """
        if not isinstance(values, Mapping):
            raise PublicError(
                f"the column {name!r} must be a table [columns.{name}] with kind, role, …."
            )
        known = [item.name for item in fields(cls) if item.name != "name"]
        for key in values:
            if key not in known:
                raise PublicError(
                    f"the column {name!r} has no setting {key!r}.{did_you_mean(str(key), known)} "
                    f"Known: {', '.join(known)}. A column's name with a point needs quotes."
                )
        return cls(name, **values)

    def _check_format(self) -> None:
        if self.format is not None and not isinstance(self.format, str):
            self._texts("format")
        for format in self.formats:
            try:
                datetime.datetime.strptime(EPOCH.strftime(format), format)
            except ValueError:
                raise self._error(
                    f"has the format {format!r}: give text such as '%d/%m/%Y'."
                ) from None

    def _check_categories(self) -> None:
        if self.kind == "text" and self.hash is None:
            raise self._error("is text: say with hash = N into how many columns words are hashed.")
        if self.hash is not None:
            whole = isinstance(self.hash, int) and not isinstance(self.hash, bool)
            if not whole or not 1 <= self.hash <= MOST_HASHED:
                raise self._error(f"has hash = {self.hash!r}: give a number from 1 to 65536.")
            if self.categories is not None or self.unknown != "zeros":
                raise self._error("is hashed, which knows every value: leave out its categories.")
        elif self.kind == "category" and not self.categories:
            raise self._error(
                "needs its categories: list them (categories = ['a', 'b']), or give hash = N."
            )
        values = [value.strip() for value in self.categories or ()]  # As cells are compared.
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise self._error(f"has the category {twice!r} twice.")

    def _check_target(self) -> None:
        self._choose("kind", self.kind, _TARGET_KINDS)
        if self.hash is not None or self.unknown == "other":
            raise self._error("is a target, whose classes are a list: give categories only.")
        if self.missing in ("fill", "indicator"):
            raise self._error("is a target, which cannot be filled: use missing = 'drop'.")

    def _refuse_given(self, what: str, known: tuple[str, ...]) -> None:
        for item in fields(self):
            if item.name in ("name", "role", "kind") or item.name in known:
                continue
            if getattr(self, item.name) != item.default:
                raise self._error(f"has {item.name}, which {what} does not use: leave it out.")

    def _choose(self, key: str, value: Any, known: Any) -> None:
        if not isinstance(value, str) or value not in known:
            hint = did_you_mean(value, known) if isinstance(value, str) else ""
            raise self._error(f"has {key} = {value!r}.{hint} Known: {', '.join(known)}.")

    def _texts(self, key: str) -> None:
        values = getattr(self, key)
        if values is None:
            return
        if not isinstance(values, tuple) or not all(isinstance(value, str) for value in values):
            raise self._error(f"has {key} = {values!r}: give a list of texts in quotes.")

    def _error(self, what: str) -> PublicError:
        return PublicError(f"the column {self.name!r} {what}")


def _days(value: Any) -> Any:
    """A date of a TOML file in days; numbers stay."""
    if isinstance(value, datetime.datetime):
        return days_since_epoch(value)
    if isinstance(value, datetime.date):
        return float((value - EPOCH.date()).days)
    return value


def days_since_epoch(moment: datetime.datetime) -> float:
    """Days since 2000-01-01, with fractions; times with a zone count in UTC."""
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
    return (moment - EPOCH) / datetime.timedelta(days=1)
