"""Federations of data: one array of rows, and the client that owns each row."""

from pmtl.data.describe import describe, public_warnings
from pmtl.data.federated import SPLITS, FederatedData, Rows, Split
from pmtl.data.load import load
from pmtl.data.readers.bounds import Bounds
from pmtl.data.scaling import Scaling
from pmtl.data.schema import Schema
from pmtl.data.synthetic import synthetic

__all__ = [
    "SPLITS",
    "Bounds",
    "FederatedData",
    "Rows",
    "Scaling",
    "Schema",
    "Split",
    "describe",
    "load",
    "public_warnings",
    "synthetic",
]
