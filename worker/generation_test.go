package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/lock"
	"github.com/fencepost/fencepost/queue/queuetest"
	"github.com/fencepost/fencepost/storage"
)

// generations returns the paths of the files of a type, oldest first.
func (r *rig) generations(typ string) []string {
	var paths []string
	for _, path := range r.disk.Names() {
		if t, _, ok := storage.ParseName(filepath.Base(path)); ok && t == typ {
			paths = append(paths, path)
		}
	}
	return paths
}

// chain checks each file of a type by itself, and returns the payloads of all of them.
func (r *rig) chain(typ string) []string {
	r.t.Helper()
	var got []string
	for _, path := range r.generations(typ) {
		var audit Audit
		rep, err := storage.Verify(context.Background(), path, storage.VerifyOptions{FS: r.disk, Deep: true, Start: audit.Restore, Visit: audit.Record})
		if err == nil {
			err = rep.Err()
		}
		if problems, n := audit.Problems(); n > 0 && err == nil {
			err = problems[0]
		}
		if err != nil {
			r.t.Fatalf("%s: %v", path, err)
		}
		if rep.FirstIndex > uint64(len(got)) {
			r.t.Fatalf("%s begins at %d, the files before it end at %d", path, rep.FirstIndex, len(got))
		}
		got = got[:rep.FirstIndex] // compacted records are in both files
		reader, err := storage.OpenReader(path, storage.ReaderOptions{FS: r.disk})
		if err != nil {
			r.t.Fatal(err)
		}
		for range rep.Messages {
			rec, err := reader.Next()
			if err != nil {
				r.t.Fatal(err)
			}
			got = append(got, string(rec.Payload))
		}
		reader.Close()
	}
	return got
}

func (r *rig) completeChain(typ string) {
	r.t.Helper()
	if got := r.chain(typ); !slices.Equal(got, r.sent[typ]) {
		r.t.Fatalf("the files hold %d messages, %d were published; they differ from %d on", len(got), len(r.sent[typ]), differ(got, r.sent[typ]))
	}
}

// TestSizeLimit: files end at the size limit, copies of messages are refused across files by every holder of the type, and each
// file can be verified by itself.
func TestSizeLimit(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		pad := strings.Repeat("x", 2000)
		limit := func(c *Config) { c.Batch = 50; inFiles(func(f *Files) { f.MaxBytes = 1 << 20 })(c) }
		var calls atomic.Int64
		r.disturb(func(op queuetest.Op, k int) queuetest.Fault {
			if n := calls.Add(1); op == queuetest.OpAck && n%3 == 0 {
				return queuetest.Fault{Kind: []queuetest.Kind{queuetest.Lost, queuetest.LostAnswer}[n%2]}
			}
			return queuetest.Fault{}
		})
		first := r.start(limit)
		r.publish(typ, 700)
		for range 4 {
			r.publishSized(typ, 300, pad)
			time.Sleep(3 * time.Second)
		}
		second := r.start(limit)
		first.cancel() // dies; its unacknowledged messages are delivered again
		<-first.done
		r.publishSized(typ, 700, pad)
		time.Sleep(time.Minute)
		second.stop()
		r.disturb(func(queuetest.Op, int) queuetest.Fault { return queuetest.Fault{} })
		if err := r.drain(limit); err != nil {
			t.Fatal(err)
		}
		r.completeChain(typ)
		if files := r.generations(typ); len(files) < 3 {
			t.Errorf("4 MB are in the files %v", files)
		}
	})
}

// publishSized publishes messages whose payloads end with pad.
func (r *rig) publishSized(typ string, n int, pad string) {
	r.t.Helper()
	before := len(r.sent[typ])
	r.publishWith(typ, n, func(i int) string { return fmt.Sprintf("%s %d %s", typ, before+i, pad) })
}

// TestRewrite: a file is compacted while replicas of its type stand by, and repaired when it is damaged; work continues.
func TestRewrite(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 3000)
		if err := r.drain(func(c *Config) { c.Batch = 7 }); err != nil {
			t.Fatal(err)
		}
		rewrite := func(o RewriteOptions) (*storage.CompactReport, error) {
			began := time.Now()
			locker, err := lock.New(r.locks.Open(), lock.Options{Clock: func() time.Duration { return time.Since(began) }})
			if err != nil {
				t.Fatal(err)
			}
			defer locker.Close(context.Background())
			return Rewrite(context.Background(), Config{Queue: r.queue, Locker: locker, To: Files{Dir: dir, Storage: storage.Options{FS: r.disk, Compress: true}}}, typ, o)
		}
		for words, o := range map[string]RewriteOptions{"set Repair": {AcceptLoss: true}, "first adopt": {Adopt: true, Repair: true}} {
			if _, err := rewrite(o); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), words) {
				t.Errorf("%+v: %v", o, err)
			}
		}
		report, err := rewrite(RewriteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if report.Records != 3000 || report.NewBatches >= report.Batches || report.NewSize >= report.Size/2 {
			t.Errorf("%+v", report)
		}
		p := r.start(nil)
		r.publish(typ, 10)
		time.Sleep(10 * time.Second)
		if _, err := rewrite(RewriteOptions{}); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("compaction beside a worker: %v", err)
		}
		other := r.start(nil) // stands by
		if _, err := rewrite(RewriteOptions{Wait: time.Minute}); err != nil {
			t.Errorf("compaction that asks the workers: %v", err)
		}
		other.stop()
		r.publish(typ, 10)
		time.Sleep(10 * time.Second)
		p.stop()
		r.completeChain(typ)

		// Damage in a batch of the newest file.
		path := r.generations(typ)[2]
		data := r.disk.ReadFile(path)
		data[5000] ^= 1
		r.disk.WriteFile(path, bytes.Clone(data))
		if _, err := rewrite(RewriteOptions{}); !errors.Is(err, storage.ErrIntegrity) {
			t.Errorf("compaction of a damaged file: %v", err)
		}
		report, err = rewrite(RewriteOptions{Repair: true})
		if err != nil {
			t.Fatal(err)
		}
		if report.Lost == 0 || report.Records != 3020 || len(report.Damage) == 0 {
			t.Errorf("%+v", report)
		}
		r.publish(typ, 10)
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		var audit Audit
		rep, err := storage.Verify(context.Background(), report.Path, storage.VerifyOptions{FS: r.disk, Start: audit.Restore, Visit: audit.Record})
		if err != nil || rep.Err() != nil || rep.Messages != 3030 || rep.Lost != report.Lost {
			t.Errorf("the repaired file: %v, %+v", err, rep)
		}
		if problems, n := audit.Problems(); n > 0 {
			t.Errorf("%d problems, the first: %v", n, problems[0])
		}
	})
}

// Rewrite creates nothing for a type that has no file, for example one whose name was misspelt. It takes a file that the registry does not
// know, for example after a loss of the database.
func TestRewriteOfATypeWithoutAFile(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.publish(typ, 10)
		if err := r.drain(nil); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		locker, err := lock.New(r.locks.Open(), lock.Options{Clock: func() time.Duration { return time.Since(began) }})
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Close(context.Background())
		empty := queuetest.NewMemory()
		for _, o := range []RewriteOptions{{}, {Repair: true}, {Repair: true, AcceptLoss: true}, {Adopt: true}} {
			cfg := Config{Queue: empty, Locker: locker, To: Files{Dir: dir, Storage: storage.Options{FS: r.disk}}}
			if report, err := Rewrite(t.Context(), cfg, "order", o); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%+v: %+v, %v", o, report, err)
			}
			if _, known, _ := empty.RegistryEntry(t.Context(), "order"); known || len(r.generations("order")) > 0 {
				t.Errorf("%+v: a file was created", o)
			}
			cfg.Queue = queuetest.NewMemory()
			if _, err := Rewrite(t.Context(), cfg, typ, o); err != nil {
				t.Errorf("%+v, a file that is not registered: %v", o, err)
			}
			if _, known, _ := cfg.Queue.RegistryEntry(t.Context(), typ); !known {
				t.Errorf("%+v: the file is not registered", o)
			}
		}
	})
}
