//go:build unix

package kit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// EnvGateway is the environment variable with the path of versitygw, needed if it is not in PATH: go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
const EnvGateway = "FENCEPOST_TEST_S3GATEWAY"

const (
	bucket    = "files"
	accessKey = "test" // also the secret, as in Env
)

// Objects is an object store with the S3 protocol, two addresses, and one bucket.
type Objects struct {
	What    string   // description of the store
	Targets []string // host:port

	mu       sync.Mutex
	gateways []*exec.Cmd // nil: the store is part of this program
	start    func(i int) (*exec.Cmd, error)
	closing  []func()
}

// Address returns the URL of the store at a target, or at a proxy to one.
func (o *Objects) Address(target string) string {
	return "s3://" + bucket + "/chaos?endpoint=http://" + target + "&path-style=true"
}

// StartObjects starts two versitygw gateways to one directory, and keeps their output in dir. Without that program the store is in memory, and answers at
// two addresses.
func StartObjects(ctx context.Context, dir string) (o *Objects, err error) {
	program := os.Getenv(EnvGateway)
	if program == "" {
		if program, err = exec.LookPath("versitygw"); err != nil {
			return startFake()
		}
	}
	o = &Objects{What: "two gateways of " + program + " onto one directory"}
	defer func() {
		if err != nil {
			o.Close()
		}
	}()
	// Not below dir: a process whose command line names dir counts as left behind by a run.
	data, err := os.MkdirTemp("", "fencepost-chaos-objects-")
	if err != nil {
		return nil, err
	}
	o.closing = append(o.closing, func() { os.RemoveAll(data) })
	log, err := os.Create(filepath.Join(dir, "gateways.log"))
	if err != nil {
		return nil, err
	}
	o.closing = append(o.closing, func() { log.Close() })
	for range 2 {
		free, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", "0"))
		if err != nil {
			return nil, err
		}
		o.Targets = append(o.Targets, free.Addr().String())
		free.Close()
	}
	o.start = func(i int) (*exec.Cmd, error) {
		cmd := exec.Command(program, "--access", accessKey, "--secret", accessKey, "--port", o.Targets[i], "--keep-alive", "posix", data)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd, cmd.Start()
	}
	for i := range o.Targets {
		cmd, err := o.start(i)
		if err != nil {
			return nil, err
		}
		o.gateways = append(o.gateways, cmd)
	}
	return o, o.createBucket(ctx)
}

// createBucket creates the bucket as soon as a gateway answers.
func (o *Objects) createBucket(ctx context.Context) error {
	client := s3.New(s3.Options{
		Region: "us-east-1", UsePathStyle: true, BaseEndpoint: aws.String("http://" + o.Targets[0]),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: accessKey, SecretAccessKey: accessKey}, nil
		}),
	})
	for {
		_, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String(bucket)})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no gateway answers: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func startFake() (*Objects, error) {
	o := &Objects{What: "a store in memory (gofakes3) at two addresses: there is no versitygw"}
	backend := s3mem.New()
	if err := backend.CreateBucket(bucket); err != nil {
		return nil, err
	}
	for range 2 {
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", "0"))
		if err != nil {
			o.Close()
			return nil, err
		}
		server := &http.Server{Handler: gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()}
		go func() { _ = server.Serve(ln) }()
		o.Targets = append(o.Targets, ln.Addr().String())
		o.closing = append(o.closing, func() { server.Close() })
	}
	return o, nil
}

// CanFail reports whether the gateways are processes, so that Kill and Freeze work.
func (o *Objects) CanFail() bool { return o.gateways != nil }

// Kill kills a gateway; the returned function starts it again.
func (o *Objects) Kill(i int) (again func() error, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.end(o.gateways[i]); err != nil {
		return nil, err
	}
	return func() (err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.gateways[i], err = o.start(i)
		return err
	}, nil
}

func (o *Objects) end(gateway *exec.Cmd) error {
	if gateway.ProcessState != nil {
		return nil
	}
	if err := gateway.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = gateway.Wait()
	return nil
}

// Freeze stops a gateway; the returned function resumes it.
func (o *Objects) Freeze(i int) (thaw func() error, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.gateways[i].Process
	return func() error { return p.Signal(syscall.SIGCONT) }, p.Signal(syscall.SIGSTOP)
}

// Close removes the store.
func (o *Objects) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, g := range o.gateways {
		_ = o.end(g)
	}
	for _, f := range o.closing {
		f()
	}
}
