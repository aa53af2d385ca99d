"""Whether a training is kept: because its script asks for it, or because Holdfast keeps any.

The same for every trainer that takes callbacks. A callback of ours in the trainer's list means that
the script has asked.
"""

from collections.abc import Callable
from typing import Any

from holdfast.errors import Error
from holdfast.integrations import drive


class Switch:
    """Of one integration: its trainer's name, whether that is one that we know (`require_known`
    raises `Error` if not), and how its callbacks are made."""

    def __init__(
        self, trainer: str, require_known: Callable[[], None], callback: type[Any]
    ) -> None:
        self._trainer = trainer
        self._require_known = require_known
        self._callback = callback
        self.automatic = False

    def on(self) -> None:
        """Keep the training of any trainer from now on, one that does not ask for it as well."""
        try:
            self._require_known()
        except Error as error:
            drive.left_alone(self._trainer, error.why)
            return
        self.automatic = True

    def callback_in(self, callbacks: list[Any], why_not: Callable[[], str]) -> Any:
        """The one of these that the script has given, or one of ours that joins them; None where
        the training is left alone. `why_not` says what of it cannot be kept.

        Raises `Error` (trainer-unsupported) for a script that asked for one that cannot be kept.
        """
        given = [one for one in callbacks if isinstance(one, self._callback)]
        if not given and not (self.automatic and drive.under_holdfast()):
            return None
        why = why_not()
        if given:
            if why:
                raise drive.unsupported_setting(self._trainer, why)
            return drive.first_of(self._trainer, given[0])
        if why or drive.is_taken():
            drive.left_alone(self._trainer, why or "another run is active in this process")
            return None
        drive.switched_on(self._trainer)
        callback = self._callback(reread=True)
        callback.asked = False
        callbacks.append(callback)
        return callback
