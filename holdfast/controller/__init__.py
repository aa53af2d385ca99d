"""The controller: facts in, orders out. Pure."""

from holdfast.controller.controller import Controller
from holdfast.controller.phases import Phase
from holdfast.controller.state import IncidentRecord, Limits, NodeState, State

__all__ = ["Controller", "IncidentRecord", "Limits", "NodeState", "Phase", "State"]
