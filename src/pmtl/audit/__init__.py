"""Attacks on our own training: do they prove a larger ε than the claimed one?"""
