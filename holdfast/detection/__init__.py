"""Telemetry in, facts out. Pure."""

from holdfast.detection.liveness import Liveness
from holdfast.detection.progress import ProgressReducer

__all__ = ["Liveness", "ProgressReducer"]
