"""Evidence in, verdict out. Pure."""

from holdfast.diagnosis.kinds import Kinds
from holdfast.diagnosis.logs import parse_traceback
from holdfast.diagnosis.verdict import CAUSES, Verdict, weigh

__all__ = ["CAUSES", "Kinds", "Verdict", "parse_traceback", "weigh"]
