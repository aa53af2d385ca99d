"""Who is told of incidents, and how."""

from string import Formatter
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from holdfast.spec.section import Object, Seconds, Section, Variable, Whole

NoticeKind = Literal["incident", "waiting", "ended"]
WORDS = (
    "job", "event", "text", "attempt", "step", "incident", "cause", "node", "rank", "outcome",
    "ettr",
)  # fmt: skip
"""What a template may name."""


URL_VARIABLE = "HOLDFAST_NOTIFY_{}"
"""Where the controller's pod has the URL of a receiver whose URL is in a Secret."""


class SecretKey(Section):
    """One key of a Kubernetes Secret that exists."""

    name: Object
    """Name of the Secret."""
    key: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]{1,253}$")]
    """Key in it."""


class Notify(Section):
    """A receiver of notifications, sent by HTTP POST from the controller."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/]+")] | None = None
    """Where to. One that contains a token is a secret: give `url_env` or `url_secret` instead."""
    url_env: Variable | None = None
    """Variable of the environment of `holdfast run` that contains the URL. Local jobs."""
    url_secret: SecretKey | None = None
    """Secret that contains the URL. On Kubernetes."""
    format: Literal["json", "slack", "alertmanager"] = "json"
    """`json`: an object with every field and `text`. `slack`: `{"text": ...}`, which Mattermost,
    Rocket.Chat, Google Chat and others take, too. `alertmanager`: alerts for `/api/v2/alerts`."""
    on: tuple[NoticeKind, ...] = Field(default=get_args(NoticeKind), min_length=1)
    """`incident`: each one once it is over, and before if it is still open after `after_s`.
    `waiting`: the job has waited for nodes for `after_s`. `ended`: how the job has ended."""
    after_s: Seconds = 30.0
    """Time after which an incident or a wait that is not over is reported."""
    at_most_per_hour: Whole = Field(default=20, ge=1, le=3600)
    """Incidents beyond that are counted and reported with the next one. The end of the job is
    always reported."""
    template: Annotated[str, Field(min_length=1, max_length=4000)] = "{job}: {text}"
    """The text. May name `{job}`, `{event}`, `{text}`, `{attempt}`, `{step}`, `{incident}`,
    `{cause}`, `{node}`, `{rank}`, `{outcome}` and `{ettr}`; what is not known is empty."""

    @field_validator("template")
    @classmethod
    def _known(cls, template: str) -> str:
        for _, word, form, conversion in Formatter().parse(template):
            if word is not None and (word not in WORDS or form or conversion):
                raise ValueError(f"unknown placeholder {{{word}}}; known: {', '.join(WORDS)}")
        return template

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        given = [p for p in (self.url, self.url_env, self.url_secret) if p is not None]
        if len(given) != 1:
            raise ValueError("set exactly one of url, url_env and url_secret")
        return self
