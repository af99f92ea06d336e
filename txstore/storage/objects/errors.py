"""Translates the libraries' exceptions into our errors: the class, whether a retry may help, and what the user can do.

The translation recognizes exceptions by their attributes and names, so it imports no library. A library's message may
hold a signed URL or a password. So our messages hold only the server's name for the error and words of ours; an unknown
message is cut short, without its secrets.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from txstore.errors import is_full
from txstore.storage.objects.backend import Refusal

# What the libraries that are used here are made of: an exception from elsewhere is a mistake in the code.
LIBRARIES = {
    "adlfs", "aiobotocore", "aiohttp", "aiohttp_retry", "azure", "boto3", "botocore", "fsspec", "gcsfs", "google",
    "h2", "msal", "obstore", "paramiko", "requests", "s3fs", "smbclient", "smbprotocol", "socket", "ssl", "urllib3",
    "urllib", "http", "pyo3_runtime",
}  # fmt: skip

TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
TRANSIENT_CODES = {
    "ConditionalRequestConflict",  # of S3: two were under way at once, and it is not decided yet which of them wins
    "OperationAborted",
    "RequestTimeout",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "InternalError",
    "ServerBusy",
    "ServiceUnavailable",
}
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName", "ContainerBeingDeleted", "AccountIsDisabled",
             "STATUS_BAD_NETWORK_NAME"}  # fmt: skip
EXISTS = {"PreconditionFailed", "BlobAlreadyExists", "ConditionNotMet", "UnmodifiedConditionNotMet"}
MISSING = {"NoSuchKey", "BlobNotFound", "ResourceNotFound"}
BEYOND = {"InvalidRange", "RequestedRangeNotSatisfiable"}
BAD_CREDENTIALS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthenticationFailed", "AuthFailure",
                   "STATUS_LOGON_FAILURE", "STATUS_ACCOUNT_DISABLED", "STATUS_PASSWORD_EXPIRED"}  # fmt: skip
FORBIDDEN = {"STATUS_ACCESS_DENIED"}
SKEWED = {"RequestTimeTooSkewed"}
FULL = {"QuotaExceeded", "QuotaExceededException", "XMinioStorageFull", "InsufficientStorage", "STATUS_DISK_FULL"}

NO_CREDENTIALS = re.compile(r"Credential|Unauthenticated|Authentication|RefreshError|BadHostKey")
# What Python's ssl says, and rustls in obstore.
BAD_CERTIFICATE = re.compile(
    r"certificate verify failed: ([^()]*\w)|InvalidCertificate\((?:\s*Other\(\s*OtherError\()?\s*(\w+)"
)
NO_TLS = re.compile(r"\bSSLError|\[SSL: |InvalidMessage\(|InvalidContentType")
LOST = re.compile(
    r"Connect|Disconnected|ServiceRequestError|ServiceResponseError|IncompleteRead|SSHException|ClientOSError"
    r"|ClientPayload|HTTPClientError|ResponseParser|ProtocolError|ProxyError|EOFError|IncompleteBody|ChunkedEncoding"
    r"|gaierror|BrokenPipe"
)
LOST_NUMBERS = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENOTCONN, errno.EPIPE, errno.ECONNRESET}

STATUS_IN_WORDS = re.compile(r"status(?: code)?:? (\d{3})\b")
SYSTEM_IN_WORDS = re.compile(r'code: \d+,\s+kind: \w+,\s+message: "([^"]+)"')  # obstore
CODE_IN_WORDS = re.compile(r"<Code>(\w+)</Code>|error code:? (\w+)|'(STATUS_[A-Z_]+)'")


class NotExclusiveError(OSError):
    """The server has let a second creator of an object through."""


class CutShortError(OSError):
    """An object ends within a requested range. A retry would not help."""


class NoListsError(OSError):
    """A web server lists no names, so that what is there can only be asked for by name."""


#: A note on an error: the server may yet carry out an earlier try of the same request.
UNANSWERED = "an earlier try of this request was not answered"


def was_unanswered(error: OSError) -> bool:
    return UNANSWERED in getattr(error, "__notes__", ())


def is_refusal(error: OSError) -> bool:
    """Tell whether the server has said that it has not written an object, and will not."""
    is_answer = isinstance(error, FileExistsError | PermissionError | FileNotFoundError) or is_full(error)
    return is_answer and not was_unanswered(error)


class Explained(NamedTuple):
    error: OSError
    passes: bool  # by itself: worth another try
    is_answer: bool = True  # False: no server is known to be there
    is_denied: bool = False  # the server knows who asks, and does not allow just this


class Facts(NamedTuple):
    """The facts of a server's answer: its status, and its own name for the error."""

    status: int | None
    code: str | None
    words: str

    @property
    def beyond_end(self) -> bool:
        return self.status == 416 or self.code in BEYOND

    @property
    def no_bucket(self) -> bool:
        return self.code in NO_BUCKET

    @property
    def missing(self) -> bool:
        return not self.no_bucket and (self.status == 404 or self.code in MISSING)


_USER = re.compile(r"(:/{1,2})[^/@\s]*@")
_ESCAPED = re.compile(r"://[^/@]*%(?:25)*40")  # a user whose @ is escaped


def _secrets_in(url: str) -> Iterator[str]:
    """Yield what a URL, perhaps a chained one, says of who opens it: users with their passwords, and queries."""
    yield from (each[3:] for each in _ESCAPED.findall(url))
    for link in _ESCAPED.sub(lambda found: unquote(unquote(found[0])), url).split("::"):
        _, separator, rest = link.partition(":")  # slashes may be missing, or one of them
        if not separator:
            continue
        rest = rest.lstrip("/")
        place = rest.partition("?")[0]
        user, at, _ = place.rpartition("@")
        name, colon, password = user.partition(":")
        if at and colon and "/" not in name:  # a slash may be part of the password, of nothing else
            # Who takes a slash in a password for the end of the host shows one half, or the other.
            yield from (each for each in (user, password, *password.split("/")) if len(each) > 1)
            if len(name) >= _KEY_LEAST:
                yield name
        parameters = re.split("[?&;]", rest)[1:]
        yield from (value for part in parameters if len(value := part.partition("=")[2]) > 3)


#: Names that are so long may be the first half of a key.
_KEY_LEAST = 12


class Secrets:
    """The strings among the options that no message may show."""

    # Names of options whose values say nothing secret, and may be part of what has to be said.
    HARMLESS = frozenset(
        {"endpoint_url", "region_name", "account_name", "host", "port", "project", "tenant_id", "profile", "protocol",
         "account_host", "txstore_engine"}
    )  # fmt: skip

    def __init__(self, options: Mapping[str, Any], urls: tuple[str, ...] = ()) -> None:
        found = {value for value in self._strings(options) if len(value) > 3}
        for url in [*urls, *self._urls(options)]:
            found.update(_secrets_in(url))
        found |= {unquote(value) for value in found} | {quote(value, safe="") for value in found}
        self._values = sorted(found, key=len, reverse=True)  # one may be part of another

    def _strings(self, options: Any, name: str = "") -> Iterator[str]:
        if isinstance(options, Mapping):
            for key, value in options.items():
                yield from self._strings(value, str(key))
        elif isinstance(options, list | tuple):
            for value in options:
                yield from self._strings(value, name)
        elif isinstance(options, str) and name not in self.HARMLESS:
            yield options
            yield from re.findall(r"(?:Key|Signature|sig)=([^;&]+)", options)

    def _urls(self, options: Any) -> Iterator[str]:
        if isinstance(options, Mapping):
            for value in options.values():
                yield from self._urls(value)
        elif isinstance(options, str) and "://" in options:
            yield options

    def are_in(self, words: str) -> bool:
        return _USER.search(words) is not None or any(value in words for value in self._values)

    def hide(self, words: str) -> str:
        for value in self._values:
            words = words.replace(value, "***")
        words = _USER.sub(r"\1", words)
        return re.sub(r"(\w)\?[^\s\"'>)]*[=&][^\s\"'>)]*", r"\1", words)  # queries: signed URLs have them


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, and the ones that caused it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen and len(seen) < 8:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__  # type: ignore[assignment]


def facts_of(error: BaseException) -> Facts:
    """Return what the server has said, if it has said anything."""
    status: int | None = None
    code: str | None = None
    for each in chain(error):
        response = getattr(each, "response", None)
        if isinstance(response, Mapping) and "Error" in response:  # botocore
            code = code or str(response["Error"].get("Code") or "")
            found: Any = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:  # azure, aiohttp, gcsfs
            found = getattr(each, "status_code", None) or getattr(each, "status", None) or getattr(each, "code", None)
            named = getattr(each, "error_code", None)  # a string that is an enum, too
            code = code or (str(getattr(named, "value", named)) if named else None)
        if status is None and str(found).isdigit() and 300 <= int(found) < 600:
            status = int(found)
    words = str(error)
    if status is None and (match := STATUS_IN_WORDS.search(words)):  # obstore
        status = int(match[1])
    if code is None and (match := CODE_IN_WORDS.search(words)):
        code = match[match.lastindex or 0]
    if code is None and "bucket does not exist" in words:  # gcs
        code = "NoSuchBucket"
    return Facts(status, code or None, words)


def _is_of_library(error: BaseException) -> bool:
    return any(type(each).__module__.partition(".")[0] in LIBRARIES for each in chain(error))


def explain(error: BaseException, path: str, secrets: Secrets, wish: str) -> Explained | None:
    """Return the meaning of an exception for `path`, a whole URL; None if it does not come from the store.

    `wish` names the failed request: read, list, write, delete, or ask for.
    """
    if isinstance(error, RuntimeError) and "shutdown" in str(error):
        # Background work for head caches and leases may come this late, and some libraries need a thread for a request.
        words = "the interpreter is about to end, and starts no threads any more: write before that"
        return Explained(OSError(errno.ECANCELED, words, path), False)
    if isinstance(error, NoListsError):
        words = (
            "this web server lists no names, and that takes a list: ask for branches and tags by their names, or let "
            "the server list directories"
        )
        return Explained(NoListsError(errno.ENOTSUP, words, path), False)
    if not isinstance(error, OSError | EOFError | Refusal) and not _is_of_library(error):
        return None
    facts = facts_of(error)
    named = f" ({facts.code})" if facts.code else ""
    answered = _answered(facts, path, named, wish)
    return answered if answered is not None else _unanswered(error, facts, path, named, secrets)


def _answered(facts: Facts, path: str, named: str, wish: str) -> Explained | None:
    """The server has answered: what it says decides."""
    status, code = facts.status, facts.code
    if code in SKEWED:
        words = f"this machine's clock and the server's differ by too much{named}: set this machine's clock"
        return Explained(PermissionError(errno.EACCES, words, path), False)
    if code in FULL or status == 507:
        words = (
            f"the bucket, or its owner, has no space left{named}: delete something there, by `txstore vacuum` if you "
            "like, or ask for a larger quota"
        )
        return Explained(OSError(errno.EDQUOT, words, path), False)
    if code in EXPIRED:
        words = f"the credentials have expired{named}: get new ones and open it again"
        return Explained(PermissionError(errno.EACCES, words, path), False)
    if facts.no_bucket:
        words = f"there is no such bucket, container or share{named}: look at the URL, or create it"
        return Explained(OSError(errno.EIO, words, path), False)
    if code in BAD_CREDENTIALS or status == 401:
        words = f"the server does not accept the credentials{named}: look at storage_options"
        return Explained(PermissionError(errno.EACCES, words, path), False)
    if status in TRANSIENT or code in TRANSIENT_CODES:
        words = f"the server was too busy or out of order{named}, and so often that no more tries are made: try later"
        return Explained(OSError(errno.EIO, words, path), True)
    if code in EXISTS or status in (304, 412):
        return Explained(FileExistsError(errno.EEXIST, "it exists already", path), False)
    if status == 409:  # no code says that it exists: two requests for one object were under way
        words = f"others keep writing the same object{named}: try later"
        return Explained(OSError(errno.EIO, words, path), True)
    if status == 403 and path.startswith(("http://", "https://")):
        words = (
            f"the server refuses to {wish} this (status 403): open it to readers, or give credentials (storage_options)"
        )
        return Explained(PermissionError(errno.EACCES, words, path), False, is_denied=True)
    if status == 403 or code in FORBIDDEN:
        words = f"these credentials are not allowed to {wish} this{named}: ask for the permission"
        return Explained(PermissionError(errno.EACCES, words, path), False, is_denied=True)
    if facts.missing:
        return Explained(FileNotFoundError(errno.ENOENT, "there is no such object", path), False)
    if status is not None and 300 <= status < 400:
        words = (
            f"the server points elsewhere (status {status}{named}), where it was not followed: look at the URL, the "
            "region and the endpoint"
        )
        return Explained(OSError(errno.EIO, words, path), False)
    if status == 501 or code == "NotImplemented":
        return Explained(OSError(errno.ENOTSUP, f"the server has no such request{named}", path), False)
    if status == 400 and code in (None, "400") and path.startswith("s3://"):
        # S3 names every error. Ceph's gateway has given this answer when it had just been started again.
        words = "the server, or what stands before it, has not understood the request (status 400): look at the URL"
        return Explained(OSError(errno.EIO, words, path), True, is_answer=False)
    if status is not None and status >= 400:
        words = f"the server refuses the request (status {status}{named}): look at the URL and storage_options"
        return Explained(OSError(errno.EIO, words, path), False)
    return None


def of_another(refused: OSError) -> PermissionError:
    """Return what to raise for an object of S3 that may be listed and not be read: another account may own it."""
    told = (
        f"{refused.strerror}. The object is there: if another account has written it, that account has to let the "
        "bucket's owner read it, by storage_options={'s3_additional_kwargs': {'ACL': 'bucket-owner-full-control'}}, or "
        "the bucket has to enforce that its owner owns all objects"
    )
    return PermissionError(errno.EACCES, told, refused.filename)


def _unanswered(error: BaseException, facts: Facts, path: str, named: str, secrets: Secrets) -> Explained:
    """No status is known: the type of the exception decides."""
    for known, number, words in (
        (FileExistsError, errno.EEXIST, "it exists already"),
        (FileNotFoundError, errno.ENOENT, "there is no such object"),
        (NotADirectoryError, errno.ENOTDIR, "a part of the path is an object, not a directory"),
    ):
        if isinstance(error, known) or getattr(error, "errno", None) == number:
            return Explained(known(number, words, path), False)
    names = " ".join(type(each).__name__ for each in chain(error))
    of_system = SYSTEM_IN_WORDS.search(facts.words)
    told = (
        error.strerror if isinstance(error, OSError) and error.strerror else of_system[1] if of_system else facts.words
    )
    said = _short(secrets.hide(str(told)))
    if "AlreadyExists" in names:
        return Explained(FileExistsError(errno.EEXIST, "it exists already", path), False)
    if isinstance(error, PermissionError) or "PermissionDenied" in names:
        return Explained(PermissionError(errno.EACCES, f"no permission: {said}; look at storage_options", path), False)
    if "Timeout" in names or "kind: Timeout" in facts.words:
        words = f"the server does not answer in time: {said}"
        return Explained(TimeoutError(errno.ETIMEDOUT, words, path), True, is_answer=False)
    if (certificate := BAD_CERTIFICATE.search(facts.words)) is not None:
        reason = certificate[1] or certificate[2]
        words = f"the server's TLS certificate is not accepted ({reason}): look at the address and at your certificates"
        return Explained(_lost(words, path), False)
    if NO_TLS.search(f"{names} {facts.words}"):
        words = "the server does not speak TLS there: is its address http://, or of another port?"
        return Explained(_lost(words, path), False)
    if NO_CREDENTIALS.search(names):
        words = f"no valid credentials: {said}; give them in storage_options"
        return Explained(PermissionError(errno.EACCES, words, path), False)
    lost = isinstance(error, ConnectionError | EOFError) or getattr(error, "errno", None) in LOST_NUMBERS
    if lost or LOST.search(names) or "kind: Connect" in facts.words:
        words = f"no connection to the server: {said}; look at the address (http:// or https://?) and the network"
        return Explained(_lost(words, path), True, is_answer=False)
    if re.search(r"kind: (Request|Decode|Interrupted|Unknown)\b", facts.words):  # obstore
        return Explained(_lost(f"the connection to the server was lost: {said}", path), True, is_answer=False)
    return Explained(OSError(errno.EIO, f"{type(error).__name__}{named}: {said}", path), False)


def _lost(words: str, path: str) -> OSError:
    return ConnectionError(errno.ECONNABORTED, words, path)


def _short(words: str) -> str:
    """The first line is what a library says, the rest is how it got there."""
    line = words.strip().partition("\n")[0]
    return line if len(line) <= 300 else line[:300] + "..."
