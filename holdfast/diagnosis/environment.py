"""Errors of what a worker depends on and does not decide: networks, services, file systems.

A name that does not resolve, a connection that breaks, a time-out, an HTTP 5xx, a stale NFS handle:
trying again later is the cure, and the same error at the same step proves nothing about the script.
Exceptions are known by the names their libraries give them, by `errno`, by HTTP status, and by a
few phrases; a file that is not there (404, FileNotFoundError) and a right that is missing (403) are
not among them. Most were recorded from the libraries themselves (tests/diagnosis/services.py).
"""

import errno
import re

from holdfast.diagnosis.logs import Raised, raised_in
from holdfast.events import WorkerError


def _names(text: str) -> frozenset[str]:
    """The words that are not in parentheses."""
    return frozenset(re.sub(r"\(.*?\)", "", text).split())


NAMES = _names("""
    (Python)
    ConnectionError ConnectionResetError ConnectionAbortedError ConnectionRefusedError
    BrokenPipeError TimeoutError gaierror herror timeout RemoteDisconnected BadStatusLine
    IncompleteRead SSLEOFError SSLZeroReturnError SSLSyscallError
    (urllib3, requests)
    NewConnectionError NameResolutionError MaxRetryError ProtocolError ReadTimeoutError
    ConnectTimeoutError ConnectTimeout ReadTimeout Timeout ChunkedEncodingError RetryError
    ProxyError InvalidChunkLength
    (aiohttp, httpx, httpcore)
    ClientConnectionError ClientConnectionResetError ClientOSError ClientConnectorError
    ClientConnectorDNSError ClientProxyConnectionError ClientPayloadError
    ServerConnectionError ServerDisconnectedError ServerTimeoutError SocketTimeoutError
    ConnectionTimeoutError ConnectError ReadError WriteError WriteTimeout PoolTimeout
    RemoteProtocolError NetworkError
    (botocore, fsspec)
    EndpointConnectionError ConnectionClosedError HTTPClientError ProxyConnectionError
    ResponseStreamingError IncompleteReadError FSTimeoutError
    (google.api_core, google.auth, azure.core)
    ServiceUnavailable InternalServerError BadGateway GatewayTimeout DeadlineExceeded
    TooManyRequests ResourceExhausted TransportError ServiceRequestError ServiceResponseError
    ServiceRequestTimeoutError ServiceResponseTimeoutError
    (others that scripts train with)
    CommError AutoReconnect ServerSelectionTimeoutError NetworkTimeout
""")
"""Last parts of the names of exceptions that say it by themselves."""

HTTP = _names("""
    HTTPError HTTPStatusError ClientResponseError HfHubHTTPError HttpError HttpResponseError
    WSServerHandshakeError
""")
"""Exceptions whose message has an HTTP status; it decides."""
STATUS = re.compile(r"\b[1-5]\d\d\b")
REASON = re.compile(  # where a library leaves out the number
    r"invalid status '(?:Internal Server Error|Bad Gateway|Service Unavailable|Gateway Time-?out"
    r"|Too Many Requests)'|ErrorCode:(?:ServerBusy|InternalError|OperationTimedOut)\b"
)
TRY_LATER = frozenset((408, 425, 429, 500, 502, 503, 504, 507, 509, 520, 521, 522, 523, 524, 529))

ERRNO = re.compile(r"\[Errno (\d+)\]")
ERRNOS = frozenset(
    (
        errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.EPIPE, errno.ETIMEDOUT, errno.ECONNRESET,
        errno.ECONNREFUSED, errno.ECONNABORTED, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET,
        errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN, errno.ESHUTDOWN, errno.ENOLINK,
    )
)  # fmt: skip

SAID = re.compile(
    r"DataLoader timed out after \d+ seconds"
    r"|StatusCode\.(?:UNAVAILABLE|DEADLINE_EXCEEDED)"  # grpc
    r"|An error occurred \((?:5\d\d|SlowDown|ServiceUnavailable|InternalError|RequestTimeout"
    r"|InternalFailure|Throttl\w*|TooManyRequests\w*|RequestLimitExceeded"
    r"|ExpiredToken(?:Exception)?)\) when calling"  # a new process reads new credentials
    r"|retrieving credentials .*(?:non 200 response (?:429|5\d\d)|[Cc]onnect|[Tt]imed? ?out)"
    r"|AWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE)"  # Arrow
    r"|<urlopen error (?:timed out|\[(?:Errno -?\d+|SSL)\b)|Temporary failure in name resolution"
)
BAD_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
NOT_RETRIED = ("storage-place",)  # of our own errors of storage: it is no place

EXPIRED = re.compile(r"An error occurred \(400\) when calling the Head(?:Object|Bucket) operation")
"""S3 says no more of a token that has expired where it answers without a body."""
GONE = re.compile(
    r"^Unable to find '(?:https?|hf|s3|gs|gcs|az|abfss?)://"
    r"|^Couldn't find any data file at .* on the Hugging Face Hub"
)
"""What `datasets` says of files at a service, be it that they are not there or that the service
does not answer."""

BUGS = _names("""
    ArithmeticError AssertionError AttributeError FileNotFoundError ImportError IndentationError
    IndexError IsADirectoryError KeyError LookupError ModuleNotFoundError NameError
    NotADirectoryError NotImplementedError OverflowError PermissionError RecursionError
    SyntaxError TabError TypeError UnboundLocalError UnicodeDecodeError ValueError
    ZeroDivisionError
""")
"""What such a type says of itself is the script's; and one that came up while an error of the
environment was being handled is a mistake of the handler."""

OURS = re.compile(r"^error\[([a-z0-9-]+)\]: ")


def slug_of(error: WorkerError) -> str:
    """The slug of an error of Holdfast's own that ended the worker; empty for any other."""
    chain = [(r.type, r.message) for r in raised_in(error.traceback)]
    for kind, message in reversed([*chain, (error.type, error.message)]):
        found = OURS.match(message)
        if found and kind.endswith("errors.Error"):
            return found.group(1)
    return ""


def is_environment(error: WorkerError) -> bool:
    """Whether an exception, or one it came from, is of the environment and not of the script."""
    if _shows(error.type, error.message):
        return True
    for raised in reversed(raised_in(error.traceback)):
        if _shows(raised.type, raised.message):
            return True
        if _is_bug_of_a_handler(raised):
            return False
    return False


def has_changed(error: WorkerError, *, begins: bool) -> bool:
    """Of a job that has trained with the same settings: whether an error is that something which it
    depends on is not as it was. `begins`: this attempt has not trained yet."""
    said = [error.message, *(raised.message for raised in raised_in(error.traceback))]
    known = (EXPIRED, GONE) if begins else (EXPIRED,)
    return any(one.search(message) for one in known for message in said)


def _is_bug_of_a_handler(raised: Raised) -> bool:
    return raised.handling and _name(raised.type) in BUGS


def _shows(kind: str, message: str) -> bool:
    name = _name(kind)
    if name in BUGS or BAD_CERTIFICATE in message:
        return False
    if found := OURS.match(message):
        return found.group(1).startswith("storage-") and found.group(1) not in NOT_RETRIED
    if name in NAMES or SAID.search(message):
        return True
    if name in HTTP:
        status = STATUS.search(message)
        known = status is not None and int(status.group()) in TRY_LATER
        return known or REASON.search(message) is not None
    return any(int(number) in ERRNOS for number in ERRNO.findall(message))


def _name(kind: str) -> str:
    return kind.rpartition(".")[2]
