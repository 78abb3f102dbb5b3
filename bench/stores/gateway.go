package stores

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/bench/internal/server"
	"github.com/fencepost/fencepost/bench/internal/suite"
)

// The S3 gateway: an object store on a directory, under Apache-2.0, which decides If-None-Match for all its clients. It
// is a tool of this suite, built from its module, and not a dependency of anything.
const (
	gatewayPackage = "github.com/versity/versitygw/cmd/versitygw"
	gatewayVersion = "v1.8.0"
	gatewayKey     = "fencepost"
	gatewaySecret  = "fencepost-bench"
	bucket         = "bench"
)

// errNone means that the gateway is not available on this machine: its rows say so, and the run continues.
var errNone = errors.New("not measured")

type gateway struct {
	*server.Process
	endpoint string
	restore  []func()
}

// startGateway starts a gateway on the loopback interface, with its objects below the run's directory.
func startGateway(ctx context.Context, o suite.Options) (*gateway, error) {
	path, err := installGateway(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNone, err)
	}
	dir := filepath.Join(o.Dir, "objects")
	if err := os.MkdirAll(filepath.Join(dir, bucket), 0o755); err != nil {
		return nil, err
	}
	port, err := server.FreePort()
	if err != nil {
		return nil, err
	}
	g := &gateway{endpoint: fmt.Sprintf("http://127.0.0.1:%d", port)}
	// Not secret: it listens on the loopback interface, for some minutes.
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": gatewayKey, "AWS_SECRET_ACCESS_KEY": gatewaySecret, "AWS_SESSION_TOKEN": "",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_PROFILE": "", "ROOT_ACCESS_KEY_ID": gatewayKey, "ROOT_SECRET_ACCESS_KEY": gatewaySecret} {
		if err := g.setenv(name, value); err != nil {
			return nil, err
		}
	}
	g.Process, err = server.StartProcess(nil, dir, path, "--port", fmt.Sprintf("127.0.0.1:%d", port), "--quiet", "--keep-alive", "posix", dir)
	if err != nil {
		g.restoreEnv()
		return nil, fmt.Errorf("%w: %w", errNone, err)
	}
	err = g.Await(ctx, func(ctx context.Context) error {
		_, err := server.Get(ctx, g.endpoint) // any answer counts, even that access is denied
		return err
	})
	if err != nil {
		g.close()
		return nil, errors.Join(ctx.Err(), fmt.Errorf("%w: %w", errNone, err))
	}
	return g, nil
}

func (g *gateway) setenv(name, value string) error {
	before, there := os.LookupEnv(name)
	g.restore = append(g.restore, func() {
		if there {
			_ = os.Setenv(name, before) // it was valid before
		} else {
			_ = os.Unsetenv(name)
		}
	})
	return os.Setenv(name, value)
}

func (g *gateway) restoreEnv() {
	for _, f := range g.restore {
		f()
	}
}

// address returns the address of a store with its own prefix.
func (g *gateway) address(prefix string) string {
	return "s3://" + bucket + "/" + prefix + "?" + url.Values{"endpoint": {g.endpoint}, "path-style": {"true"}}.Encode()
}

func (g *gateway) close() {
	g.Stop(syscall.SIGTERM)
	g.restoreEnv()
}

// installGateway returns the path of the gateway's program, and builds it if it does not exist. A quick run builds
// nothing.
func installGateway(ctx context.Context, o suite.Options) (string, error) {
	product, err := server.ProductDir(ctx)
	if err != nil {
		return "", err
	}
	tools := filepath.Join(product, "bin", "tools")
	path := filepath.Join(tools, "versitygw")
	if info, err := buildinfo.ReadFile(path); err == nil && info.Main.Version == gatewayVersion {
		return path, nil
	}
	if o.Quick {
		return "", errors.New("versitygw is not built, and a quick run builds nothing; make bench BENCH=stores does")
	}
	o.Logf("building versitygw %s", gatewayVersion)
	within, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	install := exec.CommandContext(within, "go", "install", gatewayPackage+"@"+gatewayVersion)
	install.Env = append(os.Environ(), "GOBIN="+tools, "CGO_ENABLED=0")
	if out, err := install.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return "", errors.Join(ctx.Err(), fmt.Errorf("versitygw cannot be built: %w: %s", err, lines[len(lines)-1]))
	}
	return path, nil
}
