//go:build unix

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/fencepost/fencepost/lock"
)

// hosts runs workers in containers of the image that deploy/Dockerfile builds: each is its own host, with a name, processes and a
// network that the others do not see, on a directory that all of them mount.
type hosts struct {
	api    client.APIClient
	labels map[string]string
	image  string
}

// dockerWithin bounds every request to the Docker daemon.
const dockerWithin = 2 * time.Minute

func unique() string { return "fencepost-chaos-" + strings.ToLower(rand.Text()[:10]) }

// newHosts builds the image from programs that are already built.
func newHosts(ctx context.Context, p programs) (*hosts, error) {
	ctx, cancel := context.WithTimeout(ctx, dockerWithin)
	defer cancel()
	api, labels, err := mongotest.DockerClient(ctx)
	if err != nil {
		return nil, fmt.Errorf("no Docker daemon: %w", err)
	}
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	add := func(name, path string, mode int64) error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(b))}); err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	}
	if err := errors.Join(
		add("Dockerfile", filepath.Join(p.module, "deploy", "Dockerfile"), 0o644),
		add("bin/worker", p.path("worker"), 0o755),
		add("bin/fencepost", p.path("fencepost"), 0o755),
		add("LICENCES.txt", filepath.Join(p.module, "LICENSE"), 0o644), // the image is not distributed
		add("SBOM.json", filepath.Join(p.module, "LICENSE"), 0o644),
		w.WriteHeader(&tar.Header{Name: "data/", Mode: 0o755, Typeflag: tar.TypeDir}),
		w.Close(),
	); err != nil {
		return nil, err
	}
	h := &hosts{api: api, labels: labels, image: unique() + ":latest"}
	r, err := api.ImageBuild(ctx, &files, client.ImageBuildOptions{Tags: []string{h.image}, Labels: labels, Remove: true, ForceRemove: true})
	if err != nil {
		return nil, fmt.Errorf("build the image: %w", err)
	}
	defer r.Body.Close()
	for d := json.NewDecoder(r.Body); ; {
		var line struct{ Error string }
		if err := d.Decode(&line); errors.Is(err, io.EOF) {
			return h, nil
		} else if err != nil || line.Error != "" {
			return nil, errors.Join(err, fmt.Errorf("build the image: %s", line.Error))
		}
	}
}

func (h *hosts) remove(ctx context.Context) error {
	_, err := h.api.ImageRemove(ctx, h.image, client.ImageRemoveOptions{Force: true, PruneChildren: true})
	return err
}

// network creates a private network without a route out, and returns this machine's address in it.
func (h *hosts) network(ctx context.Context) (name, gateway string, err error) {
	ctx, cancel := context.WithTimeout(ctx, dockerWithin)
	defer cancel()
	name = unique()
	if _, err := h.api.NetworkCreate(ctx, name, client.NetworkCreateOptions{Driver: "bridge", Internal: true, Labels: h.labels}); err != nil {
		return "", "", err
	}
	n, err := h.api.NetworkInspect(ctx, name, client.NetworkInspectOptions{})
	if err != nil {
		return name, "", err
	}
	for _, c := range n.Network.IPAM.Config {
		if c.Gateway.IsValid() {
			return name, c.Gateway.String(), nil
		}
	}
	return name, "", errors.New("the network has no address for this machine")
}

func (h *hosts) removeNetwork(ctx context.Context, name string) error {
	_, err := h.api.NetworkRemove(ctx, name, client.NetworkRemoveOptions{})
	return err
}

// box is a body that is a container.
type box struct {
	*hosts
	id, host, network string
	log               string // file
	done              chan struct{}
	exit              int
	off               sync.Mutex // held while the container is off the network
}

// start starts a worker in a container that has dir at the same path.
func (h *hosts) start(network, host, dir, log string, env, args []string) (*box, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dockerWithin)
	defer cancel()
	c, err := h.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: unique(),
		Config: &container.Config{Image: h.image, Hostname: host, Cmd: args, Env: env, Labels: h.labels,
			User: fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())}, // the owner of the directory
		HostConfig: &container.HostConfig{NetworkMode: container.NetworkMode(network), ReadonlyRootfs: true, CapDrop: []string{"ALL"},
			SecurityOpt: []string{"no-new-privileges"}, Mounts: []mount.Mount{{Type: mount.TypeBind, Source: dir, Target: dir}}},
	})
	if err != nil {
		return nil, err
	}
	b := &box{hosts: h, id: c.ID, host: host, network: network, log: log, done: make(chan struct{})}
	if _, err := h.api.ContainerStart(ctx, c.ID, client.ContainerStartOptions{}); err != nil {
		b.remove()
		return nil, err
	}
	go b.wait()
	return b, nil
}

// wait waits for the container's end. It repeats the request if Docker loses the connection.
func (b *box) wait() {
	defer close(b.done)
	for tries := 0; tries < 100; tries++ {
		w := b.api.ContainerWait(context.Background(), b.id, client.ContainerWaitOptions{})
		select {
		case end := <-w.Result:
			b.exit = int(end.StatusCode)
			return
		case <-w.Error:
			time.Sleep(100 * time.Millisecond)
		}
	}
	b.exit = -1
}

// request makes one request about the container. It is no error if the container has ended meanwhile.
func (b *box) request(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), dockerWithin)
	defer cancel()
	err := f(ctx)
	r, ierr := b.api.ContainerInspect(ctx, b.id, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(ierr) || ierr == nil && r.Container.State != nil && !r.Container.State.Running {
		return nil
	}
	return err
}

func (b *box) signal(s string) error {
	return b.request(func(ctx context.Context) error {
		_, err := b.api.ContainerKill(ctx, b.id, client.ContainerKillOptions{Signal: s})
		return err
	})
}

func (b *box) kill() error {
	err := b.signal("SIGKILL")
	// A frozen process receives a signal only when it is thawed. It is no error if it is not frozen.
	ctx, cancel := context.WithTimeout(context.Background(), dockerWithin)
	defer cancel()
	_, _ = b.api.ContainerUnpause(ctx, b.id, client.ContainerUnpauseOptions{})
	return err
}

// freeze tries several times: on a busy machine the kernel may not stop everything within the time that it is given.
func (b *box) freeze() error {
	return b.request(func(ctx context.Context) (err error) {
		for range 6 {
			_, err = b.api.ContainerPause(ctx, b.id, client.ContainerPauseOptions{})
			if err == nil || strings.Contains(err.Error(), "already paused") { // by an attempt that failed
				return nil
			}
			time.Sleep(200 * time.Millisecond)
		}
		return err
	})
}

func (b *box) thaw() error {
	return b.request(func(ctx context.Context) error {
		_, err := b.api.ContainerUnpause(ctx, b.id, client.ContainerUnpauseOptions{})
		if err != nil && strings.Contains(err.Error(), "is not paused") {
			return nil
		}
		return err
	})
}

// unplug takes the host off the network; the function that it returns reconnects it, possibly with another address.
func (b *box) unplug() (plug func() error, err error) {
	if !b.off.TryLock() {
		return nil, nil
	}
	if err := b.request(func(ctx context.Context) error {
		_, err := b.api.NetworkDisconnect(ctx, b.network, client.NetworkDisconnectOptions{Container: b.id, Force: true})
		return err
	}); err != nil {
		b.off.Unlock()
		return nil, err
	}
	return func() error {
		defer b.off.Unlock()
		return b.request(func(ctx context.Context) error {
			_, err := b.api.NetworkConnect(ctx, b.network, client.NetworkConnectOptions{Container: b.id})
			return err
		})
	}, nil
}

func (b *box) terminate() error           { return b.signal("SIGTERM") }
func (b *box) ended() <-chan struct{}     { return b.done }
func (b *box) code() int                  { return b.exit }
func (b *box) is(owner lock.Process) bool { return owner.Host == b.host }

// remove saves the container's output, and removes it.
func (b *box) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), dockerWithin)
	defer cancel()
	if r, err := b.api.ContainerLogs(ctx, b.id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true}); err == nil {
		if f, err := os.OpenFile(b.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
			_, _ = stdcopy.StdCopy(f, f, r)
			f.Close()
		}
		r.Close()
	}
	_, _ = b.api.ContainerRemove(ctx, b.id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
}
