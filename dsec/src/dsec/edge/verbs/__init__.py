"""The edge's verbs, one file each: a function that takes a request and its caller and gives the answering end.

A verb refuses by raising one of our errors, before it has had any effect.
"""

from .table import VERBS

__all__ = ["VERBS"]
