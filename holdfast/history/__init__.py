"""What training was like, kept in bounded files beside the journal: its curve, and every rank's
times.

The journal has facts, of which few are made; these are figures, of which every step makes some. So
they have files of their own, which nobody needs for driving a job: whatever is lost or damaged in
them is a gap in a picture.
"""

from holdfast.history.answers import CURVE, RANKS, told
from holdfast.history.ranks import QUANTITIES, RankHistory, RankPicture, read_ranks
from holdfast.history.steps import COLUMNS, Curve, CurveFile, StepPoint, last_point, read_curve

__all__ = [
    "COLUMNS",
    "CURVE",
    "QUANTITIES",
    "RANKS",
    "Curve",
    "CurveFile",
    "RankHistory",
    "RankPicture",
    "StepPoint",
    "last_point",
    "read_curve",
    "read_ranks",
    "told",
]
