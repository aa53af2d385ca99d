"""Evidence in, verdict out. Pure."""

from holdfast.diagnosis.logs import parse_traceback
from holdfast.diagnosis.verdict import CAUSES, Verdict, kind_of, weigh

__all__ = ["CAUSES", "Verdict", "kind_of", "parse_traceback", "weigh"]
