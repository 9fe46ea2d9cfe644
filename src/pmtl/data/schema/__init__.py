"""What is publicly known about a table's columns, and how they become numbers."""

from pmtl.data.schema.column import Column
from pmtl.data.schema.schema import Schema

__all__ = ["Column", "Schema"]
