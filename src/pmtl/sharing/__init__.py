"""Sharing a part of a model: what leaves a client, and an algorithm that works on that part."""

from pmtl.sharing.algorithm import SharedPart
from pmtl.sharing.build import PublicInputs, absolute, build_share, named, share_part
from pmtl.sharing.share import Share

__all__ = [
    "PublicInputs",
    "Share",
    "SharedPart",
    "absolute",
    "build_share",
    "named",
    "share_part",
]
