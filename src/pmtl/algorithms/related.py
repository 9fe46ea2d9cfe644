"""PMTL with a given relationship matrix Ω; `pmtl` and `clustered` are special cases.

Hu, Wu & Smith, TMLR 2023, equation 1 with Ω fixed and R(W, Ω) = λ/2 · tr(WΩWᵀ) (after Evgeniou,
Micchelli & Pontil, JMLR 2005). The derivative at w_k is λ Σ_j Ω_kj w_j = λ(w_k − w̃_k) with
w̃_k = Σ_j B_kj w_j and B = I − Ω: client k is pulled towards *its own* mixture of all models. With
Ω = (I − 11ᵀ/m)² that is the mean (`pmtl`). Everything else is Algorithm 1.

Let B = GGᵀ with G of shape [m, r]. The billboard shows r vectors z_i, and w̃_k = Σ_i G_ki z_i.
Client k adds its clipped upload times its row of G to them, scaled so that no row is longer than 1
(`billboard.py`): so ε is the same as for `pmtl`. Clients that Ω does not connect use different
vectors.

The noise on w̃_k has standard deviation σ · m · √(B_kk · max_j B_jj), with j in k's group, where
`pmtl` has σ. If all B_jj are equal, that is r·σ: with r kinds of clients, each mean is over an r-th
of the clients. Ω must be public, chosen without looking at the clients' data.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pmtl.algorithms.pmtl import PMTL
from pmtl.billboard import Billboard, Mixture
from pmtl.errors import PmtlError

#: Eigenvalues up to this count as zero, if the largest eigenvalue of Ω is 1.
_ZERO = 1e-9


@dataclass(frozen=True)
class RelatedPMTL(PMTL):
    """PMTL in which every client is pulled towards its own mixture of all models.

    `omega` is Ω, symmetric and without negative eigenvalues: an array in the order of the sorted
    clients, or a file: `.npy` in that order, or CSV with the clients' names in its first line and
    first column. Ω is divided by its largest eigenvalue, so only λ sets the scale.
    """

    name: ClassVar[str] = "related"
    shares_parts: ClassVar[bool] = False
    relations: ClassVar[str | None] = "The relationship matrix"

    #: Not in `repr`, which decides the noise: the billboard has the file's content.
    omega: Any = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.omega, str) and self.omega:  # Absolute: resume from any folder.
            object.__setattr__(self, "omega", str(Path(self.omega).absolute()))

    def billboard(self, clients: tuple[str, ...]) -> Billboard:
        omega = _read(self.omega, clients) if isinstance(self.omega, str) else self.omega
        return billboard_of(np.asarray(omega, dtype=np.float64), len(clients))

    def blocks(self, clients: tuple[str, ...]) -> NDArray[np.int64]:
        return self.billboard(clients).blocks


def billboard_of(omega: NDArray[np.float64], m: int) -> Billboard:
    """The billboard of a relationship matrix."""
    if omega.shape != (m, m):
        raise PmtlError(
            f"The relationship matrix has shape {omega.shape}, but there are {m} clients: it needs "
            "a row and a column for each."
        )
    if not np.isfinite(omega).all() or not np.allclose(omega, omega.T, rtol=1e-9, atol=1e-12):
        raise PmtlError("The relationship matrix must be symmetric, of finite numbers.")
    omega = (omega + omega.T) / 2
    from scipy.sparse.csgraph import connected_components  # It takes long to import.

    groups, group_of = connected_components(omega != 0, directed=False)
    values = [
        np.linalg.eigvalsh(omega[np.ix_(group_of == g, group_of == g)]) for g in range(groups)
    ]
    largest = max(float(part[-1]) for part in values)
    if not largest > 0 or min(float(part[0]) for part in values) < -_ZERO * largest:
        raise PmtlError(
            "The relationship matrix must have no negative eigenvalue and must not be zero: "
            "otherwise the objective has no minimum, or no clients are related."
        )
    pieces = []
    for group in range(groups):
        members = np.flatnonzero(group_of == group)
        part = np.eye(len(members)) - omega[np.ix_(members, members)] / largest
        strengths, directions = np.linalg.eigh(part)
        kept = strengths > _ZERO
        if kept.any():
            directions = directions[:, kept]
            # Eigenvectors have no sign; we choose the one with which their sum is not negative.
            signs = np.where(directions.sum(axis=0) < 0, -1.0, 1.0)
            pieces.append((members, directions * signs * np.sqrt(strengths[kept])))
    return _assembled(pieces, m)


def _assembled(pieces: list[tuple[NDArray[np.int64], NDArray[np.float64]]], m: int) -> Billboard:
    """The billboard with the vectors of all groups, given each group's members and rows of G."""
    size = sum(factor.shape[1] for _, factor in pieces)
    if not size:
        raise PmtlError(
            "This relationship matrix pulls every client to zero, and no client shares anything."
        )
    writes, reads = np.zeros((m, size)), np.zeros((m, size))
    counts, blocks = np.zeros(size, dtype=np.int64), np.zeros(m, dtype=np.int64)
    first = 0
    for members, factor in pieces:
        these = slice(first, first + factor.shape[1])
        # A little below 1, so that rounding never makes a row longer than 1.
        longest = float(np.linalg.norm(factor, axis=1).max()) * (1 + 1e-12)
        writes[members, these] = factor / longest
        reads[members, these] = factor * longest * len(members)
        counts[these] = len(members)
        blocks[members] = first
        first = these.stop
    return Billboard(blocks, Mixture(writes, reads, counts))


def _read(path: str, clients: tuple[str, ...]) -> NDArray[np.float64]:
    if not path:
        raise PmtlError("The algorithm related needs its relationship matrix: related:omega=FILE.")
    try:
        if path.endswith(".npy"):
            return np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
        rows = list(csv.reader(io.StringIO(Path(path).read_text(encoding="utf-8"))))
        names, lines = rows[0][1:], {row[0]: row[1:] for row in rows[1:] if row}
        missing = [client for client in clients if client not in names or client not in lines]
        if missing:
            raise ValueError(f"{missing[0]!r} has no row or no column")
        places = [names.index(client) for client in clients]
        return np.array([[float(lines[client][p]) for p in places] for client in clients])
    except (OSError, ValueError, IndexError, EOFError, csv.Error) as error:
        raise PmtlError(
            f"The relationship matrix in {path!r} cannot be read ({error}): give an .npy file in "
            "the order of the sorted clients, or a CSV file with the clients' names in its first "
            "line and first column."
        ) from error
