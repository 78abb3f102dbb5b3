"""Tests of fencepost.py. Run them with: python3 -m unittest, in this directory.

Those that need a server are skipped unless FENCEPOST_TEST_MONGODB_URI names one; each creates its own database and drops it.
"""

import base64
import datetime
import json
import os
import pathlib
import random
import threading
import unittest
import uuid
from unittest import mock

import bson
import pymongo
from pymongo import errors as mongo

import fencepost
from fencepost import Message

VECTORS = json.loads((pathlib.Path(__file__).parents[2] / "docs" / "protocol" / "vectors.json").read_text())


class Vectors(unittest.TestCase):
    """This client writes exactly the bytes that docs/protocol.md specifies."""

    def test_ids(self):
        for v in VECTORS["ids"]:
            self.assertEqual(fencepost.encode_id(v["time_ms"], int(v["producer"], 16), v["n"]), v["id"])

    def test_documents(self):
        for v in VECTORS["messages"]:
            with self.subTest(v["name"]):
                prepared = fencepost.prepare(Message(v["type"], base64.b64decode(v["payload_base64"]), v["headers"]))
                doc = fencepost.encode_document(prepared.type, v["id"], prepared.payload, prepared.headers)
                self.assertEqual(bson.encode(doc).hex(), v["bson_hex"])
                self.assertEqual(prepared.size, v["size"])

    def test_settings(self):
        for v in VECTORS["settings"]:
            paused, limit, _ = fencepost._decode_setting(v["document"])
            self.assertEqual((paused, limit), (v["publish_paused"], v["max_backlog"]), v["document"])

    def test_refusals(self):
        codes = VECTORS["refusals"]
        for code in codes["not_permitted"] + codes["unsupported"]:
            self.assertTrue(fencepost._judge(mongo.OperationFailure("no", code)).refused, code)
        for code in codes["unclear"]:
            self.assertFalse(fencepost._judge(mongo.OperationFailure("no", code)).refused, code)

    def test_notifications(self):
        v = VECTORS["notifications"]
        self.assertEqual(fencepost.notification(v["types"]), v["update"])
        self.assertEqual([str(i) for i in range(fencepost.NOTIFY_LOGS)], v["documents"])
        many = fencepost.notification([f"t{i}" for i in range(1000)])
        self.assertEqual((many["$inc"]["n"], len(many["$push"]["t"]["$each"])), (1000, v["kept"]))

    def test_types(self):
        for name in VECTORS["valid_types"]:
            fencepost.prepare(Message(name, b""))
        for name in VECTORS["invalid_types"]:
            self.assert_invalid(Message(name, b""))

    def test_limits(self):
        for name, at in {
                "payload_bytes": lambda n: Message("t", b"x" * n),
                "headers_bytes": lambda n: Message("t", b"", {"k": "v" * (n - 1)}),
                "headers": lambda n: Message("t", b"", {str(i): "" for i in range(n)}),
                "key_bytes": lambda n: Message("t", b"", key="k" * n)}.items():
            n = VECTORS["limits"][name]
            fencepost.prepare(at(n))
            self.assert_invalid(at(n + 1))
        for headers in VECTORS["invalid_headers"]:
            self.assert_invalid(Message("t", b"", headers))

    def test_largest_fits_into_a_document(self):
        m = fencepost.prepare(Message("t" * 64, b"x" * fencepost.MAX_PAYLOAD, {"k%d." % i: "v" for i in range(255)}))
        self.assertLess(len(bson.encode(fencepost.encode_document(m.type, "0" * 32, m.payload, m.headers))), 16 << 20)

    def test_what_is_no_text(self):
        for message in (Message("t", b"", {"k": 1}), Message("t", b"", {"k": "\ud800"}), Message("t", "\ud800"), Message("t", 7), Message(7, b""),
                        Message("t", b"", {"idempotency-key": "a"}, key="a"), Message("t", b"", key="")):
            self.assert_invalid(message)

    def test_payloads(self):
        for payload in (b"\xc3\xa4", bytearray(b"\xc3\xa4"), memoryview(b"\xc3\xa4"), "\u00e4"):
            self.assertEqual(fencepost.prepare(Message("t", payload)).payload, b"\xc3\xa4")

    def assert_invalid(self, message):
        with self.assertRaises(fencepost.InvalidMessage, msg=repr(message)[:100]):
            fencepost.prepare(message)


class Clock:
    """Virtual time."""

    def __init__(self):
        self.time = 1000.0

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.time += max(seconds, 0)


class Double:
    """A server that fails as configured: it replaces pymongo.MongoClient and the collection messages."""

    def __init__(self, clock):
        self.clock, self.docs, self.faults, self.settings, self.inserts, self.types = clock, {}, [], [], [], set()
        self.notifications, self.deaf = {}, False

    def command(self, name, *_, query=None, limit=0):
        if name == "count":
            low, high = query["_id"]["$gt"], query["_id"]["$lt"]
            return {"n": min(sum(low < k < high for k in self.docs), limit)}
        return {"isWritablePrimary": True, "localTime": datetime.datetime(2023, 11, 14, 22, 13, 20)}

    def close(self):
        pass

    admin = property(lambda self: self)
    name = "fencepost"

    def get_default_database(self, _):
        return self

    def get_database(self, *_, **__):
        return self

    def get_collection(self, name, **_):
        return {"types": Types, "notifications": Notifications}.get(name, lambda _: self)(self)

    def insert_many(self, docs, ordered):
        assert ordered
        self.inserts.append([d["_id"] for d in docs])
        fault = self.faults.pop(0) if self.faults else "none"
        if fault == "search":
            raise mongo.ServerSelectionTimeoutError("no server")
        if fault == "undelivered":
            raise mongo.AutoReconnect("reset")
        if isinstance(fault, int) and fault >= 0:  # a code
            raise mongo.OperationFailure("the server says no", fault)
        limit = len(docs) // 2 if fault in ("half", "half refused") else len(docs)
        for i, d in enumerate(docs):
            if i == limit and fault == "half refused":
                raise mongo.BulkWriteError({"writeErrors": [{"index": i, "code": 121, "errmsg": "validator"}], "writeConcernErrors": []})
            if i == limit:
                raise mongo.NetworkTimeout("timed out")
            if d["_id"] in self.docs:
                assert bson.encode(self.docs[d["_id"]]) == bson.encode(d), "another message under the same ID"
                raise mongo.BulkWriteError({"writeErrors": [{"index": i, "code": 11000}], "writeConcernErrors": []})
            self.docs[d["_id"]] = d
        if fault == "lost":
            raise mongo.AutoReconnect("reset")
        if fault == "concern":
            raise mongo.BulkWriteError({"writeErrors": [], "writeConcernErrors": [{"code": 64}]})
        if fault == "interrupt":
            raise KeyboardInterrupt

    def find(self, query, *_, **__):
        return [self.docs[k] for k in query["_id"]["$in"] if k in self.docs]


class Notifications:
    """The collection notifications of a Double."""

    def __init__(self, server):
        self.server = server

    def update_one(self, query, update):
        if self.server.deaf:
            raise mongo.AutoReconnect("reset")
        doc = self.server.notifications.get(query["_id"])
        if doc is not None:
            doc["n"] += update["$inc"]["n"]
            doc["t"] = (doc["t"] + update["$push"]["t"]["$each"])[update["$push"]["t"]["$slice"]:]
        return mock.Mock(matched_count=int(doc is not None))

    def insert_one(self, doc):
        self.server.notifications[doc["_id"]] = doc


class Types:
    """The collection types of a Double."""

    def __init__(self, server):
        self.server = server

    def find(self, *_, **__):
        return self.server.settings

    def insert_one(self, doc):
        if doc["_id"] in self.server.types:
            raise mongo.DuplicateKeyError("there")
        self.server.types.add(doc["_id"])


class WithDouble(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.server = Double(self.clock)
        for patch in (mock.patch.object(pymongo, "MongoClient", lambda *_, **__: self.server), mock.patch.object(fencepost, "_now", self.clock.now),
                      mock.patch.object(fencepost.time, "sleep", self.clock.sleep)):
            patch.start()
            self.addCleanup(patch.stop)

    def publisher(self, **options):
        return fencepost.Publisher("mongodb://double", **options)

    def payloads(self):
        return [self.server.docs[k]["b"] for k in sorted(self.server.docs)]

    def numbers(self):
        """Return the (producer, n) of the stored documents, in the order of their IDs."""
        self.assertTrue(all(VECTORS["ids"][1]["id"][:9] <= k.partition("/")[2] for k in self.server.docs), "times are the server's")
        back = str.maketrans("0123456789abcdefghijklmnopqrstuv", "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
        raw = [base64.b32decode(k.partition("/")[2].translate(back)) for k in sorted(self.server.docs)]
        return [(r[6:14], int.from_bytes(r[14:], "big")) for r in raw]

    def test_lost_answers_are_repeated_under_the_same_ids(self):
        p = self.publisher()
        self.server.faults = ["lost", "half", "concern", "undelivered", "search"]
        ids = p.publish_many([Message("t", str(i)) for i in range(10)])
        self.assertEqual(["t/" + i for i in ids], sorted(self.server.docs))
        self.assertEqual(self.payloads(), [str(i).encode() for i in range(10)])

    def test_what_landed_in_part_is_completed(self):
        p = self.publisher()
        self.server.faults = ["half"]
        p.publish_many([Message("t", str(i)) for i in range(10)])
        self.assertEqual(self.payloads(), [str(i).encode() for i in range(10)])
        self.assertEqual(len(self.server.inserts[2]), 5, "only what is missing is inserted")
        self.assertEqual([n for _, n in self.numbers()], list(range(1, 11)))

    def test_refused(self):
        p = self.publisher()
        self.server.faults = [13]
        with self.assertRaises(fencepost.Rejected):
            p.publish("t", b"a")
        p.publish("t", b"b")
        self.assertEqual(self.payloads(), [b"b"])
        self.assertEqual(self.numbers()[0][1], 1, "a new producer number")

    def test_never_rejected_if_it_may_have_landed(self):
        p = self.publisher()
        self.server.faults = ["undelivered", 13]
        with self.assertRaises(fencepost.Unknown) as caught:
            p.publish("t", b"a")
        self.assertEqual(len(caught.exception.id), 32)

    def test_gives_up(self):
        for faults, error in ((["search"] * 1000, fencepost.Rejected), (["undelivered"] * 1000, fencepost.Unknown)):
            p = self.publisher(repeat_for=60)
            self.server.faults = faults
            began = self.clock.now()
            with self.assertRaises(error):
                p.publish("t", b"a")
            self.assertLessEqual(self.clock.now() - began, 60)
            self.assertGreater(self.clock.now() - began, 50)

    def test_new_number_waits_until_the_old_one_has_been_seen(self):
        p = self.publisher()
        p.publish("t", b"a")
        stored = self.clock.now()
        self.server.faults = [121]
        with self.assertRaises(fencepost.Rejected):
            p.publish("t", b"b")
        p.publish("t", b"c")
        self.assertGreaterEqual(self.clock.now() - stored, 45)
        (first, _), (second, n) = self.numbers()
        self.assertNotEqual(first, second)
        self.assertEqual((n, self.payloads()), (1, [b"a", b"c"]))

    def test_interrupt_takes_a_new_number(self):
        p = self.publisher()
        p.publish("t", b"a")
        self.server.faults = ["interrupt"]
        with self.assertRaises(KeyboardInterrupt):
            p.publish("t", b"b")
        p.publish("t", b"c")
        (first, _), (_, _), (third, n) = self.numbers()
        self.assertNotEqual(first, third)
        self.assertEqual(n, 1)

    def test_idle_number_is_given_up(self):
        p = self.publisher()
        p.publish("t", b"a")
        self.clock.sleep(3601)
        p.publish("t", b"b")
        (first, _), (second, n) = self.numbers()
        self.assertNotEqual(first, second)
        self.assertEqual(n, 1)

    def test_time_of_ids_never_goes_back(self):
        p = self.publisher()
        a = p.publish("t", b"a")
        self.clock.time -= 10
        b = p.publish("t", b"b")
        self.assertLess(a, b)

    def test_nothing_overtakes_what_is_not_stored(self):
        p = self.publisher()
        self.server.faults = ["half refused"]
        with self.assertRaises(fencepost.PublishManyError) as caught:
            p.publish_many([Message("t", str(i)) for i in range(1500)] + [Message("other", b"x")])
        results = caught.exception.results
        self.assertEqual([r.status for r in results], ["stored"] * 500 + ["rejected"] * 1000 + ["stored"])
        self.assertEqual(len(self.server.docs), 501)
        self.assertIn("code 121", str(caught.exception))

    def test_invalid_message_stops_all(self):
        p = self.publisher()
        with self.assertRaises(fencepost.InvalidMessage):
            p.publish_many([Message("t", b"a"), Message("T", b"b")])
        self.assertEqual(self.server.docs, {})

    def test_batches(self):
        p = self.publisher()
        p.publish_many([Message("t", b"x" * (1 << 20))] * 7 + [Message("t", b"x" * (5 << 20))] + [Message("t", b"")] * 1001)
        self.assertEqual([len(i) for i in self.server.inserts], [3, 3, 1, 1, 1000, 1])

    def test_paused(self):
        p = self.publisher()
        p.publish("t", b"a")
        self.server.settings = [{"_id": "t", "publish_paused": True, "why": "moving house"}]
        self.clock.sleep(2)
        with self.assertRaisesRegex(fencepost.Paused, "moving house"):
            p.publish("t", b"b")
        p.publish("other", b"c")
        self.server.settings = []
        self.clock.sleep(2)
        p.publish("t", b"d")
        self.assertEqual({n for _, n in self.numbers()}, {1, 2}, "a refusal that was not sent takes no number")

    def test_backlog(self):
        p = self.publisher(backlog_wait=30)
        self.server.settings = [{"_id": "t", "max_backlog": 5}]
        began = self.clock.now()
        with self.assertRaises(fencepost.PublishManyError) as caught:
            p.publish_many([Message("t", str(i)) for i in range(8)])
        self.assertEqual([r.status for r in caught.exception.results], ["stored"] * 5 + ["rejected"] * 3)
        self.assertIsInstance(caught.exception.results[7].error, fencepost.BacklogFull)
        self.assertGreaterEqual(self.clock.now() - began, 30)
        self.server.docs.clear()  # a worker drains it
        self.clock.sleep(2)
        p.publish("t", b"there is room")
        self.assertEqual(len(self.server.docs), 1)

    def test_keeps_its_promises_under_faults(self):
        for seed in range(300):
            rng = random.Random(seed)
            self.server.docs.clear()
            p = self.publisher(repeat_for=rng.choice((1, 5)))
            outcomes = []
            for call in range(8):
                self.server.faults = [rng.choice(("none", "none", "lost", "half", "half refused", "concern", "undelivered", "search", 13, 50))
                                      for _ in range(rng.randrange(12))]
                messages = [Message("t", f"{call}.{i}") for i in range(rng.randrange(1, 6))]
                try:
                    results = [("stored", m) for m, _ in zip(messages, p.publish_many(messages))]
                except fencepost.PublishManyError as error:
                    results = [(r.status, m) for r, m in zip(error.results, messages)]
                outcomes += [(status, m.payload.encode()) for status, m in results]
            found, context = self.payloads(), f"seed {seed}: {outcomes}, {self.payloads()}"
            self.assertEqual(len(found), len(set(found)), context)
            self.assertEqual([b for s, b in outcomes if s == "stored"], [b for b in found if ("stored", b) in outcomes], context)
            self.assertFalse([b for s, b in outcomes if s == "rejected" and b in found], context)
            last = {}
            for producer, n in self.numbers():
                self.assertEqual(n, last.get(producer, 0) + 1, context)
                last[producer] = n

    def told(self):
        return [t for doc in self.server.notifications.values() for t in doc["t"]]

    def test_notifies_workers(self):
        with self.publisher() as p:
            p.publish_many([Message("orders", b"1"), Message("audit", b"2")] * 50)
            p.publish("orders", b"3")
        told = self.told()
        self.assertEqual(set(told), {"orders", "audit"})
        self.assertLessEqual(len(told), 4, "types are named once a second, and at the end")
        self.assertTrue(all(0 <= int(id) < 8 and doc["n"] >= len(doc["t"]) for id, doc in self.server.notifications.items()))

    def test_notifications_that_fail_hold_nobody_up(self):
        self.server.deaf = True
        with self.publisher() as p:
            p.publish("orders", b"1")
        self.assertEqual((len(self.server.docs), self.told()), (1, []))

    def test_closed_and_forked(self):
        p = self.publisher()
        p.close()
        p.close()
        with self.assertRaises(fencepost.Closed):
            p.publish("t", b"a")
        p = self.publisher()
        with mock.patch.object(os, "getpid", lambda: -1), self.assertRaisesRegex(fencepost.Closed, "fork"):
            p.publish("t", b"a")

    def test_wrong_options(self):
        for options in ({"repeat_for": 13 * 3600}, {"backlog_wait": -1}, {"attempt_timeout": 0}):
            with self.assertRaises(ValueError):
                self.publisher(**options)


class Urls(unittest.TestCase):
    def test_errors_tell_no_password(self):
        for url in ("mongodb://user:s3cr3t@x@host/db", "mongodb://user:s3cr3t@host:s3cr3t/db", "http://user:s3cr3t@host", "s3cr3t"):
            with self.assertRaises(ValueError) as caught:
                fencepost.Publisher(url)
            self.assertNotIn("s3cr3t", str(caught.exception))
            self.assertIsNone(caught.exception.__cause__)

    def test_no_server(self):
        with self.assertRaisesRegex(fencepost.Unreachable, "check that the server runs"):
            fencepost.Publisher("mongodb://127.0.0.1:1/db?serverSelectionTimeoutMS=1")


@unittest.skipUnless(os.environ.get("FENCEPOST_TEST_MONGODB_URI"), "FENCEPOST_TEST_MONGODB_URI names no server")
class WithServer(unittest.TestCase):
    def setUp(self):
        uri = os.environ["FENCEPOST_TEST_MONGODB_URI"]
        self.client = pymongo.MongoClient(uri)
        base, _, query = uri.partition("?")
        scheme, _, rest = base.partition("://")
        self.name = "test_" + uuid.uuid4().hex
        self.url = f"{scheme}://{rest.partition('/')[0]}/{self.name}?{query}"
        self.db = self.client[self.name]
        self.addCleanup(self.client.close)
        self.addCleanup(self.client.drop_database, self.name)

    def test_publish(self):
        with fencepost.Publisher(self.url) as p:
            a = p.publish("orders", b"\x00\xff", {"source": "test", "a.b": "c"}, key="k")
            b = p.publish("orders", "text")
        docs = list(self.db["messages"].find().sort("_id", 1))
        self.assertEqual(docs, [
            {"_id": "orders/" + a, "b": b"\x00\xff", "h": ["a.b", "c", "idempotency-key", "k", "source", "test"]},
            {"_id": "orders/" + b, "b": b"text"}])
        self.assertEqual(list(self.db["types"].find()), [{"_id": "orders"}])

    def test_publish_many(self):
        with fencepost.Publisher(self.url) as p:
            ids = p.publish_many(Message("orders", str(i), {"i": str(i)}) for i in range(2500))
        self.assertEqual(["orders/" + i for i in ids], [d["_id"] for d in self.db["messages"].find({}, {"_id": 1}).sort("_id", 1)])

    def test_what_is_there_counts_as_stored(self):
        with fencepost.Publisher(self.url) as p:
            docs = [fencepost.encode_document("t", fencepost.encode_id(1, 1, n), b"x", {}) for n in range(1, 6)]
            self.db["messages"].insert_many([docs[0], docs[1], docs[3]])
            p._insert(docs)
            p._insert(docs)
        self.assertEqual(self.db["messages"].count_documents({}), 5)

    def test_settings_and_threads(self):
        patch = mock.patch.object(fencepost, "SETTINGS_TIMEOUT", 60.0)  # for a busy server
        patch.start()
        self.addCleanup(patch.stop)
        self.db["types"].insert_one({"_id": "limited", "max_backlog": 3})
        self.db["messages"].insert_one({"_id": "limited/of another program", "b": b""})
        self.db["types"].insert_one({"_id": "paused", "publish_paused": True})
        with fencepost.Publisher(self.url, backlog_wait=0) as p:
            with self.assertRaises(fencepost.PublishManyError):
                p.publish_many([Message("limited", str(i)) for i in range(5)])
            self.assertEqual(self.db["messages"].count_documents({}), 4)
            with self.assertRaises(fencepost.Paused):
                p.publish("paused", b"")
            threads = [threading.Thread(target=p.publish, args=("t", str(i))) for i in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        self.assertEqual(self.db["messages"].count_documents({"_id": {"$gt": "t/", "$lt": "t0"}}), 8)


if __name__ == "__main__":
    unittest.main()
