"""Attacks on our own training: do they prove a larger ε than the claimed one?"""

from pmtl.audit.games import GAMES, audit
from pmtl.audit.result import AuditResult, AuditSetup

__all__ = ["GAMES", "AuditResult", "AuditSetup", "audit"]
