# The static structure of a Fencepost file, version 1.0: sections 2 to 4 of storage/FORMAT.md, as far as Kaitai Struct
# can express them. It was valid against the JSON schema of the .ksy language, and an interpreter of the language features
# used here read real files with it; it was not tested with a Kaitai compiler.
#
# It covers neither checksums (section 1) nor the acceptance of records (section 6). It reads one record after the other from
# the beginning and stops at the first bytes that do not look like a record, so it shows a file only up to the first torn or void
# bytes, and trusts every record. To read the messages of a file, use read_fpl.py beside it, or `fencepost cat`.
meta:
  id: fencepost
  title: Fencepost log file
  application: Fencepost
  file-extension: fpl
  license: Apache-2.0
  ks-version: '0.9'
  encoding: UTF-8
  endian: le
doc-ref: storage/FORMAT.md
seq:
  - id: header
    type: file_header
    size: 4096
  - id: records
    type: record
    repeat: until
    repeat-until: not _.fits or _io.eof
    if: not _io.eof
    doc: |
      If the file ends with torn or void bytes, or has some in the middle, the last item is not a record: its `fits` is false, and
      the rest of the file begins at its `ofs`.

enums:
  kind:
    0x31425046: batch # FPB1
    0x31465046: fence # FPF1
    0x314f5046: open # FPO1
    0x31435046: checkpoint # FPC1
    0x31535046: seal # FPS1
  codec:
    0: none
    1: zstd
  message_kind:
    0: message
    1: skipped
    2: after_gap
    3: lost
  fence_tag:
    1: holder_id
    2: host
    3: process_id
    4: program_version
    5: wall_time

types:
  file_header:
    doc: Section 2.
    seq:
      - id: magic
        contents: [0x89, FPL, 0x0d, 0x0a, 0x1a, 0x0a]
      - id: major
        type: u2
        valid: 1
      - id: minor
        type: u2
      - id: header_len
        type: u4
        valid: 4096
      - id: file_id
        size: 16
        doc: Random; every checksum of the file covers these bytes first.
      - id: sync_marker
        size: 16
        doc: Random; precedes every anchor.
      - id: generation
        type: u8
      - id: first_index
        type: u8
      - id: prev_file_id
        size: 16
      - id: created_ns
        type: s8
      - id: incompat
        type: u4
        valid: 0
      - id: ro_compat
        type: u4
      - id: compat
        type: u4
      - id: type_len
        type: u2
        valid:
          min: 1
          max: 64
      - id: schema_len
        type: u2
        valid:
          max: 1024
      - id: type_name
        size: type_len
        type: str
      - id: schema
        size: schema_len
        type: str
      - id: zeros
        size: 3988 - type_len - schema_len
      - id: crc
        type: u4

  record:
    doc: Section 3. The file's sync_marker precedes the header of an anchor (every record but a batch).
    seq:
      - id: marker
        size: 16
        if: is_anchor
      - id: header
        type: record_header
        if: has_header
      - id: extension
        size: header.header_len - 96
        if: fits
      - id: body
        size: header.stored_len
        type:
          switch-on: header.kind
          cases:
            'kind::batch': batch_body
            'kind::fence': fence_body
            'kind::open': open_body
            'kind::checkpoint': checkpoint_body
            'kind::seal': seal_body
        if: fits and header.codec == codec::none
      - id: stored_body
        size: header.stored_len
        doc: Compressed.
        if: fits and header.codec != codec::none
      - id: padding
        size: (8 - (header.header_len + header.stored_len) % 8) % 8
        if: fits
    instances:
      ofs:
        value: _io.pos
        doc: Offset of the record in the file. The first field evaluates it before anything is read.
      room:
        value: _io.size - ofs
      first_bytes:
        pos: ofs
        size: 16
        if: room >= 16
      is_anchor:
        value: room >= 112 and first_bytes == _root.header.sync_marker
      header_ofs:
        value: 'is_anchor ? ofs + 16 : ofs'
      has_header:
        value: room >= 96
      fits:
        value: has_header and header.in_range and header.offset == ofs and header.is_anchor == is_anchor and ofs_end <= _io.size
        doc: The bytes look like a record at this offset. Only the checksums show whether they are one.
      ofs_end:
        value: header_ofs + (header.header_len + header.stored_len + 7) / 8 * 8

  record_header:
    seq:
      - id: kind
        type: u4
        enum: kind
      - id: head_crc
        type: u4
      - id: offset
        type: u8
        doc: Offset of this record in the file; at any other offset it is void.
      - id: epoch
        type: u8
      - id: base_index
        type: u8
      - id: count
        type: u4
      - id: flags
        type: u2
      - id: header_len
        type: u2
      - id: stored_len
        type: u4
      - id: raw_len
        type: u4
      - id: durable_end
        type: u8
      - id: anchor_off
        type: u8
      - id: chain
        type: u8
        doc: body_crc << 32 | head_crc of the accepted record before this one, not counting fences.
      - id: session
        type: u8
      - id: base_time
        type: s8
      - id: body_crc
        type: u4
      - id: schema_id
        type: u4
    instances:
      codec:
        value: flags & 7
        enum: codec
      has_headers:
        value: (flags & 8) != 0
      is_anchor:
        value: kind == kind::fence or kind == kind::open or kind == kind::checkpoint or kind == kind::seal
      in_range:
        value: |
          (kind == kind::batch or is_anchor) and header_len >= 96 and header_len % 8 == 0
          and stored_len <= 67108864 and raw_len <= 67108864 and count <= 1048576

  batch_body:
    doc: Section 4.
    seq:
      - id: messages
        type: message(_parent.header.has_headers)
        repeat: expr
        repeat-expr: _parent.header.count

  message:
    params:
      - id: has_headers
        type: bool
    seq:
      - id: kind
        type: u1
        enum: message_kind
      - id: id_len
        type: u1
      - id: id
        size: id_len
      - id: time
        type: varint
        doc: Minus base_time of the record header.
      - id: payload_len
        type: uvarint
      - id: payload
        size: payload_len.value
      - id: num_headers
        type: uvarint
        if: has_headers
      - id: headers
        type: message_header
        repeat: expr
        repeat-expr: num_headers.value
        if: has_headers

  message_header:
    seq:
      - id: key_len
        type: uvarint
      - id: key
        size: key_len.value
      - id: value_len
        type: uvarint
      - id: value
        size: value_len.value

  fence_body:
    doc: Informational.
    seq:
      - id: tags
        type: tag
        repeat: eos
    types:
      tag:
        seq:
          - id: tag
            type: u1
            enum: fence_tag
          - id: len
            type: u1
          - id: value
            size: len

  open_body:
    seq:
      - id: accepted_end
        type: u8
        doc: End of the last record (not counting fences) that this writer accepted before its fence; 4096 if none.
      - id: fence_off
        type: u8
      - id: prev_checkpoint
        type: u8
      - id: skipped
        type: u8
        doc: fence_off - accepted_end, bytes that are void.
      - id: later_versions
        size-eos: true

  checkpoint_body:
    seq:
      - id: prev_checkpoint
        type: u8
      - id: num_entries
        type: uvarint
      - id: entries
        type: entry
        repeat: expr
        repeat-expr: num_entries.value
      - id: state_len
        type: uvarint
      - id: state
        size: state_len.value
    types:
      entry:
        doc: Each entry is the difference to the one before it, the first one the difference to zero.
        seq:
          - id: index
            type: uvarint
          - id: offset
            type: uvarint
          - id: time
            type: varint

  seal_body:
    seq:
      - id: successor_file_id
        size: 16
      - id: successor_generation
        type: u8
      - id: reason_len
        type: u1
      - id: reason
        size: reason_len
        type: str

  uvarint:
    doc: LEB128, at most 10 bytes.
    seq:
      - id: groups
        type: u1
        repeat: until
        repeat-until: _ < 128
    instances:
      last:
        value: groups.size - 1
      value:
        value: |
          (groups[0] & 127)
          + (last >= 1 ? (groups[1] & 127) << 7 : 0)
          + (last >= 2 ? (groups[2] & 127) << 14 : 0)
          + (last >= 3 ? (groups[3] & 127) << 21 : 0)
          + (last >= 4 ? (groups[4] & 127) << 28 : 0)
          + (last >= 5 ? (groups[5] & 127) << 35 : 0)
          + (last >= 6 ? (groups[6] & 127) << 42 : 0)
          + (last >= 7 ? (groups[7] & 127) << 49 : 0)
          + (last >= 8 ? (groups[8] & 127) << 56 : 0)
          + (last >= 9 ? (groups[9] & 127) << 63 : 0)

  varint:
    doc: Zigzag on top of uvarint.
    seq:
      - id: zigzag
        type: uvarint
    instances:
      value:
        value: '(zigzag.value & 1) == 0 ? zigzag.value >> 1 : -(zigzag.value >> 1) - 1'
