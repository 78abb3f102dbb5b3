"""Publish messages to Fencepost from Python.

    from fencepost import Publisher

    with Publisher("mongodb://db1,db2,db3/shop") as publisher:
        publisher.publish("orders", b'{"id": 4711}')

One file, to be copied. It needs Python 3.9 or newer and pymongo 3.11 or newer (Debian: python3-pymongo). It implements the protocol
of docs/protocol.md, which explains the details.

Guarantees:

* A message whose ``publish`` returned is stored by a majority of the servers, and will be in its type's file exactly once.
* A message whose ``publish`` raised anything but ``Unknown`` is not stored and never will be.
* ``Unknown`` means that the server gave no clear answer. Publishing the message again could store it twice, unless it has a key.
* Stored messages of one type are in the file in the order in which this publisher published them.

An interrupt (``KeyboardInterrupt``, an exception of a signal handler) in the middle of ``publish`` is like ``Unknown``.

A publisher may be used by several threads. It must not be used after a fork: create one in each process.
"""

import base64
import datetime
import os
import random
import re
import threading
import time
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import pymongo
from pymongo import errors as mongo
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

__all__ = ["Publisher", "Message", "Result", "FencepostError", "InvalidMessage", "Rejected", "Paused", "BacklogFull", "Unknown",
           "PublishManyError", "Unreachable", "Closed"]

# Limits of a message. docs/protocol.md, "Messages".
MAX_TYPE = 64                 # characters
MAX_PAYLOAD = 15 << 20        # bytes
MAX_HEADERS = 64 << 10        # bytes of all keys and values
MAX_HEADER_COUNT = 256
MAX_KEY = 255                 # bytes
KEY_HEADER = "idempotency-key"

# A batch. docs/protocol.md, "Insert".
BATCH_MESSAGES = 1000
BATCH_BYTES = 4 << 20
_MESSAGE_OVERHEAD = 384       # of Message.Size
_HEADER_OVERHEAD = 100

# Times, in seconds. docs/protocol.md, "Times".
ATTEMPT_TIMEOUT = 30.0
REPEAT_FOR = 600.0
BACKLOG_WAIT = 600.0
MAX_WAIT = 12 * 3600.0        # limit of repeat_for and backlog_wait: a consumer remembers a producer for 24 h
IDLE_ROTATE = 3600.0
ROTATION_PAUSE = 45.0
SETTINGS_EVERY = 2.0
SETTINGS_TIMEOUT = 1.0        # for reading the settings
FIRST_SETTINGS_TIMEOUT = 10.0  # for reading them for the first time
COUNT_SHARE = 9               # pause between two counts of the backlog, in multiples of the time that the last count took
MAX_BACKLOG = 10_000_000
_REPEAT_WAIT = (0.05, 5.0)
_FULL_WAIT = (0.05, 1.0)

# Notifications. docs/protocol.md, "Notifications".
NOTIFY_LOGS = 8
NOTIFY_KEPT = 128
NOTIFY_EVERY = 0.25
NOTIFY_AGAIN = 1.0            # between two notifications of the same type
NOTIFY_CLOSING = 0.5          # how long close waits for the last notification

DEFAULT_DATABASE = "fencepost"

# Error codes with which a server refuses a request before it writes anything. docs/protocol.md, "Answers".
_DUPLICATE = 11000
_NOT_PERMITTED = frozenset((13, 18))
_REFUSED = frozenset((2, 9, 14, 16, 20, 22, 52, 57, 59, 73, 115, 121, 166, 322, 323, 324, 8000, 10334, 17280))

_TYPE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_BASE32 = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", "0123456789abcdefghijklmnopqrstuv")


class FencepostError(Exception):
    """The base of all errors of this module."""


class InvalidMessage(FencepostError, ValueError):
    """The message breaks a limit. Nothing was sent."""


class Rejected(FencepostError):
    """The message is not stored and never will be."""


class Paused(Rejected):
    """An operator has paused publishing for the type (fencepost types pause)."""


class BacklogFull(Rejected):
    """As many messages of the type are pending as its limit allows (fencepost types limit)."""


class Unknown(FencepostError):
    """The message may or may not be stored, now or later, under the ID ``id``."""

    def __init__(self, text: str, id: str) -> None:
        super().__init__(text)
        self.id = id


class PublishManyError(FencepostError):
    """Not all messages of ``publish_many`` are stored. ``results`` has one Result for each, in the same order."""

    def __init__(self, text: str, results: "List[Result]") -> None:
        super().__init__(text)
        self.results = results


class Unreachable(FencepostError, ConnectionError):
    """No usable server was found when the publisher was created."""


class Closed(FencepostError):
    """The publisher was closed, or belongs to another process. Nothing was sent."""


@dataclass(frozen=True)
class Message:
    """One message. A payload that is a str is sent as UTF-8."""

    type: str
    payload: Union[bytes, bytearray, memoryview, str]
    headers: Optional[Mapping[str, str]] = None
    key: Optional[str] = None


class Result(NamedTuple):
    """The outcome of one message of ``publish_many``."""

    status: str                     # "stored", "unknown" or "rejected"
    id: Optional[str]               # None if rejected
    error: Optional[FencepostError]  # None if stored


class _Failure(Exception):
    """An insert that did not store everything. The first ``stored`` messages are known to be stored. ``refused``: the others are not,
    and this insert will never store them; ``temporary``: the cause may pass."""

    def __init__(self, cause: BaseException, stored: int = 0, refused: bool = False, temporary: bool = False) -> None:
        super().__init__(str(cause))
        self.cause, self.stored, self.refused, self.temporary = cause, stored, refused, temporary


class _Prepared(NamedTuple):
    """A valid message, copied from the caller's."""

    type: str
    payload: bytes
    headers: Dict[str, str]
    size: int


def encode_id(time_ms: int, producer: int, n: int) -> str:
    """Return the ID of message n of a producer, in its text form."""
    raw = time_ms.to_bytes(6, "big") + producer.to_bytes(8, "big") + n.to_bytes(6, "big")
    return base64.b32encode(raw).decode("ascii").translate(_BASE32)


def encode_document(type: str, id: str, payload: bytes, headers: Mapping[str, str]) -> Dict[str, Any]:
    """Return the document of a message for the collection messages."""
    doc: Dict[str, Any] = {"_id": type + "/" + id, "b": payload}
    if headers:
        keys = sorted(headers)  # so that a repeated document is identical
        if any("." in k or k.startswith("$") for k in keys):
            doc["h"] = [text for k in keys for text in (k, headers[k])]
        else:
            doc["h"] = {k: headers[k] for k in keys}
    return doc


def prepare(message: Message) -> _Prepared:
    """Check a message and copy it."""
    type = message.type
    if not isinstance(type, str) or not _TYPE.fullmatch(type):
        raise InvalidMessage(f"type {type!r:.100}: want 1 to {MAX_TYPE} characters, a-z or 0-9 first, then a-z, 0-9, '.', '_' or '-' "
                             "(example: orders.v2)")
    payload = message.payload
    if isinstance(payload, str):
        payload = _utf8("the payload", payload)
    try:
        payload = bytes(memoryview(payload))
    except TypeError:
        raise InvalidMessage(f"the payload is a {message.payload.__class__.__name__}, want bytes or str") from None
    if len(payload) > MAX_PAYLOAD:
        raise InvalidMessage(f"the payload has {len(payload)} bytes, at most {MAX_PAYLOAD} are allowed; store the data elsewhere and publish "
                             "a reference, or split it into several messages")
    headers = dict(message.headers or {})
    if message.key is not None:
        if KEY_HEADER in headers:
            raise InvalidMessage(f"the message has a key and a header {KEY_HEADER}; give one of them")
        headers[KEY_HEADER] = message.key
    if len(headers) > MAX_HEADER_COUNT:
        raise InvalidMessage(f"{len(headers)} headers, at most {MAX_HEADER_COUNT} are allowed; move the data into the payload")
    length = 0
    for k, v in headers.items():
        if not isinstance(k, str) or not isinstance(v, str):
            raise InvalidMessage(f"header {k!r:.100}: keys and values are str")
        length += len(_utf8("a header's key", k)) + len(_utf8(f"header {k!r:.100}", v))
        if k == "" or "\0" in k:
            raise InvalidMessage(f"header {k!r:.100}: a key is not empty and holds no NUL")
        if k == KEY_HEADER and not 1 <= len(v.encode()) <= MAX_KEY:
            raise InvalidMessage(f"an idempotency key has 1 to {MAX_KEY} bytes, not {len(v.encode())}")
    if length > MAX_HEADERS:
        raise InvalidMessage(f"the headers have {length} bytes, at most {MAX_HEADERS} are allowed; move the data into the payload")
    return _Prepared(type, payload, headers, len(payload) + length + len(headers) * _HEADER_OVERHEAD + _MESSAGE_OVERHEAD)


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidMessage(f"{what} is not valid Unicode text") from None


def _now() -> float:
    """Return a monotonic time in seconds that includes the time when the machine slept. Nothing here depends on a wall clock."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _pause(bounds: Tuple[float, float], attempt: int) -> float:
    """Return the pause after an attempt, counted from 1: doubling, with jitter over its upper half."""
    wait = min(bounds[0] * 2 ** min(attempt - 1, 16), bounds[1])
    return wait / 2 + random.random() * wait / 2


class _Stream:
    """The messages of one type: a producer number, and one batch in flight at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.producer, self.n = _new_producer(), 0
        self.time_ms = 0                          # of the last ID
        self.stored: Optional[float] = None       # when messages were last stored
        self.not_before = 0.0                     # the earliest time of the next batch
        self.registered = False
        self.room, self.room_until = 0, 0.0       # how many messages may be sent until then
        self.count_next = 0.0                     # the earliest time of the next count of the backlog
        self.full_since: Optional[float] = None
        self.looks = 0                            # counts that found the backlog full

    def rotate(self) -> None:
        """Use a new producer number after any outcome except "all stored", so that the numbers of messages that were not stored leave no
        gap. Wait before the next batch, so that a consumer has seen the messages stored under the old number."""
        self.producer, self.n = _new_producer(), 0
        if self.stored is not None:
            self.not_before = self.stored + ROTATION_PAUSE


def _new_producer() -> int:
    return int.from_bytes(os.urandom(8), "big")


def notification(types: Sequence[str]) -> Dict[str, Any]:
    """Return the update that notifies workers of types."""
    return {"$inc": {"n": len(types)}, "$push": {"t": {"$each": list(types[-NOTIFY_KEPT:]), "$slice": -NOTIFY_KEPT}}}


class _Announcer:
    """Notifies workers of types with new messages, on its own thread while there is something to send. Failed notifications are dropped:
    workers also find messages without them."""

    def __init__(self, collection: Any) -> None:
        self._collection = collection
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._untold: Dict[str, None] = {}       # types with messages since their last notification
        self._told: Dict[str, float] = {}        # times of recent notifications, by type

    def note(self, types: Iterable[str]) -> None:
        with self._lock:
            self._untold.update(dict.fromkeys(types))
            if self._untold and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fencepost-notify", daemon=True)
                self._thread.start()

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(NOTIFY_CLOSING)

    def _run(self) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                self._told = {t: at for t, at in self._told.items() if now - at < NOTIFY_AGAIN}
                types = [t for t in self._untold if t not in self._told or self._closing.is_set()]
                for t in types:
                    del self._untold[t]
                    self._told[t] = now
                if not types and not self._untold:
                    self._thread = None
                    return
            if types:
                self._tell(types)
            self._closing.wait(NOTIFY_EVERY)

    def _tell(self, types: Sequence[str]) -> None:
        log = {"_id": str(random.randrange(NOTIFY_LOGS))}
        try:
            while not self._collection.update_one(log, notification(types)).matched_count:
                try:
                    self._collection.insert_one({**log, "n": random.getrandbits(40) + len(types), "t": list(types[-NOTIFY_KEPT:])})
                    return
                except mongo.DuplicateKeyError:
                    pass  # another publisher was first
        except Exception:
            pass


class Publisher:
    """Publishes messages to the MongoDB database that ``url`` names (mongodb://…/database, by default "fencepost").

    ``repeat_for`` is how long, in seconds, a batch without a clear answer is sent again before it is Unknown. ``backlog_wait`` is how
    long messages wait for room in a full backlog before they are refused with BacklogFull; 0 refuses at once. ``attempt_timeout``
    bounds one attempt. The constructor connects, and raises Unreachable if there is no usable server.
    """

    def __init__(self, url: str, *, repeat_for: float = REPEAT_FOR, backlog_wait: float = BACKLOG_WAIT,
                 attempt_timeout: float = ATTEMPT_TIMEOUT) -> None:
        if not 0 <= repeat_for <= MAX_WAIT or not 0 <= backlog_wait <= MAX_WAIT or attempt_timeout <= 0:
            raise ValueError(f"repeat_for and backlog_wait are 0 to {MAX_WAIT:.0f} seconds, attempt_timeout is more than 0")
        self._repeat_for, self._backlog_wait = repeat_for, backlog_wait
        lower = url.lower()
        options: Dict[str, Any] = {
            "retryWrites": False,  # so that an error is about a single attempt
            "socketTimeoutMS": max(1, int(attempt_timeout * 1000)),
        }
        if "serverselectiontimeoutms=" not in lower:
            options["serverSelectionTimeoutMS"] = 5000
        if "appname=" not in lower:
            options["appname"] = "fencepost-python"
        try:
            if not lower.startswith(("mongodb://", "mongodb+srv://")):
                raise ValueError
            self._client = pymongo.MongoClient(url, **options)
            database = self._client.get_default_database(DEFAULT_DATABASE).name
        except (mongo.PyMongoError, ValueError):
            # Without the cause: the driver may quote what it cannot parse, and that may be a password.
            raise ValueError("the URL is not valid; write it as in mongodb://user:password@host/database, and percent-encode "
                             "special characters in user name and password (%40 for @, %3A for :, %2F for /, %25 for %)") from None
        durable = WriteConcern("majority", j=True)
        db = self._client.get_database(database, read_preference=ReadPreference.PRIMARY, write_concern=durable)
        self._db = db
        self._messages = db.get_collection("messages")
        self._majority = db.get_collection("messages", read_concern=ReadConcern("majority"))
        self._types = db.get_collection("types")
        self._announcer = _Announcer(db.get_collection("notifications", write_concern=WriteConcern(1)))
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._streams: Dict[str, _Stream] = {}
        self._settings_lock = threading.Lock()
        self._settings: Dict[str, Tuple[bool, int, str]] = {}
        self._settings_until = 0.0
        try:
            self._read_clock()
        except BaseException:
            self._client.close()
            raise

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect, after the messages that other threads are publishing are settled. Closing twice is not an error."""
        self._closed = True
        if self._pid == os.getpid():
            for stream in list(self._streams.values()):
                with stream.lock:
                    pass
            self._announcer.close()
        self._client.close()

    def publish(self, type: str, payload: Union[bytes, bytearray, memoryview, str], headers: Optional[Mapping[str, str]] = None,
                key: Optional[str] = None) -> str:
        """Publish one message, wait until it is stored, and return its ID.

        Raises InvalidMessage, Rejected (Paused, BacklogFull) or Closed if it is not stored and never will be, and Unknown if it may be.

        Messages of a type with the same ``key`` (1 to 255 bytes) that are published within the worker's dedupe window, an hour by
        default, get into the file once. This is for programs that may publish the same message again, as after Unknown or a restart.
        """
        result = self._publish([prepare(Message(type, payload, headers, key))])[0]
        if result.error is not None:
            raise result.error
        assert result.id is not None
        return result.id

    def publish_many(self, messages: Iterable[Message]) -> List[str]:
        """Publish messages in batches, wait until all are stored, and return their IDs in the same order.

        All are checked before any is sent: InvalidMessage means that none was sent. Messages of a type are stored in the order of
        ``messages``; after one that is not stored, no later message of its type is sent. PublishManyError has the outcome of each.
        """
        results = self._publish([prepare(m) for m in messages])
        failed = [r for r in results if r.error is not None]
        if failed:
            unknown = sum(r.status == "unknown" for r in failed)
            raise PublishManyError(f"{len(results) - len(failed)} messages are stored, {unknown} may be, {len(failed) - unknown} are not: "
                                   f"{failed[0].error}", results) from failed[0].error
        return [r.id for r in results if r.id is not None]

    def _publish(self, messages: Sequence[_Prepared]) -> List[Result]:
        results: List[Optional[Result]] = [None] * len(messages)
        by_type: Dict[str, List[int]] = {}
        for i, m in enumerate(messages):
            by_type.setdefault(m.type, []).append(i)
        for type, indexes in by_type.items():
            with self._lock:
                stream = self._streams.setdefault(type, _Stream())
            with stream.lock:
                self._publish_type(type, stream, messages, indexes, results)
            if any(results[i].status != "rejected" for i in indexes):  # type: ignore[union-attr]
                self._announcer.note([type])
        return results  # type: ignore[return-value]

    def _publish_type(self, type: str, s: _Stream, messages: Sequence[_Prepared], indexes: Sequence[int],
                      results: List[Optional[Result]]) -> None:
        """Publish the messages of one type. The stream's lock is held: one batch of it is in flight at a time."""
        began = _now()
        at = 0
        failed: Optional[BaseException] = None
        while at < len(indexes):
            if failed is None:
                try:
                    room = self._admit(type, s, began)
                except (Rejected, Closed) as refused:
                    failed = refused
            if failed is not None:
                for i in indexes[at:]:
                    results[i] = Result("rejected", None, failed if isinstance(failed, (Rejected, Closed)) else Rejected(
                        f"not sent: an earlier message is not known to be stored: {failed}"))
                return
            batch = _take(messages, indexes[at:], room)
            for i, (id, outcome) in zip(batch, self._send(type, s, [messages[i] for i in batch])):
                results[i] = Result("stored", id, None) if outcome is None else Result(
                    "unknown" if isinstance(outcome, Unknown) else "rejected", id if isinstance(outcome, Unknown) else None, outcome)
                failed = failed or outcome
            at += len(batch)
            s.room -= len(batch)

    def _number(self, type: str, s: _Stream, messages: Sequence[_Prepared]) -> Tuple[List[Dict[str, Any]], List[str]]:
        """Give the messages of a batch IDs: n counts without a gap, time never goes back."""
        if s.n > 0 and s.stored is not None and _now() - s.stored >= IDLE_ROTATE:
            s.producer, s.n = _new_producer(), 0  # no pause is needed: after that time, consumers have read everything
        s.time_ms = max(s.time_ms, self._server_ms + int((_now() - self._server_at) * 1000))
        ids = [encode_id(s.time_ms, s.producer, s.n + i) for i in range(1, len(messages) + 1)]
        s.n += len(messages)
        return [encode_document(type, id, m.payload, m.headers) for id, m in zip(ids, messages)], ids

    def _send(self, type: str, s: _Stream, messages: Sequence[_Prepared]) -> List[Tuple[str, Optional[FencepostError]]]:
        """Insert a batch until every message of it is settled. Return their IDs, and why they are not stored; None means stored."""
        outcomes: List[Optional[FencepostError]] = [None] * len(messages)
        began, done, may_have_landed, attempt, settled = _now(), 0, False, 0, False
        try:
            docs, ids = self._number(type, s, messages)
            while True:
                attempt += 1
                try:
                    self._insert(docs[done:])
                    s.stored, settled = _now(), True
                    self._register(type, s)
                    return list(zip(ids, outcomes))
                except _Failure as failure:
                    if failure.stored:
                        s.stored = _now()
                    done += failure.stored
                    may_have_landed = may_have_landed or not failure.refused
                    wait = _pause(_REPEAT_WAIT, attempt)
                    if failure.refused and not failure.temporary or self._repeat_for - (_now() - began) <= wait:
                        for i in range(done, len(docs)):
                            # Never rejected if the outcome of an earlier attempt is unclear, however clear the last response was.
                            outcomes[i] = (Unknown(f"the message may or may not be stored: {failure}", ids[i]) if may_have_landed
                                           else Rejected(f"the message is not stored: {failure}"))
                            outcomes[i].__cause__ = failure.cause  # type: ignore[union-attr]
                        return list(zip(ids, outcomes))
                time.sleep(wait)
                # Send the same documents with the same IDs again, so that the server recognises those that it has stored.
        finally:
            if not settled:  # also after an interrupt
                s.rotate()

    def _insert(self, docs: Sequence[Dict[str, Any]]) -> None:
        """Store documents in order. Documents that are already there count as stored."""
        pending = list(enumerate(docs))
        while pending:
            landed, duplicate, failure = self._insert_ordered([d for _, d in pending])
            pending = pending[landed:]
            if duplicate:
                # An earlier attempt was executed, so more of the documents are probably there. Insert only the missing ones, in order.
                pending = pending[1:]
                try:
                    there = self._present([d["_id"] for _, d in pending])
                except _Failure as unread:
                    raise _Failure(unread.cause, stored=pending[0][0]) from unread.cause
                pending = [p for p in pending if p[1]["_id"] not in there]
            elif failure is not None:
                failure.stored = pending[0][0]
                raise failure from failure.cause

    def _insert_ordered(self, docs: Sequence[Dict[str, Any]]) -> Tuple[int, bool, Optional[_Failure]]:
        """Insert once, ordered, with write concern majority. Return how many documents from the front are known to be stored, whether the
        next one was already there, and otherwise why it is not stored."""
        try:
            self._messages.insert_many(docs, ordered=True)
            return len(docs), False, None
        except mongo.BulkWriteError as error:
            details = error.details or {}
            writes = details.get("writeErrors") or []
            if details.get("writeConcernErrors") or not writes:
                return 0, False, _Failure(error)  # written, but not yet durably: nothing is certain
            first = writes[0]
            if first.get("code") == _DUPLICATE:
                return first["index"], True, None
            cause = Rejected(f"the server refused it: {first.get('errmsg', '')} (code {first.get('code')})")
            return first["index"], False, _Failure(cause, refused=_is_refusal(first.get("code")))
        except Exception as error:  # any error must be classified
            return 0, False, _judge(error)

    def _present(self, keys: Sequence[str]) -> "set[str]":
        """Return which of the documents are durably stored, as far as the server can tell."""
        if not keys:
            return set()
        try:
            return {d["_id"] for d in self._majority.find({"_id": {"$in": list(keys)}}, {"_id": 1}, batch_size=len(keys) + 1)}
        except mongo.OperationFailure:
            return set()  # a server without this read concern: duplicate key errors then reveal them one by one
        except Exception as error:
            raise _Failure(error) from error

    def _admit(self, type: str, s: _Stream, began: float) -> int:
        """Wait until messages of the type may be sent, and return how many. Raise Paused, BacklogFull or Closed."""
        while True:
            if self._closed or self._pid != os.getpid():
                raise Closed("not sent: the publisher was closed" if self._closed else
                             "not sent: the publisher was created by another process, and must not be used after a fork; create one in this process")
            now = _now()
            if now < s.not_before:
                time.sleep(s.not_before - now)
                continue
            paused, limit, why = self._setting(type)
            if paused:
                raise Paused(f"not stored: publishing is paused for type {type}" + (f" ({why[:200]!r})" if why else ""))
            if limit == 0:
                s.full_since = None
                return BATCH_MESSAGES
            now = _now()
            if s.room > 0 and now < s.room_until:
                return s.room
            if now >= s.count_next:
                self._count(type, s, limit)
                continue
            if s.full_since is not None and now - max(began, s.full_since) >= self._backlog_wait:
                raise BacklogFull(f"not stored: {limit} messages of type {type} are pending, which is its limit; start a worker for it, or raise "
                                  "the limit")
            time.sleep(s.count_next - now)

    def _setting(self, type: str) -> Tuple[bool, int, str]:
        """Return the settings of a type: whether publishing is paused, its backlog limit (0: none), and the reason. They are read every two
        seconds. If they cannot be read, the last known settings stay in effect, so that nothing is blocked."""
        with self._settings_lock:
            if _now() >= self._settings_until:
                try:
                    found = self._types.find({"$or": [{"publish_paused": True}, {"max_backlog": {"$gt": 0}}]}, max_time_ms=int((SETTINGS_TIMEOUT if self._settings_until else FIRST_SETTINGS_TIMEOUT) * 1000))
                    self._settings = {d["_id"]: _decode_setting(d) for d in found if isinstance(d["_id"], str)}
                except mongo.PyMongoError:
                    pass
                self._settings_until = _now() + SETTINGS_EVERY
            return self._settings.get(type, (False, 0, ""))

    def _count(self, type: str, s: _Stream, limit: int) -> None:
        """Count the backlog, to find out how much room it has below its limit."""
        began = _now()
        room = None
        try:
            key = f"^{re.escape(type)}/(?!0{{32}})[0-9a-v]{{32}}\\z"
            query = {"_id": {"$gt": type + "/", "$lt": type + "0", "$regex": key}}
            room = limit - int(self._db.command("count", "messages", query=query, limit=limit + 1)["n"])
        except mongo.PyMongoError:
            pass
        now = _now()
        rest = COUNT_SHARE * (now - began)
        if room is None:  # as with settings, the last known state stays in effect
            room = BATCH_MESSAGES if s.full_since is None else 0
        s.room, s.room_until, s.count_next = room, now + max(SETTINGS_EVERY, rest), now + rest
        if room > 0:
            s.full_since, s.looks = None, 0
            return
        if s.full_since is None:
            s.full_since = now
        s.looks += 1
        s.count_next = now + max(rest, _pause(_FULL_WAIT, s.looks))

    def _register(self, type: str, s: _Stream) -> None:
        """Register the type, once. After a failure, this is retried after the next batch; it delays no outcome."""
        if s.registered:
            return
        try:
            self._types.insert_one({"_id": type})
            s.registered = True
        except mongo.DuplicateKeyError:
            s.registered = True
        except Exception:
            pass  # workers also find types that only have messages

    def _read_clock(self) -> None:
        """Read the server's clock, which the times in IDs are based on."""
        began = _now()
        try:
            try:
                reply = self._client.admin.command("hello")
            except mongo.OperationFailure as error:
                if error.code != 59:  # unknown before MongoDB 4.4.2
                    raise
                reply = self._client.admin.command("isMaster")
        except mongo.OperationFailure as error:
            raise Unreachable(f"the server refuses the connection: {error}; check user name and password, and that authSource names the "
                              "database in which the user is defined (often admin)") from error
        except mongo.PyMongoError as error:
            raise Unreachable(f"no usable server: {error}; check that the server runs, that host and port are right, and that replicaSet and "
                              "tls in the URL fit it") from error
        if reply.get("isWritablePrimary", reply.get("ismaster", True)) is False:
            raise Unreachable("the server is not the primary; name the replica set in the URL (?replicaSet=…) and leave out directConnection")
        self._server_at = (began + _now()) / 2  # about when the server read its clock
        local = reply.get("localTime")
        self._server_ms = int(time.time() * 1000) if local is None else _milliseconds(local)


def _milliseconds(t: Any) -> int:
    """Return the milliseconds since 1970 of a time from pymongo: without a zone it is UTC."""
    if t.tzinfo is None:
        t = t.replace(tzinfo=datetime.timezone.utc)
    return (t - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)) // datetime.timedelta(milliseconds=1)


def _take(messages: Sequence[_Prepared], indexes: Sequence[int], room: int) -> List[int]:
    """Return the indexes of the next batch: at least one message, at most ``room``."""
    size = 0
    for count, i in enumerate(indexes[:min(room, BATCH_MESSAGES)]):
        size += messages[i].size
        if count > 0 and size > BATCH_BYTES:
            return list(indexes[:count])
    return list(indexes[:min(room, BATCH_MESSAGES)])


def _decode_setting(doc: Mapping[str, Any]) -> Tuple[bool, int, str]:
    """Decode the settings of a type. A field with an invalid value counts as not set."""
    limit, why = doc.get("max_backlog"), doc.get("why")
    if isinstance(limit, bool) or not isinstance(limit, (int, float)):
        limit = 0
    return doc.get("publish_paused") is True, int(min(max(limit, 0), MAX_BACKLOG)), why if isinstance(why, str) else ""


def _is_refusal(code: Optional[int]) -> bool:
    return code in _REFUSED or code in _NOT_PERMITTED


def _judge(error: Exception) -> _Failure:
    """Classify the error of an insert. An error that is not known to be a refusal is unclear."""
    if isinstance(error, (mongo.ServerSelectionTimeoutError, getattr(mongo, "WaitQueueTimeoutError", mongo.ServerSelectionTimeoutError))):
        return _Failure(error, refused=True, temporary=True)  # nothing was sent
    if isinstance(error, (mongo.InvalidDocument, mongo.DocumentTooLarge)):
        return _Failure(error, refused=True)  # nothing was sent
    if isinstance(error, mongo.OperationFailure) and _is_refusal(error.code):
        return _Failure(error, refused=True)
    return _Failure(error)
