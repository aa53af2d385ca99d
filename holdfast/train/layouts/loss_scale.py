"""The factor of the loss that keeps fp16 gradients from vanishing.

It doubles after so many good steps and halves when a gradient is not finite; that step is left out.
The norm of all gradients is the same on all ranks in any layout (`clipping`), so all decide alike,
which is what `torch.amp.GradScaler` does not promise where parameters are sharded or on stages.
"""

import math

BEGIN = 65_536.0
GROW_AFTER = 2_000


class LossScale:
    """The factor and how long it has been good. Tracked."""

    def __init__(self) -> None:
        self.factor = BEGIN
        self._good = 0

    def state_dict(self) -> dict[str, float]:
        """Both."""
        return {"factor": self.factor, "good": self._good}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on with it."""
        self.factor, self._good = state["factor"], int(state["good"])

    def accepts(self, norm: float) -> bool:
        """Whether a step with gradients of this norm may be taken; the factor follows."""
        if not math.isfinite(norm):
            self.factor, self._good = max(1.0, self.factor / 2), 0
            return False
        self._good += 1
        if self._good == GROW_AFTER:
            self.factor, self._good = self.factor * 2, 0
        return True
