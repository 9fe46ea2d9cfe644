"""Sharing a part of a model: what leaves a client, and an algorithm that works on that part."""

from pmtl.sharing.algorithm import SharedPart as SharedPart
from pmtl.sharing.build import PublicInputs as PublicInputs
from pmtl.sharing.build import absolute as absolute
from pmtl.sharing.build import build_share as build_share
from pmtl.sharing.build import named as named
from pmtl.sharing.build import share_part as share_part
