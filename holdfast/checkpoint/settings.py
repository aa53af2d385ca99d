"""What a job says about its checkpoints, as the agent passes it on in HOLDFAST_CHECKPOINTS."""

import os
from collections.abc import Mapping

import msgspec

from holdfast.checkpoint.tiers import Tier

VARIABLE = "HOLDFAST_CHECKPOINTS"
PLACES = {
    Tier.LOCAL: "HOLDFAST_CHECKPOINT_LOCAL",
    Tier.SHARED: "HOLDFAST_CHECKPOINT_SHARED",
    Tier.ARCHIVE: "HOLDFAST_CHECKPOINT_ARCHIVE",
}


class TierRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often one tier gets a checkpoint. Nothing given: by measured cost and failure rate."""

    every_s: float | None = None
    every_steps: int | None = None  # besides: at each multiple of this


class CheckpointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What concerns the workers. A tier without a rule is not used."""

    local: TierRule | None = None
    shared: TierRule | None = None
    archive: TierRule | None = None
    copies: int = 1  # nodes that keep a copy of a rank's private part, besides its own
    beside: bool = True  # copy what only an optimizer changes while training goes on
    mttf_s: float | None = None  # mean time between failures of the job; None: not known
    owner: str = ""  # tells the job from others of its name
    take_over: bool = False  # from another job of its name that lives

    def rule(self, tier: Tier) -> TierRule | None:
        """The rule of this tier."""
        return (self.local, self.shared, self.archive)[tier]

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Those in use, the quickest first."""
        return tuple(tier for tier in Tier if self.rule(tier) is not None)


_settings = msgspec.json.Decoder(CheckpointSettings)  # made ahead: it takes milliseconds


def settings_in(environ: Mapping[str, str] = os.environ) -> CheckpointSettings:
    """The settings of this worker; of no durable tier where nothing is said."""
    text = environ.get(VARIABLE)
    return CheckpointSettings() if text is None else _settings.decode(text)


def place_in(tier: Tier, environ: Mapping[str, str] = os.environ) -> str | None:
    """Where this tier keeps the job's checkpoints: a folder or a URL."""
    return environ.get(PLACES[tier])
