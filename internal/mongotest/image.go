package mongotest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/moby/moby/client"
)

const (
	defaultImage = "mongo:8"
	pullTimeout  = 5 * time.Minute
)

// image selects the image to use, and makes sure that it exists. MongoDB itself is preferred; but an image that was
// built here earlier precedes another attempt to pull, which failed then.
func (d *docker) image(ctx context.Context, o Options) (string, error) {
	if image := os.Getenv(EnvImage); image != "" {
		if d.hasImage(ctx, image) {
			return image, nil
		}
		if err := d.pull(ctx, image, o); err != nil {
			return "", fmt.Errorf("%s=%s: %w", EnvImage, image, err)
		}
		return image, nil
	}
	if d.hasImage(ctx, defaultImage) {
		return defaultImage, nil
	}
	built, builtErr := buildScript(ctx, nil, "--tag") // fails outside the source tree or without bash
	if builtErr == nil && d.hasImage(ctx, built) {
		return built, nil
	}
	pullErr := d.pull(ctx, defaultImage, o)
	if pullErr == nil {
		return defaultImage, nil
	}
	if builtErr != nil {
		return "", errors.Join(pullErr, builtErr)
	}
	if !o.Build {
		return "", fmt.Errorf("%w; and integration/mongo-image/build.sh has not been run", pullErr)
	}
	o.logf("%v; building a compatible one from Debian's packages, about two minutes", pullErr)
	built, buildErr := buildScript(ctx, o.Log)
	if buildErr != nil {
		return "", errors.Join(pullErr, buildErr)
	}
	return built, nil
}

func (d *docker) hasImage(ctx context.Context, image string) bool {
	_, err := d.api.ImageInspect(ctx, image)
	return err == nil
}

// pull tries once. Where no registry is reachable, testcontainers-go would keep trying until its context ends.
func (d *docker) pull(ctx context.Context, image string, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	o.logf("pulling %s", image)
	r, err := d.api.ImagePull(ctx, image, client.ImagePullOptions{})
	if err == nil {
		err = r.Wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("image %s is not here and cannot be pulled: %w", image, err)
	}
	return nil
}

// tree makes sure that the tree for the chroot exists and returns its path.
func tree(ctx context.Context, o Options) (string, error) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return "", errors.New("a chroot needs root on Linux")
	}
	if path, err := buildScript(ctx, nil, "--tree-if-built"); err != nil || path != "" {
		return path, err
	}
	if !o.Build {
		return "", errors.New("'integration/mongo-image/build.sh --tree' has not been run")
	}
	o.logf("building a server from Debian's packages for a chroot, about two minutes")
	return buildScript(ctx, o.Log, "--tree")
}

// buildScript runs integration/mongo-image/build.sh, which prints what it made or found on standard output.
func buildScript(ctx context.Context, log io.Writer, args ...string) (string, error) {
	script, err := imageFile("build.sh")
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "bash", append([]string{script}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if log != nil {
		cmd.Stderr = io.MultiWriter(log, &stderr)
	}
	cmd.WaitDelay = 5 * time.Second // a process that it started may hold its standard error
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("integration/mongo-image/build.sh: %w: %s", err, lastLine(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// imageFile returns the path of a file of integration/mongo-image.
func imageFile(name string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "integration", "mongo-image", name)
	if _, err := os.Stat(path); err != nil {
		return "", err
	}
	return path, nil
}

// moduleRoot finds the source tree from the working directory, which for a test is the folder of its package. The path
// compiled into the binary would work only without -trimpath.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		// Not go.mod alone: the module of the benchmarks is nested in the intended one.
		if _, err := os.Stat(filepath.Join(dir, "integration", "mongo-image", "build.sh")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("the working directory is not inside Fencepost's source tree")
		}
		dir = parent
	}
}
