#!/usr/bin/env python3
"""A second, independent reader of Fencepost files (.fpl).

It was written from storage/FORMAT.md alone, without reference to the Go code, and shares nothing with it. If the two
agree on a file, they do so because of that page. Section numbers (§) in the comments are those of FORMAT.md.

    read_fpl.py cat FILE… [--format lines|len32|raw|json]   prints what `fencepost cat` prints
    read_fpl.py verify FILE…|DIRECTORY…                     reports the contents of the files as JSON, one line each
    read_fpl.py batch                                       runs many commands in one process, see run_batch

Several files of one type are checked against each other (§7).

Exit codes: 0 ok, 1 cannot be read (no such file, or written by a newer version), 2 usage, 3 damaged or not a Fencepost file.

It only reads. It needs Python 3.9 and its standard library; for the bodies of compressed batches, Python 3.14.
"""

import argparse
import base64
import collections
import datetime
import io
import json
import mmap
import os
import re
import stat
import struct
import sys
import time

try:
    from compression import zstd
except ImportError:                               # before Python 3.14
    zstd = None

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTEGRITY = 0, 1, 2, 3


# ---------------------------------------------------------------------------------------------------------------------
# §1 Checksums: CRC32C

POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41 with reversed bits


def _make_tables():
    """Returns 16 tables: TABLES[k][b] is the effect of byte b if k more bytes follow it in the same block."""
    first = []
    for byte in range(256):
        c = byte
        for _ in range(8):
            c = c >> 1 ^ POLYNOMIAL if c & 1 else c >> 1
        first.append(c)
    tables = [first]
    for _ in range(15):
        tables.append([first[c & 255] ^ c >> 8 for c in tables[-1]])
    return tables


_TABLES = _make_tables()
_BLOCK = struct.Struct("<I12B")  # 16 bytes: the first 4, which are combined with the register, as one number


def crc_update(register, data):
    """Feeds data into the bare shift register: no initial value, no final xor. 16 bytes per step ("slicing by 16")."""
    t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, ta, tb, tc, td, te, tf = _TABLES
    view = memoryview(data)
    full = len(view) & ~15
    c = register
    for w, b4, b5, b6, b7, b8, b9, ba, bb, bc, bd, be, bf in _BLOCK.iter_unpack(view[:full]):
        w ^= c
        c = (tf[w & 255] ^ te[w >> 8 & 255] ^ td[w >> 16 & 255] ^ tc[w >> 24]
             ^ tb[b4] ^ ta[b5] ^ t9[b6] ^ t8[b7] ^ t7[b8] ^ t6[b9]
             ^ t5[ba] ^ t4[bb] ^ t3[bc] ^ t2[bd] ^ t1[be] ^ t0[bf])
    for byte in view[full:]:
        c = t0[(c ^ byte) & 255] ^ c >> 8
    return c


def crc32c(data):
    return crc_update(0xFFFFFFFF, data) ^ 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283


class Checksum:
    """crc(bytes…) = CRC32C(file_id ++ bytes…). The register after file_id is computed once per file."""

    def __init__(self, file_id):
        self.seed = crc_update(0xFFFFFFFF, file_id)

    def __call__(self, *parts):
        c = self.seed
        for part in parts:
            c = crc_update(c, part)
        return c ^ 0xFFFFFFFF


# ---------------------------------------------------------------------------------------------------------------------
# Errors

class Stop(Exception):
    """The reason why reading stops before the end of the file, and the exit code for it."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class NotReadable(Stop):
    """The whole file is unreadable because of its header."""


class Damage(Stop):
    """Bytes in [offset, end) are damaged, or records missing; the messages [lost_first, lost_next) cannot be read."""

    def __init__(self, offset, end, lost_first, lost_next, reason):
        text = "bytes %d to %d: %s" % (offset, end, reason)
        if lost_next > lost_first:
            text += "; messages %d to %d are lost" % (lost_first, lost_next - 1)
        super().__init__(EXIT_INTEGRITY, text)
        self.offset, self.end, self.lost_first, self.lost_next, self.reason = offset, end, lost_first, lost_next, reason
        self.kind = "corruption"


class Retraction(Damage):
    """Messages [lost_first, lost_next) were accepted, and then retracted by the next writer's open record."""

    def __init__(self, offset, end, lost_first, lost_next):
        super().__init__(offset, end, lost_first, lost_next, "the next writer did not find what is there")
        self.kind = "retraction"


class TooNew(Stop):
    """An accepted batch uses a feature that this reader does not know (§8)."""

    def __init__(self, text):
        super().__init__(EXIT_FAILED, text)


# ---------------------------------------------------------------------------------------------------------------------
# §2 File header

HEADER_LEN = 4096
MAGIC = b"\x89FPL\r\n\x1a\n"
TYPE_PATTERN = re.compile(rb"[a-z0-9][a-z0-9._-]{0,63}\Z")

FileHeader = collections.namedtuple(
    "FileHeader", "major minor header_len file_id sync_marker generation first_index prev_file_id created_ns "
                  "incompat ro_compat compat type schema")

_FILE_HEADER = struct.Struct("<8sHHI16s16sQQ16sqIIIHH")
assert _FILE_HEADER.size == 104


def parse_file_header(page):
    """Checks the first 4096 bytes of a file (or fewer, if it is shorter), in the order of §2."""

    def checksum_good(p):
        return len(p) == HEADER_LEN and Checksum(p[16:32])(p[:4092]) == struct.unpack_from("<I", p, 4092)[0]

    if page[:8] != MAGIC:
        if checksum_good(MAGIC + page[8:]):
            raise NotReadable(EXIT_INTEGRITY, "the file's header is damaged: its magic")
        if page[:4] == MAGIC[:4]:
            raise NotReadable(EXIT_INTEGRITY, "the file's header is damaged: its magic, after the first 4 bytes")
        raise NotReadable(EXIT_INTEGRITY, "not a Fencepost file")
    if len(page) < HEADER_LEN:
        raise NotReadable(EXIT_INTEGRITY, "the file's header is damaged: only %d bytes of it are there" % len(page))
    (_, major, minor, header_len, file_id, sync_marker, generation, first_index, prev_file_id, created_ns,
     incompat, ro_compat, compat, type_len, schema_len) = _FILE_HEADER.unpack_from(page)
    if major > 1:
        raise NotReadable(EXIT_FAILED, "version %d.%d of the format is too new" % (major, minor))
    if not checksum_good(page):
        raise NotReadable(EXIT_INTEGRITY, "the file's header is damaged: its checksum")
    if incompat != 0:
        raise NotReadable(EXIT_FAILED, "the file needs features that this reader does not know: %#x" % incompat)
    typ = page[104:104 + type_len]
    schema = page[104 + type_len:104 + type_len + schema_len]
    if major != 1 or header_len != HEADER_LEN:
        raise NotReadable(EXIT_INTEGRITY, "the file's header is damaged: major or header_len")
    if generation == 0 or generation == 1 and first_index != 0:
        raise NotReadable(EXIT_INTEGRITY, "the file's header is damaged: generation or first_index")
    if not 1 <= type_len <= 64 or schema_len > 1024 or not TYPE_PATTERN.match(typ):
        raise NotReadable(EXIT_INTEGRITY, "the file's header is damaged: its type or schema")
    return FileHeader(major, minor, header_len, file_id, sync_marker, generation, first_index, prev_file_id, created_ns,
                      incompat, ro_compat, compat, typ.decode("ascii"), schema.decode("utf-8", "replace"))


# ---------------------------------------------------------------------------------------------------------------------
# §3 Record header

BATCH, FENCE, OPEN, CHECKPOINT, SEAL = b"FPB1", b"FPF1", b"FPO1", b"FPC1", b"FPS1"
ANCHORS = {FENCE, OPEN, CHECKPOINT, SEAL}
MAX_BODY = {BATCH: 67108864, CHECKPOINT: 67108864, FENCE: 65536, OPEN: 65536, SEAL: 65536}

_RECORD = struct.Struct("<4sIQQQIHHIIQQQQqII")
assert _RECORD.size == 96

_FIELDS = ("magic head_crc offset epoch base_index count flags header_len stored_len raw_len durable_end anchor_off chain "
           "session base_time body_crc schema_id").split()


class Record(collections.namedtuple("Record", _FIELDS + ["head_at"])):
    """A checked record header; head_at is its offset in the file (`offset` plus 16 for an anchor)."""
    __slots__ = ()

    @property
    def codec(self):
        return self.flags & 7

    @property
    def has_headers(self):
        return self.flags & 8 != 0

    @property
    def end(self):
        return self.head_at + (self.header_len + self.stored_len + 7 & ~7)

    @property
    def chain_value(self):
        """The required `chain` of the next record."""
        return self.body_crc << 32 | self.head_crc


def in_range(r):
    most = MAX_BODY[r.magic]
    return (r.header_len >= 96 and r.header_len % 8 == 0
            and r.stored_len <= most and r.raw_len <= most
            and r.count <= 1048576 and (r.count >= 1) == (r.magic == BATCH)
            and r.offset >= 4096 and 4096 <= r.durable_end <= r.offset and r.anchor_off < r.offset
            and r.base_index <= 1 << 63
            and (r.codec != 0 or r.raw_len == r.stored_len))


# ---------------------------------------------------------------------------------------------------------------------
# §4 Bodies

MESSAGE, SKIPPED, AFTER_GAP, LOST = 0, 1, 2, 3

Message = collections.namedtuple("Message", "index epoch kind id time payload headers")


NONE, ZSTD = 0, 1  # codecs
MOST_PER_BYTE = 32768  # §5: maximum number of decompressed bytes per byte of a compressed body


def decompress(r, stored):
    """Returns the body of a batch as its writer encoded it."""
    if r.codec == NONE:
        return stored
    if r.raw_len > len(stored) * MOST_PER_BYTE:
        raise Undecodable("its compressed body of %d bytes cannot have %d" % (len(stored), r.raw_len))
    body, rest = bytearray(), stored
    try:
        while rest:                               # one or more frames
            frame = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 26})
            data = rest
            while not frame.eof:                  # in pieces, to allocate memory for actual data, not for the size in a frame
                piece = frame.decompress(data, 1 << 20)
                data = b""
                body += piece
                if len(body) > r.raw_len or not piece and frame.needs_input:
                    raise Undecodable("its compressed body is cut, or longer than its header says")
            rest = frame.unused_data
    except zstd.ZstdError as e:
        raise Undecodable("its compressed body: %s" % e) from None
    if len(body) != r.raw_len:
        raise Undecodable("its compressed body has %d bytes, not %d" % (len(body), r.raw_len))
    return bytes(body)


class Undecodable(Exception):
    """A body with a good checksum that violates §4."""


class Cursor:
    """Reads a body from its beginning. A read beyond its end raises Undecodable."""

    def __init__(self, data):
        self.data, self.pos = data, 0

    def take(self, n):
        if n > len(self.data) - self.pos:
            raise Undecodable("a length beyond the end of the body")
        self.pos += n
        return self.data[self.pos - n:self.pos]

    def u8(self):
        return self.take(1)[0]

    def u64(self):
        return int.from_bytes(self.take(8), "little")

    def uvarint(self):
        value = 0
        for i in range(10):
            byte = self.u8()
            value |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                if value >= 1 << 64:
                    break
                return value
        raise Undecodable("a number of more than 64 bits")

    def varint(self):
        u = self.uvarint()
        return u >> 1 ^ -(u & 1)

    def at_end(self):
        return self.pos == len(self.data)


def signed64(n):
    """Returns n modulo 2^64, as a two's complement number."""
    n &= (1 << 64) - 1
    return n - (1 << 64) if n >> 63 else n


def decode_batch(r, stored, first_index):
    """Yields the messages of a batch one by one: together they may take much more memory than the body (§5). Indexes start at
    first_index.

    All messages are decoded once before the first one is yielded, so that an Undecodable batch yields none.
    """
    body = decompress(r, stored)
    for _ in decode_messages(r, body, first_index):
        pass
    return decode_messages(r, body, first_index)


def decode_messages(r, body, first_index):
    c = Cursor(body)
    for i in range(r.count):
        kind = c.u8()
        if kind not in (MESSAGE, SKIPPED, AFTER_GAP, LOST):
            raise Undecodable("message %d is of unknown kind %d" % (i, kind))
        id_len = c.u8()
        if id_len == 0:
            raise Undecodable("message %d has no ID" % i)
        ident = c.take(id_len)
        time = signed64(r.base_time + c.varint())
        payload_len = c.uvarint()
        if payload_len > 16777216:
            raise Undecodable("message %d has a payload of %d bytes" % (i, payload_len))
        payload = c.take(payload_len)
        headers = []
        if r.has_headers:
            size, n = 0, c.uvarint()
            if n > 65537:
                raise Undecodable("message %d has %d headers" % (i, n))
            for _ in range(n):
                key = c.take(c.uvarint())
                value = c.take(c.uvarint())
                size += len(key) + len(value)
                if size > 65536:
                    raise Undecodable("message %d has more than 65536 bytes of headers" % i)
                headers.append((key, value))
        yield Message(first_index + i, r.epoch, kind, ident, time, payload, headers)
    if not c.at_end():
        raise Undecodable("%d bytes are left over" % (len(body) - c.pos))


def decode_fence(body):
    """Returns the known tags of a fence, for display."""
    found, c = {}, Cursor(body)
    while not c.at_end():
        tag, length = c.u8(), c.u8()
        value = c.take(length)
        if tag in (1, 2, 4):
            found[{1: "holder", 2: "host", 4: "version"}[tag]] = printable(value)
        elif tag in (3, 5):
            if length != 8:
                raise Undecodable("tag %d of the fence has %d bytes" % (tag, length))
            found[{3: "pid", 5: "wall_ns"}[tag]] = int.from_bytes(value, "little", signed=True)
    return found


def printable(raw):
    """Returns text that is safe for a terminal."""
    text = raw.decode("utf-8", "surrogateescape")
    return "".join("?" if c < " " or c == "\x7f" else "\ufffd" if "\udc80" <= c <= "\udcff" else c for c in text)


OpenBody = collections.namedtuple("OpenBody", "accepted_end fence_off prev_checkpoint skipped")


def decode_open(body, offset):
    """Returns the body of the open record at an offset, which is after its own fence."""
    if len(body) < 32:
        raise Undecodable("the body of the open record has %d bytes" % len(body))
    o = OpenBody(*struct.unpack_from("<QQQQ", body))  # more may follow in later minor versions
    if not 4096 <= o.accepted_end <= o.fence_off < offset or o.prev_checkpoint > o.fence_off or o.skipped != o.fence_off - o.accepted_end:
        raise Undecodable("the body of the open record contradicts itself: %s" % (o,))
    return o


CheckpointBody = collections.namedtuple("CheckpointBody", "prev_checkpoint entries state_len")


def decode_checkpoint(body):
    """Its entries are (index, offset, time)."""
    c = Cursor(body)
    prev, entries = c.u64(), []
    if prev >= 1 << 63:
        raise Undecodable("its prev_checkpoint is no offset")
    index = offset = time = 0
    for _ in range(c.uvarint()):
        index, offset, time = index + c.uvarint(), offset + c.uvarint(), signed64(time + c.varint())
        entries.append((index, offset, time))
    state = c.take(c.uvarint())
    if not c.at_end():
        raise Undecodable("%d bytes are left over" % (len(body) - c.pos))
    if len(state) > 33554432:
        raise Undecodable("its state has %d bytes" % len(state))
    return CheckpointBody(prev, entries, len(state))


SealBody = collections.namedtuple("SealBody", "successor generation reason")


def decode_seal(body):
    c = Cursor(body)
    return SealBody(c.take(16), c.u64(), c.take(c.u8()))


# ---------------------------------------------------------------------------------------------------------------------
# §6 What is accepted

CLOSED, FENCED, OPENED = "closed", "fenced", "open"

# Scan.run yields, in file order:
Accepted = collections.namedtuple("Accepted", "record first_index void")  # void: range before the fence of an open record
Damaged = collections.namedtuple("Damaged", "error")                      # the scan continues after the damage
Rest = collections.namedtuple("Rest", "offset end")                       # [end, limit) at the end, if not empty


class Scan:
    """Runs §6 over the bytes of a file. It uses the names of the pseudocode."""

    def __init__(self, data):
        self.data = data                          # the file up to the limit, its size when it was opened
        self.limit = len(data)
        self.header = parse_file_header(data[:HEADER_LEN])
        self.marker = self.header.sync_marker
        self.crc = Checksum(self.header.file_id)
        self.phase, self.sealed, self.epoch, self.session = CLOSED, False, 0, None
        self.fence_off = None                     # offset of the last accepted fence
        self.pending = None                       # a Damage that the next open record may describe more precisely
        self.stop = None                          # where the first search since the last accepted record that is not a fence began
        self.lost = 0                             # the highest base_index of the headers that proved damage since then
        self.next, self.chain, self.end = self.header.first_index, 0, 4096

    # --- one position in isolation

    def header_at(self, p):
        """Returns the record header at p if its magic matches, head_crc is good, offset = p, and it is in range; otherwise None.

        head_crc is checked before any other field is used.
        """
        anchor = self.data[p:p + 16] == self.marker
        at = p + 16 if anchor else p
        raw = self.data[at:at + 96]
        if len(raw) < 96:
            return None
        magic = raw[:4]
        if (magic not in ANCHORS) if anchor else (magic != BATCH):
            return None
        if self.crc(raw[:4], raw[8:]) != int.from_bytes(raw[4:8], "little"):
            return None
        r = Record(*_RECORD.unpack(raw), at)
        return r if r.offset == p and in_range(r) else None

    def complete(self, r):
        """Checks the other conditions of a whole record: it ends at or below the limit, and body_crc is good."""
        return r.end <= self.limit and self.crc(self.data[r.head_at + 96:r.end]) == r.body_crc

    def whole(self, p):
        r = self.header_at(p)
        return r if r and self.complete(r) else None

    def body(self, r):
        start = r.head_at + r.header_len
        return self.data[start:start + r.stored_len]

    def open_body(self, r):
        """Returns the body of an open record; None if the record is of another kind, or its body contradicts itself."""
        try:
            return decode_open(self.body(r), r.offset) if r.magic == OPEN else None
        except Undecodable:
            return None

    def positions(self, p):
        """Yields all q >= p, multiples of 8, at which a header could be: the positions of the marker or a batch's magic."""
        p = p + 7 & ~7
        batch = anchor = p - 1                    # the next occurrence of each, if not below p; -1: there is none
        while True:
            if -1 < batch < p:
                batch = self.data.find(BATCH, p)
            if -1 < anchor < p:
                anchor = self.data.find(self.marker, p)
            found = [q for q in (batch, anchor) if q >= p]
            if not found:
                return
            q = min(found)
            if q % 8 == 0:
                yield q
            p = q + 1

    # --- the loop

    def run(self):
        p = 4096
        while True:
            r = self.whole(p)
            if not (r and (yield from self.accept_if_fits(r))):
                r = yield from self.search(p)
                if r is None:
                    return
                p = r.offset
                continue
            p = r.end

    def accept_if_fits(self, r):
        """Implements fits(r) and accept(r)."""
        if r.magic == FENCE:
            if r.epoch <= self.epoch:
                return False
            self.phase, self.epoch, self.session, self.fence_off = FENCED, r.epoch, r.session, r.offset
            yield Accepted(r, self.next, None)
            return True

        if r.epoch != self.epoch or r.session != self.session:
            return False
        if r.magic == OPEN:
            if self.phase != FENCED or self.sealed:
                return False
            body = self.open_body(r)
            if not body or body.fence_off != self.fence_off:
                return False
            void = None
            damages = self.compare(r, body)
            yield from map(Damaged, damages)      # no byte is reported both as damaged and as void
            if not damages and body.accepted_end < body.fence_off:
                void = (body.accepted_end, body.fence_off)
            self.pending = None
            self.phase, self.next = OPENED, r.base_index
            first = self.next
        else:
            if self.phase != OPENED or r.base_index != self.next or r.chain != self.chain:
                return False
            first, void = self.next, None
            if r.magic == BATCH:
                self.next += r.count
            elif r.magic == SEAL:
                self.phase, self.sealed = CLOSED, True
        self.chain, self.end, self.stop, self.lost = r.chain_value, r.end, None, 0
        yield Accepted(r, first, void)
        return True

    def decode(self, r, first_index):
        """Decodes the body of an accepted record. Raises Damage or TooNew."""
        # §8: a newer version set a reserved bit or an unknown codec. That matters only here: acceptance does not depend
        # on the bodies of batches.
        if r.magic == BATCH and (r.flags & 0xFFF0 or r.codec not in (NONE, ZSTD)):
            raise TooNew("the batch at %d needs a newer reader: flags %#x" % (r.offset, r.flags))
        if r.magic == BATCH and r.codec == ZSTD and not zstd:
            raise TooNew("the batch at %d is compressed: decoding it needs Python 3.14 or later" % r.offset)
        try:
            if r.magic == BATCH:
                return decode_batch(r, self.body(r), first_index)
            if r.magic == OPEN:
                return decode_open(self.body(r), r.offset)
            return {FENCE: decode_fence, CHECKPOINT: decode_checkpoint, SEAL: decode_seal}[r.magic](self.body(r))
        except Undecodable as e:
            raise Damage(r.offset, r.end, first_index, first_index + r.count,
                         "damaged before the checksum was computed: %s" % e) from None

    def compare(self, r, body):
        """Compares an open record that fits with what was found before its fence. Returns damages; none if all is equal."""
        if body.accepted_end > self.end or r.base_index > self.next:
            end = max(body.accepted_end, self.end, self.pending.end if self.pending else 0)
            return [Damage(self.end, end, self.next, max(self.next, r.base_index), "the next writer found valid records that are not there")]
        if body.accepted_end < self.end or r.base_index < self.next:
            found = [Retraction(body.accepted_end, self.end, r.base_index, self.next)]
        elif r.chain != self.chain and not self.pending:
            found = [Damage(4096, self.end, self.next, self.next, "the next writer found other bytes before it")]
        else:
            found = []
        return found + ([self.pending] if self.pending else [])

    def search(self, bad):
        """The region ends at bad. Returns the record to continue with, or None.

        Damage before a fence or an open record is not reported at once: it is pending until the open record is compared
        with what was found, because that can tell exactly which bytes and messages were lost.
        """
        if self.stop is None:
            self.stop = bad
        proof = None                              # the first header that proves damage
        proved = 0                                # the highest end of the records of such headers
        for q in self.positions(bad):
            r = self.header_at(q)
            if r is None:
                continue
            if r.magic == FENCE:
                if r.epoch > self.epoch and self.complete(r):
                    if self.pending or proof:
                        self.pending = self.damage(self.pending.offset if self.pending else bad, q, self.next, proof)
                    return r
            elif q > bad and self.proves(r, bad):
                proof = proof or r
                proved, self.lost = max(proved, min(r.end, self.limit)), max(self.lost, r.base_index)
                opened = self.open_body(r)
                if not self.complete(r) or r.magic == OPEN and not opened:
                    continue                      # it proves the damage, but is damaged itself
                self.epoch, self.session = r.epoch, r.session
                if r.magic == OPEN:
                    start = self.pending.offset if self.pending else bad
                    self.phase, self.fence_off, self.pending = FENCED, opened.fence_off, self.damage(start, q, self.next, r)
                else:
                    yield Damaged(self.damage(self.stop, q, max(self.next, r.base_index), r))
                    self.phase, self.sealed, self.pending, self.stop, self.lost = OPENED, False, None, None, 0
                    self.next, self.chain, self.end = r.base_index, r.chain, q
                return r
        if self.pending or proof:
            proved = max(proved, self.pending.end if self.pending else 0)
            yield Damaged(self.damage(self.stop, proved, max(self.next, self.lost), proof))
        if self.end < self.limit:
            yield Rest(self.end, self.limit)
        return None

    def proves(self, r, bad):
        return r.durable_end > bad and (
            r.epoch == self.epoch and r.session == self.session and self.phase != CLOSED or r.epoch > self.epoch)

    def damage(self, start, end, lost_next, proof):
        reason = "the record at %d shows that these bytes were durable" % proof.offset if proof else self.pending.reason
        return Damage(start, end, self.next, lost_next, reason)


# ---------------------------------------------------------------------------------------------------------------------
# cat: the same output as `fencepost cat`: byte for byte, and in JSON the same values, in which fencepost escapes more characters

# Go's encoding/json also escapes <, >, & and the line separators. A byte that is not UTF-8 becomes \ufffd; decoding
# with surrogateescape turns it into one of the code points DC80 to DCFF, which do not occur otherwise.
_ESCAPES = {c: "\\u%04x" % c for c in [*range(0x20), ord("<"), ord(">"), ord("&"), 0x2028, 0x2029]}
_ESCAPES.update({ord('"'): '\\"', ord("\\"): "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"})
_ESCAPES.update({0xDC00 + byte: "\\ufffd" for byte in range(0x80, 0x100)})


def go_string(raw):
    """Returns a JSON string as Go's encoding/json writes it."""
    return '"%s"' % raw.decode("utf-8", "surrogateescape").translate(_ESCAPES)


def go_time(ns):
    """Returns a time as RFC 3339 in UTC, with as many fractional digits of the second as needed."""
    seconds, fraction = divmod(ns, 10**9)
    text = (datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)).isoformat()
    return text + (".%09d" % fraction).rstrip("0").rstrip(".") + "Z"


_TO_BASE32HEX = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789abcdefghijklmnopqrstuv")


def id_text(ident):
    """Returns an ID of 20 bytes, such as those of Fencepost's queues, in base32hex, and any other ID in hex."""
    if len(ident) == 20:
        return base64.b32encode(ident).translate(_TO_BASE32HEX).decode("ascii")
    return ident.hex()


def json_line(m):
    fields = ['"index":%d,"id":"%s","time":"%s","epoch":%d' % (m.index, id_text(m.id), go_time(m.time), m.epoch)]
    if m.kind == AFTER_GAP:
        fields.append('"after_gap":true')
    if m.headers:
        # A duplicate key has its last value. Go sorts by the bytes of the keys.
        headers = ",".join("%s:%s" % (go_string(k), go_string(v)) for k, v in sorted(dict(m.headers).items()))
        fields.append('"headers":{%s}' % headers)
    try:
        m.payload.decode("utf-8")
        fields.append('"payload":%s' % go_string(m.payload))
    except UnicodeDecodeError:
        fields.append('"payload_base64":"%s"' % base64.b64encode(m.payload).decode("ascii"))
    return "{%s}\n" % ",".join(fields)


FORMATS = {
    "lines": lambda m: m.payload + b"\n",
    "raw": lambda m: m.payload,
    "len32": lambda m: struct.pack(">I", len(m.payload)) + m.payload,
    "json": lambda m: json_line(m).encode("utf-8"),
}


def cat(data, fmt, out, until=None):
    """Prints the messages below index until, up to the first damage, which it raises. Skipped and lost entries are not messages."""
    scan = Scan(data)
    if until is not None and until <= scan.header.first_index:
        return                                    # §7: a later file has all of them
    for event in scan.run():
        if isinstance(event, Damaged):
            raise event.error
        if not isinstance(event, Accepted):
            continue
        messages = scan.decode(event.record, event.first_index)  # for every record: its body may be damaged
        if event.record.magic == BATCH:
            for m in messages:
                if m.kind not in (SKIPPED, LOST) and (until is None or m.index < until):
                    out.write(FORMATS[fmt](m))


# ---------------------------------------------------------------------------------------------------------------------
# verify

def verify(data, path):
    """Returns the contents of the file as a dict. Fields that `fencepost verify --json` also has mean the same there."""
    report = {"file": path, "ok": False}
    try:
        scan = Scan(data)
    except NotReadable as e:
        return dict(report, error=str(e), exit=e.code)
    h = scan.header
    records = skipped = gaps = lost = batches = 0
    durable_end = 4096
    void, torn, regions, checkpoints, errors, remarks = [], None, [], [], [], []
    sealed = None
    last_anchor = last_checkpoint = 0             # offset of the latest open or checkpoint record; of the latest checkpoint
    since = {}                                    # batches since the last checkpoint: offset to (index, time)
    latest = -1 << 63                             # the highest time of an entry

    def expect(r, what, found, wanted):
        """Adds a remark if a field that acceptance does not depend on is wrong."""
        if found != wanted:
            remarks.append("record at %d: %s is %r, expected %r" % (r.offset, what, found, wanted))

    for event in scan.run():
        if isinstance(event, Damaged):
            errors.append(event.error)
            continue
        if isinstance(event, Rest):
            torn = (event.offset, event.end)
            continue
        r = event.record
        durable_end = max(durable_end, r.durable_end)
        try:
            body = scan.decode(r, event.first_index)
        except Stop as e:
            errors.append(e)
            body = None                           # accepted nevertheless: acceptance does not depend on bodies

        # Regions: the records of one writer.
        if r.magic == FENCE or not regions or regions[-1]["epoch"] != r.epoch:  # the latter if its fence is damaged
            holder = body if r.magic == FENCE and body else {}
            regions.append({
                "epoch": r.epoch, "session": "%016x" % r.session, "holder": holder.get("holder", ""),
                "host": holder.get("host", ""), "pid": holder.get("pid", 0),
                "first_index": event.first_index, "next_index": event.first_index, "offset": r.offset, "end": r.end,
                "opened": r.magic != FENCE})
        region = regions[-1]
        region["end"] = r.end
        if r.magic == BATCH:
            region["next_index"] = scan.next
        if r.magic == OPEN:
            region["first_index"] = region["next_index"] = r.base_index
            region["opened"] = True

        # Contents.
        if event.void:
            void.append(event.void)
        if r.magic == BATCH:
            batches += 1
            first_time = r.base_time
            for m in body or []:                  # none if the batch is undecodable
                if m.index == event.first_index:
                    first_time = m.time
                latest = max(latest, m.time)
                records += 1
                skipped += m.kind == SKIPPED
                gaps += m.kind == AFTER_GAP
                lost += m.kind == LOST
        elif r.magic == CHECKPOINT and body:
            checkpoints.append({"offset": r.offset, "next_index": r.base_index, "prev_checkpoint": body.prev_checkpoint,
                                "entries": len(body.entries), "state_len": body.state_len})
        elif r.magic == SEAL and body:
            sealed = {"file_id": body.successor.hex(), "generation": body.generation}

        # Fields that acceptance does not depend on.
        if r.magic == FENCE:
            for field in ("base_index", "count", "anchor_off", "chain", "base_time"):
                expect(r, field, getattr(r, field), 0)
            continue
        expect(r, "anchor_off", r.anchor_off, last_anchor)
        if r.magic == BATCH:
            since[r.offset] = (event.first_index, r.base_time)
            expect(r, "base_time", r.base_time, first_time)
        if r.magic == OPEN:
            expect(r, "skipped", body.skipped, body.fence_off - body.accepted_end)
        if r.magic == CHECKPOINT and r.base_time != 0 and r.base_time < latest:
            remarks.append("checkpoint at %d: base_time is %d, below %d before it" % (r.offset, r.base_time, latest))
        if r.magic == CHECKPOINT and body:
            for index, offset, time in body.entries:
                expect(r, "entry for %d" % offset, (index, time), since.get(offset))
        if r.magic in (OPEN, CHECKPOINT):
            if body:
                expect(r, "prev_checkpoint", body.prev_checkpoint, last_checkpoint)
            last_anchor = r.offset
            if r.magic == CHECKPOINT:
                last_checkpoint = r.offset
                since = {}

    codes = [e.code for e in errors]
    report.update({
        # §8: a reader that does not know every feature in a file can call it neither healthy nor damaged.
        "ok": not errors, "exit": EXIT_OK if not errors else EXIT_FAILED if EXIT_FAILED in codes else EXIT_INTEGRITY,
        "type": h.type, "schema": h.schema, "file_id": h.file_id.hex(), "generation": h.generation,
        "messages": records - skipped - lost, "first_index": h.first_index, "next_index": scan.next,
        "skipped": skipped, "declared_gaps": gaps, "lost": lost, "batches": batches, "size": scan.limit, "durable_end": durable_end,
        "torn": torn, "torn_bytes": torn[1] - torn[0] if torn else 0,
        "void": void, "void_bytes": sum(end - offset for offset, end in void),
        "corruptions": [describe(e) for e in errors if isinstance(e, Damage)],
        "too_new": [str(e) for e in errors if isinstance(e, TooNew)], "regions": regions, "checkpoints": checkpoints,
        "sealed": sealed, "remarks": remarks})
    if errors:
        report["error"] = str(errors[0])
    return report


def describe(e):
    return {"kind": e.kind, "offset": e.offset, "end": e.end, "lost_first": e.lost_first, "lost_next": e.lost_next,
            "reason": e.reason}


# ---------------------------------------------------------------------------------------------------------------------
# §7 The files of a type, checked against each other

NAME_PATTERN = re.compile(r"([a-z0-9][a-z0-9._-]{0,63}?)(?:@([0-9]{4,}))?\.fpl\Z")

# The properties of a file that others are checked against. header is None if it is unreadable. next: index after its last message,
# None if the file could not be read to its end. sealed: the body of its seal, or None.
Link = collections.namedtuple("Link", "path generation header next sealed")

# A hole, or a wrong file. Messages [lost_first, lost_next) are missing; all from lost_first on if lost_next is None; unknown ones
# if unknown is true.
Break = collections.namedtuple("Break", "path generation lost_first lost_next reason unknown", defaults=(False,))


def generation_name(typ, generation):
    return "%s.fpl" % typ if generation == 1 else "%s@%04d.fpl" % (typ, generation)


def parse_name(path):
    """Returns the type and generation in the file's name, or None."""
    name = os.path.basename(path)
    found = NAME_PATTERN.match(name)
    if not found:
        return None
    typ, generation = found.group(1), int(found.group(2) or 1)
    return (typ, generation) if generation_name(typ, generation) == name else None


def read_link(path):
    generation = parse_name(path)[1]
    header = None
    try:
        data = read_file(path)
        try:
            scan = Scan(data)
            header, sealed = scan.header, None
            for event in scan.run():
                if isinstance(event, Accepted) and event.record.magic == SEAL:
                    sealed = scan.decode(event.record, event.first_index)
            return Link(path, generation, header, scan.next, sealed)
        finally:
            if data:
                data.close()
    except (OSError, Stop):
        return Link(path, generation, header, None, None)


def check_chain(typ, links):
    """Returns the problems between the files. Each file counts as the type and generation in its header, or in its name if the header
    is unreadable."""
    breaks, here, elsewhere = [], {}, {}
    if len(links) == 1 and links[0].generation == 1 and links[0].header and links[0].header.type != typ:
        return [], None, {}                       # a copy kept under a name of its own
    for link in links:
        if link.header is None:
            here[link.generation] = link
        elif (link.header.type, link.header.generation) == (typ, link.generation):
            here[link.generation] = link
        else:
            elsewhere[link.generation] = link
    for link in elsewhere.values():
        if link.header.type == typ:
            here.setdefault(link.header.generation, link)

    generations = sorted(here)
    for older, newer in zip(generations, generations[1:]):
        a, b = here[older], here[newer]
        known = a.header is not None and b.header is not None
        ended = known and a.next is not None
        skipped = ended and a.sealed and (a.sealed.successor, a.sealed.generation) == (b.header.file_id, newer)
        if newer > older + 1 and not skipped:     # if skipped, the repair that made b gave up the generations in between
            first, after = (a.next if a.next is not None else 0), (b.header.first_index if b.header else None)
            if ended and a.sealed and after <= first and (newer > older + 2 or a.sealed.successor == b.header.prev_file_id):
                continue                          # a compaction replaced the generations in between: b has all their messages
            if not ended:
                after = first
            reason = "missing" if not ended or a.sealed else "missing, and the end of generation %d" % older
            for g in range(older + 1, newer):
                if g in elsewhere:
                    reason += "; under its name: %s" % describe_link(elsewhere.pop(g))
            unknown = not ended or a.sealed is not None and after <= first
            breaks.append(Break(b.path, older + 1, first, max(first, after), reason, unknown))
        elif not known:
            continue
        elif ended and a.sealed is None:
            breaks.append(Break(a.path, older, a.next, max(a.next, b.header.first_index), "cut: it has a successor and no seal"))
        elif ended and (a.sealed.successor, a.sealed.generation) != (b.header.file_id, newer):
            breaks.append(Break(b.path, newer, a.next, None, "not the file that the seal before it names"))
        elif b.header.prev_file_id != a.header.file_id:
            breaks.append(Break(b.path, newer, a.next or 0, a.next or 0, "continues another file than the one before it", True))
        elif ended and b.header.first_index not in (a.next, a.header.first_index):
            breaks.append(Break(b.path, newer, a.next, max(a.next, b.header.first_index), "does not begin where the file before it ends"))

    last = here[generations[-1]] if generations else None
    for g, link in sorted(elsewhere.items()):
        twin = elsewhere.get(link.header.generation)
        if link.header.type == typ and twin and (twin.header.type, twin.header.generation) == (typ, g):
            if g < link.header.generation:
                breaks.append(Break(link.path, g, 0, 0, "names are swapped: " + describe_link(link)))
        elif here.get(link.header.generation) is link:
            breaks.append(Break(link.path, g, 0, 0, "renamed: " + describe_link(link)))
        elif g == generations[-1] + 1:
            breaks.append(Break(link.path, g, last.next, None, "missing; under its name: " + describe_link(link)))
        else:
            breaks.append(Break(link.path, g, 0, 0, "under its name: " + describe_link(link)))
    return sorted(breaks, key=lambda b: b.generation), last, elsewhere


def describe_link(link):
    return "generation %d of %s, file %s" % (link.header.generation, link.header.type, link.header.file_id.hex())


def check_newest(last, elsewhere):
    """The newest present file must have no successor, or its successor must exist. A writer seals first, and then names the
    successor."""
    if last is None or last.sealed is None or last.sealed.generation in elsewhere:
        return []
    typ, generation = last.header.type, last.sealed.generation
    path = os.path.join(os.path.dirname(last.path), generation_name(typ, generation))
    for _ in range(30):
        if os.path.exists(path):
            return check_chain(typ, [last, read_link(path)])[0]
        time.sleep(0.1)
    return [Break(last.path, generation, last.next, None, "not here: the newest file is sealed and continues in it")]


def break_text(b):
    if b.unknown:
        lost = "it is not known which messages are missing"
    elif b.lost_next is None:
        lost = "messages from %d on" % b.lost_first
    elif b.lost_next > b.lost_first:
        lost = "messages %d to %d are missing" % (b.lost_first, b.lost_next - 1)
    else:
        lost = "no message is missing"
    return "generation %d: %s: %s" % (b.generation, b.reason, lost)


def examine_chains(paths, directories):
    """Groups the files by directory and type. Returns two dicts by path: the problems of the file, and the index from which on later
    files have the messages."""
    groups, wrong, until = {}, {}, {}
    for path in dict.fromkeys(map(os.path.normpath, paths)):
        named = parse_name(path)
        if named:
            groups.setdefault((os.path.dirname(path), named[0]), []).append(path)
    for (directory, typ), members in groups.items():
        whole = (directory or ".") in directories
        if len(members) < 2 and not whole:
            continue
        links = [read_link(path) for path in members]
        breaks, last, elsewhere = check_chain(typ, links)
        if whole:
            breaks = breaks + check_newest(last, elsewhere)
        for b in breaks:
            wrong.setdefault(b.path, []).append(b)
        if not breaks:
            later = None
            for link in sorted(links, key=lambda link: -link.generation):
                until[link.path] = later
                if link.header:
                    later = link.header.first_index if later is None else min(later, link.header.first_index)
    return wrong, until


# ---------------------------------------------------------------------------------------------------------------------
# The command line

def read_file(path):
    """Maps a file into memory. Bytes appended later are not visible."""
    with open(path, "rb") as f:
        info = os.fstat(f.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise NotReadable(EXIT_FAILED, "not a regular file")
        if info.st_size == 0:
            return b""
        return mmap.mmap(f.fileno(), info.st_size, access=mmap.ACCESS_READ)


def run(args, out, err):
    """Runs one command, and returns its exit code."""
    paths, directories = [], set()
    for path in args.file:
        if args.command == "verify" and os.path.isdir(path):
            directories.add(os.path.normpath(path))
            paths += sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(".fpl"))
        else:
            paths.append(path)
    wrong, until = examine_chains(paths, directories)
    codes = []
    if args.command == "cat" and wrong:
        codes = [EXIT_INTEGRITY]
        for path, breaks in wrong.items():
            print("error: %s: %s" % (path, "; ".join(map(break_text, breaks))), file=err)
        paths = []
    for path in paths:
        codes.append(run_file(args, path, wrong.get(os.path.normpath(path), []), until.get(os.path.normpath(path)), out, err))
        if args.command == "cat" and codes[-1] != EXIT_OK:
            break
    return next((code for code in (EXIT_INTEGRITY, EXIT_FAILED) if code in codes), EXIT_OK)


def run_file(args, path, breaks, until, out, err):
    try:
        data = read_file(path)
    except OSError as e:
        print("error: %s" % e, file=err)
        return EXIT_FAILED
    except Stop as e:
        print("error: %s: %s" % (path, e), file=err)
        return e.code
    try:
        if args.command == "cat":
            cat(data, args.format, out, until)
            return EXIT_OK
        report = verify(data, path)
        code = report.pop("exit")
        if breaks:
            report["ok"], report["chain"] = False, [b._asdict() for b in breaks]
            report.setdefault("error", break_text(breaks[0]))
            code = EXIT_INTEGRITY
        out.write(json.dumps(report).encode("ascii") + b"\n")
        if code != EXIT_OK:
            print("error: %s: %s" % (path, report["error"]), file=err)
        return code
    except Stop as e:
        print("error: %s: %s" % (path, e), file=err)
        return e.code
    finally:
        if data:
            data.close()


def run_batch(commands, out):
    """Runs many commands in one process, for tests. Each line of stdin is a JSON list of arguments; each line of stdout
    is the outcome of one command: {"exit": …, "stdout": base64, "stderr": text}."""
    for line in commands:
        stdout, stderr = io.BytesIO(), io.StringIO()
        code = run(parser().parse_args(json.loads(line)), stdout, stderr)
        result = {"exit": code, "stdout": base64.b64encode(stdout.getvalue()).decode("ascii"), "stderr": stderr.getvalue()}
        out.write(json.dumps(result).encode("ascii") + b"\n")
    return EXIT_OK


def parser():
    p = argparse.ArgumentParser(prog="read_fpl.py", description="An independent reader of Fencepost files.")
    commands = p.add_subparsers(dest="command", metavar="cat|verify|batch", required=True)
    c = commands.add_parser("cat", help="print the messages of files")
    c.add_argument("file", metavar="FILE", nargs="+")
    c.add_argument("--format", choices=sorted(FORMATS), default="lines", help="how messages are printed (default: lines)")
    v = commands.add_parser("verify", help="print what is in files, as JSON")
    v.add_argument("file", metavar="FILE", nargs="+")
    commands.add_parser("batch", help="run the commands on stdin, one JSON list of arguments a line")
    return p


def main():
    args = parser().parse_args()
    try:
        if args.command == "batch":
            code = run_batch(sys.stdin, sys.stdout.buffer)
        else:
            code = run(args, sys.stdout.buffer, sys.stderr)
        sys.stdout.flush()
        return code
    except BrokenPipeError:                       # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
