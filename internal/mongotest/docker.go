package mongotest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
)

const (
	mongoPort      = "27017"
	replicaSetName = "rs0"
	// ownerLabel holds the owner of a container; see owner.
	ownerLabel = "com.github.fencepost.test.owner"
)

// docker is a Docker daemon that answered.
type docker struct {
	api client.APIClient
	// host is where published ports are reached, publish the address on which they are published.
	host, publish string
	// here means that containers can share the network of this machine.
	here bool
}

// Docker returns the client of a Docker daemon, for tests of images and containers, and the labels for everything that such a test
// creates: the next caller removes what a dead test process left behind. It skips the test, after a loud line, only if there is no
// daemon. Containers reach the servers of this package in the network "host".
func Docker(t testing.TB) (api client.APIClient, labels map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	d, err := newDocker(ctx)
	if err != nil {
		why := strings.Join(strings.Fields(err.Error()), " ")
		fmt.Fprintf(os.Stderr, "!!! NOT RUN: %s of %s, as there is no Docker daemon (%s)\n", t.Name(), thisPackage(), why)
		t.Skipf("no Docker daemon: %v", err)
	}
	t.Cleanup(d.idle)
	d.removeLeftovers(ctx, Options{})
	return d.api, map[string]string{ownerLabel: owner()}
}

// DockerClient is [Docker] for programs that are not tests. The caller closes the client.
func DockerClient(ctx context.Context) (api client.APIClient, labels map[string]string, err error) {
	d, err := newDocker(ctx)
	if err != nil {
		return nil, nil, err
	}
	d.removeLeftovers(ctx, Options{})
	return d.api, map[string]string{ownerLabel: owner()}, nil
}

// newDocker finds the Docker daemon the way testcontainers-go does.
func newDocker(ctx context.Context) (*docker, error) {
	disableReaper()
	provider, err := testcontainers.NewDockerProvider(testcontainers.WithLogger(tclog.NewNoopLogger()))
	if err != nil {
		return nil, err
	}
	d := &docker{api: provider.Client()}
	if want := os.Getenv(client.EnvOverrideHost); want != "" && d.api.DaemonHost() != want {
		// testcontainers-go would fall back to the usual places, but a named daemon is the intended one.
		return nil, fmt.Errorf("%s=%s does not answer", client.EnvOverrideHost, want)
	}
	defer d.idle()
	info, err := d.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, err
	}
	if err := d.findHost(ctx, provider, info.Info.Name); err != nil {
		return nil, err
	}
	return d, nil
}

// disableReaper keeps testcontainers-go from starting its reaper, whose image would have to be pulled. The guard does the same work
// without an image. testcontainers-go reads its configuration once, when first used, so this must be set before, and only the
// environment can do so.
func disableReaper() {
	const disabled = "TESTCONTAINERS_RYUK_DISABLED"
	if _, set := os.LookupEnv(disabled); !set {
		os.Setenv(disabled, "true")
	}
}

// findHost determines where published ports are reached. In something that looks like a container, testcontainers-go assumes that the
// daemon is outside and uses the address of the gateway. That is wrong if the daemon runs inside as well: its name for its machine is
// then ours.
func (d *docker) findHost(ctx context.Context, provider *testcontainers.DockerProvider, daemonName string) error {
	const override = "TESTCONTAINERS_HOST_OVERRIDE"
	hostname, err := os.Hostname()
	ours := err == nil && hostname == daemonName && strings.HasPrefix(d.api.DaemonHost(), "unix:")
	if _, set := os.LookupEnv(override); !set && ours {
		os.Setenv(override, "localhost") // for testcontainers-go itself, which checks repeatedly
	}
	if d.host, err = provider.DaemonHost(ctx); err != nil {
		return err
	}
	d.publish = "0.0.0.0"
	if d.host == "localhost" || d.host == "127.0.0.1" {
		// The server requires no password, so it must not be reachable from the network; and "localhost" may be IPv6.
		d.host, d.publish = "127.0.0.1", "127.0.0.1"
		d.here = ours
	}
	return nil
}

// listenOn makes a server in a container listen on a port of this machine. It returns the address on which the server has to listen for
// that, in its own network.
//
// The container shares the network of this machine where possible. Elsewhere Docker forwards the port, with a process that may die:
// Docker 20.10 loses such processes when it ends other containers (https://go.dev/issue/27505), and the server becomes unreachable.
func (d *docker) listenOn(port string) (listen string, how testcontainers.CustomizeRequestOption) {
	if d.here {
		return net.JoinHostPort("127.0.0.1", port), testcontainers.WithHostConfigModifier(func(c *container.HostConfig) { c.NetworkMode = "host" })
	}
	return "0.0.0.0:" + mongoPort, func(r *testcontainers.GenericContainerRequest) error {
		if err := testcontainers.WithExposedPorts(mongoPort + "/tcp")(r); err != nil {
			return err
		}
		return testcontainers.WithHostConfigModifier(func(c *container.HostConfig) {
			c.PortBindings = network.PortMap{
				network.MustParsePort(mongoPort + "/tcp"): {{HostIP: netip.MustParseAddr(d.publish), HostPort: port}},
			}
		})(r)
	}
}

// idle closes unused connections to the daemon, whose goroutines leak detectors would find. The next request opens another.
func (d *docker) idle() { _ = d.api.Close() }

func (d *docker) startServer(ctx context.Context, o Options) (*Server, error) {
	defer d.idle()
	d.removeLeftovers(ctx, o)
	image, err := d.image(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		listen, how := d.listenOn(port)
		s := &Server{addr: net.JoinHostPort(d.host, port)}
		e := &containerEngine{docker: d, image: image, options: []testcontainers.ContainerCustomizer{how}}
		if isMongo(image) {
			ip, inside, _ := net.SplitHostPort(listen)
			s.member = net.JoinHostPort("127.0.0.1", inside)
			e.options = append(e.options, testcontainers.WithCmd("--replSet", replicaSetName, "--bind_ip", ip, "--port", inside))
		} else {
			e.options = append(e.options, testcontainers.WithEnv(map[string]string{"FENCEPOST_LISTEN": listen}))
		}
		s.engine = e
		if err = launch(ctx, s); err == nil {
			o.logf("%s runs at %s", image, s.addr)
			return s, nil
		}
		if attempt == 3 || !portTaken(err) {
			return nil, fmt.Errorf("start a container of %s: %w", image, err)
		}
	}
}

// isMongo reports whether an image is MongoDB itself, whose server can be started as a replica set. FerretDB's cannot.
func isMongo(image string) bool {
	name := image[strings.LastIndex(image, "/")+1:]
	name, _, _ = strings.Cut(name, ":")
	name, _, _ = strings.Cut(name, "@")
	return name == "mongo" || strings.HasPrefix(name, "mongodb-") || strings.HasPrefix(name, "percona-server-mongodb")
}

func portTaken(err error) bool {
	s := err.Error()
	return strings.Contains(s, "port is already allocated") || strings.Contains(s, "address already in use")
}

// removeLeftovers removes containers whose owner is gone, and then their volumes, networks and images. Best effort: a failing daemon is
// noticed soon enough.
func (d *docker) removeLeftovers(ctx context.Context, o Options) {
	ours := make(client.Filters).Add("label", ownerLabel)
	containers, err := d.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: ours})
	if err != nil {
		return
	}
	for _, c := range containers.Items {
		if ownerGone(c.Labels[ownerLabel]) {
			o.logf("removing container %.12s, left by a dead test process", c.ID)
			_, _ = d.api.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		}
	}
	if volumes, err := d.api.VolumeList(ctx, client.VolumeListOptions{Filters: ours}); err == nil {
		for _, v := range volumes.Items {
			if ownerGone(v.Labels[ownerLabel]) {
				_, _ = d.api.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{})
			}
		}
	}
	if networks, err := d.api.NetworkList(ctx, client.NetworkListOptions{Filters: ours}); err == nil {
		for _, n := range networks.Items {
			if ownerGone(n.Labels[ownerLabel]) {
				_, _ = d.api.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{})
			}
		}
	}
	if images, err := d.api.ImageList(ctx, client.ImageListOptions{Filters: ours}); err == nil {
		for _, i := range images.Items {
			if ownerGone(i.Labels[ownerLabel]) {
				_, _ = d.api.ImageRemove(ctx, i.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true})
			}
		}
	}
}

// containerEngine runs a server in a container.
type containerEngine struct {
	docker  *docker
	image   string
	options []testcontainers.ContainerCustomizer
	id      string // empty until created
}

func (e *containerEngine) start(ctx context.Context) error {
	defer e.docker.idle()
	if e.id != "" {
		_, err := e.docker.api.ContainerStart(ctx, e.id, client.ContainerStartOptions{})
		return err
	}
	options := append([]testcontainers.ContainerCustomizer{
		testcontainers.WithLogger(tclog.NewNoopLogger()),
		testcontainers.WithLabels(map[string]string{ownerLabel: owner()}),
	}, e.options...)
	ctr, err := testcontainers.Run(ctx, e.image, options...)
	if ctr != nil {
		e.id = ctr.GetContainerID() // also if it could not start: it has to be removed
	}
	return err
}

func (e *containerEngine) pause(ctx context.Context) error {
	defer e.docker.idle()
	_, err := e.docker.api.ContainerPause(ctx, e.id, client.ContainerPauseOptions{})
	return err
}

func (e *containerEngine) unpause(ctx context.Context) error {
	defer e.docker.idle()
	_, err := e.docker.api.ContainerUnpause(ctx, e.id, client.ContainerUnpauseOptions{})
	return err
}

func (e *containerEngine) kill(ctx context.Context) error {
	defer e.docker.idle()
	if _, err := e.docker.api.ContainerKill(ctx, e.id, client.ContainerKillOptions{Signal: "SIGKILL"}); err != nil {
		return err
	}
	// A frozen process receives a signal only when it is thawed. An error is fine: not paused, or already thawed by Docker.
	_ = e.unpause(ctx)
	for e.alive(ctx) {
		if err := pollPause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("it is still there: %w", err)
		}
	}
	return ctx.Err()
}

func (e *containerEngine) remove(ctx context.Context) error {
	defer e.docker.idle()
	if e.id == "" {
		return nil
	}
	_ = e.unpause(ctx) // some daemons cannot remove a paused container
	_, err := e.docker.api.ContainerRemove(ctx, e.id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

func (e *containerEngine) removeCommand() string {
	if _, err := exec.LookPath("docker"); err != nil {
		return "" // the next process that starts a server removes it
	}
	// The id is hexadecimal; the daemon's address comes from our own environment, but may be from a properties file.
	return "docker --host '" + e.docker.api.DaemonHost() + "' rm --force --volumes " + e.id
}

func (e *containerEngine) alive(ctx context.Context) bool {
	defer e.docker.idle()
	r, err := e.docker.api.ContainerInspect(ctx, e.id, client.ContainerInspectOptions{})
	return err == nil && r.Container.State != nil && r.Container.State.Running
}

func (e *containerEngine) logs(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := e.docker.api.ContainerLogs(ctx, e.id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: "20"})
	if err != nil {
		return "(no logs: " + err.Error() + ")"
	}
	defer r.Close()
	b, _ := io.ReadAll(io.LimitReader(r, 64<<10))
	return string(b)
}
