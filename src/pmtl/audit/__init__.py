"""Attacks on our own pipeline: how much of the claimed ε can be proved to be lost?"""

from pmtl.audit.games import GAMES, audit
from pmtl.audit.result import AuditResult, AuditSetup

__all__ = ["GAMES", "AuditResult", "AuditSetup", "audit"]
