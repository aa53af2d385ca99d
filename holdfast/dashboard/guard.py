"""Who may see the page, and what a browser may do with it. In front of everything else.

- Nothing but GET and HEAD is answered: nobody can change anything through the page, from any site.
- On loopback the name in `Host` must be one of this machine. A page of another site whose name was
  made to point here (DNS rebinding) has that site's name, and is refused.
- Elsewhere a token is needed, in `Authorization` or in a cookie that a link sets which works once;
  or a token of the cluster, which its API server is asked about.
- Scripts, styles and figures come from here alone; no other site may frame, read or embed it.
"""

import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "holdfast-page"
SAFE = ("GET", "HEAD")
LOOPBACK = frozenset(("localhost", "127.0.0.1", "[::1]"))
SOURCES = "script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; {SOURCES}; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Verify = Callable[[str], Awaitable[bool]]  # whether this token may see the page


class Links:
    """A token, and links with a secret of their own that sets it as a cookie, once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.token = secrets.token_urlsafe(32)
        self._tell = tell
        self._secret = ""

    def offer(self) -> None:
        """Tell of a new link."""
        self._secret = secrets.token_urlsafe(24)
        self._tell(self._secret)

    async def verify(self, token: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(token.encode(), self.token.encode())

    def used(self, secret: str) -> str | None:
        """The token for the secret of the newest link, which is used up by that."""
        if not self._secret or not hmac.compare_digest(secret.encode(), self._secret.encode()):
            return None
        self.offer()
        return self.token


class Guard:
    """Answers by itself what may not pass."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: Iterable[str] | None,
        verify: Verify | None,
        links: Links | None,
    ) -> None:
        self._app, self._verify, self._links = app, verify, links
        self._hosts = None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refused = await self._refused(scope)
        await (refused or self._app)(scope, receive, guarded)

    async def _refused(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in SAFE:
            return PlainTextResponse("this page is read-only", 405)
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            return PlainTextResponse(f"host {_name(host)!r} is not served here", 403)
        if _foreign(headers, host):
            return PlainTextResponse("cross-site requests are refused", 403)
        if self._verify is None:
            return None
        return await self._unknown(scope, headers, self._verify)

    async def _unknown(self, scope: Scope, headers: Headers, verify: Verify) -> Response | None:
        asked = parse_qs(scope["query_string"].decode("latin-1"))
        if given := asked.get("token", [""])[0]:
            return await self._let_in(given, verify)
        if any([await verify(token) for token in _tokens(headers)]):
            return None
        return PlainTextResponse(
            "a token is needed: `Authorization: Bearer TOKEN`, or the link that was printed when "
            "the page was started", 401, {"WWW-Authenticate": "Bearer"},
        )  # fmt: skip

    async def _let_in(self, given: str, verify: Verify) -> Response:
        """By a link: the secret leaves the address before anything is shown."""
        token = self._links.used(given) if self._links is not None else given
        if token is None or not await verify(token):
            return PlainTextResponse(
                "this link was already used or is invalid: a new one was printed", 401
            )
        answer = RedirectResponse("./", 303)
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return answer


def _name(host: str) -> str:
    """Without the port."""
    name, colon, port = host.rpartition(":")
    return name.lower() if colon and port.isdecimal() else host.lower()


def _foreign(headers: Headers, host: str) -> bool:
    """Asked for by a page of another site; following a link to here is none of that."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return True
    site, mode = headers.get("sec-fetch-site", ""), headers.get("sec-fetch-mode", "")
    return site == "cross-site" and mode != "navigate"


def _tokens(headers: Headers) -> list[str]:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    found = [token.strip()] if scheme.lower() == "bearer" and token.strip() else []
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return found
    return [*found, cookie.value] if cookie is not None and cookie.value else found
