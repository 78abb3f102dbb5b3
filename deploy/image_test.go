package deploy_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/mongotest"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
)

// within bounds every single step. It is generous, because the machine may be busy with other tests.
const within = 3 * time.Minute

// user is the user of the image.
const user = "65532:65532"

// The image is built like `make image`, and runs as in deploy/compose.yaml and deploy/kubernetes: not as root, on a
// read-only root file system, without any capability.
func TestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("the image's programs are built without the race detector: nothing new for it")
	}
	d := newDocker(t)
	d.build(t)

	t.Run("what is in it", d.testContents)
	t.Run("workers drain MongoDB into a volume", d.testDrain)
	t.Run("workers drain MongoDB into a store", d.testStore)
	t.Run("embedded, healthy", d.testEmbedded)
}

func (d *docker) testContents(t *testing.T) {
	i, err := d.api.ImageInspect(d.ctx(t), d.image)
	if err != nil {
		t.Fatal(err)
	}
	_, volume := i.Config.Volumes["/data"]
	if i.Config.User != user || !volume || !slices.Equal(i.Config.Entrypoint, []string{"worker"}) {
		t.Errorf("user %q, entrypoint %q, volumes %v; want %s, worker and /data", i.Config.User, i.Config.Entrypoint, i.Config.Volumes, user)
	}
	for _, program := range []string{"worker", "producer", "fencepost"} {
		f, err := elf.Open(filepath.Join(d.context, "bin", program))
		if err != nil {
			t.Fatal(err)
		}
		if libraries, err := f.ImportedLibraries(); err != nil || len(libraries) > 0 || f.Section(".interp") != nil {
			t.Errorf("%s is not static: it needs %v (%v)", program, libraries, err)
		}
		f.Close()
		if r := d.run(t, program, "--help"); r.code != 0 || !strings.Contains(r.stdout, program) {
			t.Errorf("%s --help: %v", program, r)
		}
	}
	if licences, err := os.ReadFile(filepath.Join(d.context, "LICENCES.txt")); err != nil || !strings.Contains(string(licences), "go.mongodb.org/mongo-driver/v2 ") {
		t.Errorf("the image has no licences of what is in it: %v", err)
	}
	if sbom, err := os.ReadFile(filepath.Join(d.context, "SBOM.json")); err != nil || !strings.Contains(string(sbom), `"pkg:golang/go.mongodb.org/mongo-driver/v2@`) {
		t.Errorf("the image has no bill of materials: %v", err)
	}
	if r := d.run(t, "worker"); r.code != 2 || !strings.Contains(r.stderr, "--type") {
		t.Errorf("a worker without types: %v; want exit code 2", r)
	}
}

// Two workers in separate containers, so that neither sees the other's process: the second continues where the first stopped.
func (d *docker) testDrain(t *testing.T) {
	uri, _ := mongotest.Fresh(t)
	d = d.with(d.volume(t), "host", "FENCEPOST_URL="+uri)
	second := d.drain(t, "/data/numbers.fpl")
	if uid, gid := d.owner(t, second, "/data/numbers.fpl"); fmt.Sprintf("%d:%d", uid, gid) != user {
		t.Errorf("the file belongs to %d:%d, want %s: the worker ran as somebody else", uid, gid, user)
	}
}

// The same without any volume, as in compose.yaml and kubernetes/store.
func (d *docker) testStore(t *testing.T) {
	uri, _ := mongotest.Fresh(t)
	d = d.with("", "host", "FENCEPOST_URL="+uri, "FENCEPOST_STORE=mongodb:")
	d.drain(t, "numbers.fpl")
}

// drain makes two workers, one after the other, write 10,000 messages to a file, and returns the
// container of the second.
func (d *docker) drain(t *testing.T, file string) (second string) {
	publish := func() {
		t.Helper()
		if r := d.run(t, "producer", "publish", "--type", "numbers", "--count", "5000", "--size", "64"); r.code != 0 || !strings.Contains(r.stdout, "published=5000 ") {
			t.Fatalf("producer: %v", r)
		}
	}
	drained := func() {
		t.Helper()
		d.eventually(t, "the queue is empty", func() bool {
			var rows []struct{ Pending int }
			r := d.run(t, "fencepost", "types", "ls", "-o", "json")
			return r.code == 0 && json.Unmarshal([]byte(r.stdout), &rows) == nil && len(rows) == 1 && rows[0].Pending == 0
		})
	}
	publish()
	first := d.start(t, nil, "worker", "--type", "numbers")
	drained()
	second = d.start(t, nil, "worker", "--type", "numbers")
	d.stop(t, first)
	publish()
	drained()

	r := d.run(t, "fencepost", "verify", "--json", file)
	var report struct {
		Messages     int
		DeclaredGaps int `json:"declared_gaps"`
		Regions      []any
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || r.code != 0 || report.Messages != 10_000 || report.DeclaredGaps != 0 || len(report.Regions) != 2 {
		t.Errorf("verify: %v; want 10000 messages by two writers, and no gap", r)
	}
	d.stop(t, second)
	return second
}

// Without a server and without a network: everything is in the volume. The worker becomes healthy as in compose.yaml, and serves the
// pages that the manifests request.
func (d *docker) testEmbedded(t *testing.T) {
	d = d.with(d.volume(t), "none")
	if r := d.run(t, "producer", "publish", "--type", "greetings", "--message", "hello"); r.code != 0 {
		t.Fatalf("producer: %v", r)
	}
	health := &container.HealthConfig{Test: []string{"CMD", "fencepost", "healthcheck"}, Interval: 200 * time.Millisecond, Timeout: within, Retries: 1000}
	worker := d.start(t, health, "worker", "--all-types", "--listen=:9090")
	d.eventually(t, "the worker is healthy", func() bool {
		c, err := d.api.ContainerInspect(d.ctx(t), worker, client.ContainerInspectOptions{})
		if err != nil || !c.Container.State.Running {
			t.Fatalf("the worker has ended (%v): %v", err, d.logs(t, worker))
		}
		return c.Container.State.Health != nil && c.Container.State.Health.Status == container.Healthy
	})
	beside := *d
	beside.network = container.NetworkMode("container:" + worker)
	for _, page := range []string{"livez", "readyz", "metrics"} {
		if r := beside.run(t, "fencepost", "healthcheck", "--timeout", within.String(), "http://127.0.0.1:9090/"+page); r.code != 0 {
			t.Errorf("/%s: %v", page, r)
		}
	}
	if r := beside.run(t, "fencepost", "healthcheck", "http://127.0.0.1:9090/nothing"); r.code != 1 {
		t.Errorf("a page that does not exist: %v; want exit code 1", r)
	}
	d.eventually(t, "hello is in the file", func() bool {
		return d.run(t, "fencepost", "cat", "/data/greetings.fpl").stdout == "hello\n"
	})
	d.stop(t, worker)
}

// docker runs containers of the image under test.
type docker struct {
	api     client.APIClient
	labels  map[string]string
	image   string
	context string // the directory from which it was built

	env     []string
	mounts  []mount.Mount
	network container.NetworkMode
}

func newDocker(t *testing.T) *docker {
	api, labels := mongotest.Docker(t)
	return &docker{api: api, labels: labels, network: "none"}
}

// with returns a copy whose containers have the volume at /data; "": an unnamed volume.
func (d *docker) with(volume string, network container.NetworkMode, env ...string) *docker {
	c := *d
	if c.mounts = nil; volume != "" {
		c.mounts = []mount.Mount{{Type: mount.TypeVolume, Source: volume, Target: "/data"}}
	}
	// The directory of the daemon may be on a container's layer.
	c.network, c.env = network, append(env, "FENCEPOST_ALLOW_OVERLAY=true")
	return &c
}

func (d *docker) ctx(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	t.Cleanup(cancel)
	return ctx
}

func unique() string { return "fencepost-test-" + strings.ToLower(rand.Text()[:10]) }

// build builds the image.
func (d *docker) build(t *testing.T) {
	t.Helper()
	d.context = t.TempDir()
	// Without -trimpath, unlike for users: the other tests build without it, and so nothing is compiled twice.
	build := exec.Command("make", "-C", "..", "image-context", "CONTEXT="+d.context, "GOBUILD=go build")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	var context bytes.Buffer
	w := tar.NewWriter(&context)
	if err := w.AddFS(os.DirFS(d.context)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	d.image = unique() + ":latest"
	r, err := d.api.ImageBuild(d.ctx(t), &context, client.ImageBuildOptions{Tags: []string{d.image}, Labels: d.labels, Remove: true, ForceRemove: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	t.Cleanup(func() {
		if _, err := d.api.ImageRemove(d.ctx(t), d.image, client.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil {
			t.Errorf("remove the image: %v", err)
		}
	})
	for dec := json.NewDecoder(r.Body); ; {
		var line struct{ Error string }
		if err := dec.Decode(&line); errors.Is(err, io.EOF) {
			return
		} else if err != nil || line.Error != "" {
			t.Fatalf("build the image: %v %s", err, line.Error)
		}
	}
}

// volume creates a volume that is removed at the end of the test.
func (d *docker) volume(t *testing.T) string {
	t.Helper()
	name := unique()
	if _, err := d.api.VolumeCreate(d.ctx(t), client.VolumeCreateOptions{Name: name, Labels: d.labels}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := d.api.VolumeRemove(d.ctx(t), name, client.VolumeRemoveOptions{}); err != nil {
			t.Errorf("remove the volume: %v", err)
		}
	})
	return name
}

// start starts a program of the image in a container that is removed at the end of the test.
func (d *docker) start(t *testing.T, health *container.HealthConfig, program string, args ...string) (id string) {
	t.Helper()
	c, err := d.api.ContainerCreate(d.ctx(t), client.ContainerCreateOptions{
		Name: unique(),
		Config: &container.Config{Image: d.image, Entrypoint: []string{program}, Cmd: args, Env: d.env, Labels: d.labels,
			Healthcheck: health},
		HostConfig: &container.HostConfig{NetworkMode: d.network, Mounts: d.mounts, ReadonlyRootfs: true, CapDrop: []string{"ALL"},
			SecurityOpt: []string{"no-new-privileges"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s %q said:\n%v", program, args, d.logs(t, c.ID))
		}
		if _, err := d.api.ContainerRemove(d.ctx(t), c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true}); err != nil {
			t.Errorf("remove a container: %v", err)
		}
	})
	if _, err := d.api.ContainerStart(d.ctx(t), c.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
	return c.ID
}

// result is the exit code and the output of a program.
type result struct {
	code           int
	stdout, stderr string
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d\nstdout: %s\nstderr: %s", r.code, r.stdout, r.stderr)
}

// run runs a program of the image to its end.
func (d *docker) run(t *testing.T, program string, args ...string) result {
	t.Helper()
	id := d.start(t, nil, program, args...)
	wait := d.api.ContainerWait(d.ctx(t), id, client.ContainerWaitOptions{})
	select {
	case end := <-wait.Result:
		r := d.logs(t, id)
		r.code = int(end.StatusCode)
		return r
	case err := <-wait.Error:
		t.Fatalf("%s %q: %v\n%v", program, args, err, d.logs(t, id))
		panic("unreachable")
	}
}

func (d *docker) logs(t *testing.T, id string) result {
	r, err := d.api.ContainerLogs(d.ctx(t), id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true})
	if err != nil {
		return result{stderr: err.Error()}
	}
	defer r.Close()
	var stdout, stderr bytes.Buffer
	if _, err := stdcopy.StdCopy(&stdout, &stderr, r); err != nil {
		return result{stderr: err.Error()}
	}
	return result{stdout: stdout.String(), stderr: stderr.String()}
}

// stop sends SIGTERM and expects exit code 0.
func (d *docker) stop(t *testing.T, id string) {
	t.Helper()
	seconds := int(within.Seconds())
	if _, err := d.api.ContainerStop(d.ctx(t), id, client.ContainerStopOptions{Timeout: &seconds}); err != nil {
		t.Fatal(err)
	}
	c, err := d.api.ContainerInspect(d.ctx(t), id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s := c.Container.State; s.ExitCode != 0 || s.OOMKilled {
		t.Errorf("stopped with SIGTERM: exit code %d, want 0\n%v", s.ExitCode, d.logs(t, id))
	}
}

// owner returns the owner of a file in a container.
func (d *docker) owner(t *testing.T, id, path string) (uid, gid int) {
	t.Helper()
	r, err := d.api.CopyFromContainer(d.ctx(t), id, client.CopyFromContainerOptions{SourcePath: path})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Content.Close()
	h, err := tar.NewReader(r.Content).Next()
	if err != nil {
		t.Fatal(err)
	}
	return h.Uid, h.Gid
}

func (d *docker) eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !f(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}
