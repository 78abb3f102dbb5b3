package storage

import (
	"errors"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
	raftfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
	tidwall "github.com/tidwall/wal"
	etcd "go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
)

// peerModules are the modules that the peers come from, for their versions.
var peerModules = []string{"github.com/tidwall/wal", "github.com/hashicorp/raft-wal", "go.etcd.io/etcd/server/v3"}

// tidwallLog uses WriteBatch, with NoSync for appends that are not durable.
type tidwallLog struct {
	setup setup
	log   *tidwall.Log
	batch tidwall.Batch
}

func openTidwall(s setup) (contender, error) {
	t := &tidwallLog{setup: s}
	return t, t.open()
}

func (t *tidwallLog) open() (err error) {
	o := *tidwall.DefaultOptions
	o.NoSync = !t.setup.durable
	t.log, err = tidwall.Open(t.setup.dir, &o)
	return err
}

func (t *tidwallLog) prepare(*source) {}

func (t *tidwallLog) append(from, to int) error {
	s := t.setup.source
	for i := from; i < to; i++ {
		t.batch.Write(s.first+uint64(i)+1, s.entries[i]) // its indexes begin at 1
	}
	return t.log.WriteBatch(&t.batch)
}

func (t *tidwallLog) close() error { return t.log.Close() }

func (t *tidwallLog) readBack(check func([]byte) error) error {
	if err := t.open(); err != nil {
		return err
	}
	defer t.log.Close()
	last, err := t.log.LastIndex()
	if err != nil {
		return err
	}
	for i := uint64(1); i <= last; i++ {
		e, err := t.log.Read(i)
		if err != nil {
			return err
		}
		if err := check(e); err != nil {
			return err
		}
	}
	return nil
}

// raftLog uses StoreLogs, which is always durable. Without durability it runs on a file system whose Sync does
// nothing; the library has no such mode.
type raftLog struct {
	setup setup
	log   *raftwal.WAL
	meta  *metadb.BoltMetaDB
	logs  []*raft.Log
}

func openRaftWAL(s setup) (contender, error) {
	r := &raftLog{setup: s}
	for _, e := range s.source.entries {
		r.logs = append(r.logs, &raft.Log{Term: 1, Type: raft.LogCommand, Data: e})
	}
	return r, r.open()
}

func (r *raftLog) open() (err error) {
	r.meta = &metadb.BoltMetaDB{} // the default, but Close leaves it open
	files := types.VFS(raftfs.New())
	if !r.setup.durable {
		files = noSyncFS{files}
	}
	r.log, err = raftwal.Open(r.setup.dir, raftwal.WithLogger(hclog.NewNullLogger()), raftwal.WithMetaStore(r.meta),
		raftwal.WithSegmentFiler(segment.NewFiler(r.setup.dir, files)))
	return err
}

func (r *raftLog) prepare(s *source) {
	for i, l := range r.logs {
		l.Index = s.first + uint64(i) + 1
	}
}

func (r *raftLog) append(from, to int) error { return r.log.StoreLogs(r.logs[from:to]) }
func (r *raftLog) close() error              { return errors.Join(r.log.Close(), r.meta.Close()) }

func (r *raftLog) readBack(check func([]byte) error) error {
	if err := r.open(); err != nil {
		return err
	}
	defer r.close()
	last, err := r.log.LastIndex()
	if err != nil {
		return err
	}
	for i := uint64(1); i <= last; i++ {
		var l raft.Log
		if err := r.log.GetLog(i, &l); err != nil {
			return err
		}
		if err := check(l.Data); err != nil {
			return err
		}
	}
	return nil
}

type noSyncFS struct{ types.VFS }

func (f noSyncFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	w, err := f.VFS.Create(dir, name, size)
	return noSyncFile{w}, err
}

func (f noSyncFS) OpenWriter(dir, name string) (types.WritableFile, error) {
	w, err := f.VFS.OpenWriter(dir, name)
	return noSyncFile{w}, err
}

type noSyncFile struct{ types.WritableFile }

func (noSyncFile) Sync() error { return nil }

// etcdLog uses Save, with SetUnsafeNoFsync for appends that are not durable.
type etcdLog struct {
	setup   setup
	log     *etcd.WAL
	entries []*raftpb.Entry
}

func openEtcd(s setup) (contender, error) {
	e := &etcdLog{setup: s}
	for _, data := range s.source.entries {
		e.entries = append(e.entries, &raftpb.Entry{Term: new(uint64(1)), Index: new(uint64), Data: data})
	}
	var err error
	if e.log, err = etcd.Create(nil, s.dir+"/wal", nil); err != nil { // it insists on creating its directory
		return nil, err
	}
	if !s.durable {
		e.log.SetUnsafeNoFsync()
	}
	return e, nil
}

func (e *etcdLog) prepare(s *source) {
	for i, entry := range e.entries {
		*entry.Index = s.first + uint64(i) + 1
	}
}

func (e *etcdLog) append(from, to int) error {
	return e.log.Save(&raftpb.HardState{}, e.entries[from:to])
}

func (e *etcdLog) close() error { return e.log.Close() }

func (e *etcdLog) readBack(check func([]byte) error) error {
	w, err := etcd.OpenForRead(nil, e.setup.dir+"/wal", &walpb.Snapshot{})
	if err != nil {
		return err
	}
	defer w.Close()
	_, _, entries, err := w.ReadAll()
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := check(entry.Data); err != nil {
			return err
		}
	}
	return nil
}
