package queues

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/bench/internal/server"
)

// errNone means that a server is not available on this machine: its rows say so, and the run continues.
var errNone = errors.New("not measured")

func none(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errNone, fmt.Errorf(format, args...))
}

// postgres is a private PostgreSQL with its default durability.
type postgres struct {
	*server.Process
	url, version string
}

// postgresBin finds the programs: those of the newest of Debian's packages, which are not in the path, or those in the
// path.
func postgresBin() (string, error) {
	dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", err
	}
	slices.SortFunc(dirs, func(a, b string) int { return versionOf(b) - versionOf(a) })
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
			return dir, nil
		}
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", none("PostgreSQL is not installed; apt-get install postgresql")
	}
	return filepath.Dir(path), nil
}

func versionOf(bin string) int {
	v, err := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	if err != nil {
		return 0
	}
	return v
}

// unprivileged returns the user for servers that refuse to run as root; nil if this process is not root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, none("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
}

func startPostgres(ctx context.Context, parent string, answers func(context.Context, string) error) (_ *postgres, err error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	as, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(filepath.Join(parent, "postgres"))
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if as != nil {
		if err := errors.Join(os.Chmod(parent, 0o711), os.Chown(dir, int(as.Uid), int(as.Gid))); err != nil {
			return nil, err
		}
	}
	if err := enterable(dir); as != nil && err != nil {
		return nil, err
	}
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "--pgdata="+dir+"/data", "--auth=trust", "--username=bench", "--encoding=UTF8", "--locale=C")
	initdb.Dir = dir
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, none("initdb: %w: %s", err, lastLine(out))
	}
	port, err := server.FreePort()
	if err != nil {
		return nil, err
	}
	p := &postgres{url: fmt.Sprintf("postgres://bench@127.0.0.1:%d/postgres?sslmode=disable", port)}
	p.Process, err = server.StartProcess(as, dir, filepath.Join(bin, "postgres"), "-D", dir+"/data", "-p", strconv.Itoa(port), "-h", "127.0.0.1", "-k", dir,
		"-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "full_page_writes=on", "-c", "shared_buffers=256MB", "-c", "max_connections=200")
	if err != nil {
		return nil, none("%w", err)
	}
	if err := p.Await(ctx, func(ctx context.Context) error { return answers(ctx, p.url) }); err != nil {
		p.stop()
		return nil, errors.Join(ctx.Err(), none("%w", err))
	}
	if out, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output(); err == nil {
		p.version = strings.TrimSpace(strings.TrimPrefix(string(out), "postgres (PostgreSQL)"))
	}
	return p, nil
}

func (p *postgres) stop() { p.Process.Stop(syscall.SIGINT) } // fast shutdown: does not wait for clients

// enterable checks that users other than root can reach a directory's parent.
func enterable(dir string) error {
	for dir != "/" {
		dir = filepath.Dir(dir)
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm()&0o001 == 0 {
			return errors.Join(err, none("PostgreSQL does not run as root, and others cannot enter %s; name another --dir", dir))
		}
	}
	return nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// redisServer is a private Redis.
type redisServer struct {
	*server.Process
	addr, version string
}

func startRedis(ctx context.Context, parent string, answers func(context.Context, string) error) (*redisServer, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, none("Redis is not installed; apt-get install redis-server")
	}
	dir := filepath.Join(parent, "redis")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	port, err := server.FreePort()
	if err != nil {
		return nil, err
	}
	r := &redisServer{addr: fmt.Sprintf("127.0.0.1:%d", port)}
	r.Process, err = server.StartProcess(nil, dir, path, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--daemonize", "no",
		"--save", "", "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction")
	if err != nil {
		return nil, none("%w", err)
	}
	if err := r.Await(ctx, func(ctx context.Context) error { return answers(ctx, r.addr) }); err != nil {
		r.stop()
		return nil, errors.Join(ctx.Err(), none("%w", err))
	}
	if out, err := exec.CommandContext(ctx, path, "--version").Output(); err == nil {
		if _, v, ok := strings.Cut(string(out), "v="); ok {
			r.version, _, _ = strings.Cut(v, " ")
		}
	}
	return r, nil
}

func (r *redisServer) stop() { r.Process.Stop(syscall.SIGTERM) }

// pauseBriefly is the pause between polls for conditions that cannot be waited for.
func pauseBriefly(ctx context.Context) error { return server.Sleep(ctx, 2*time.Millisecond) }
