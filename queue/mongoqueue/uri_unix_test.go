//go:build unix

package mongoqueue_test

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/queue/mongoqueue"
)

// The driver would wait for a pipe forever, even after its context has ended.
func TestFilesOfTheURLAreFiles(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "a pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, option := range []string{"tlsCAFile", "tlsCertificateKeyFile", "sslCertificateAuthorityFile", "sslClientCertificateKeyFile",
		"tlsPrivateKeyFile=/none&tlsCertificateFile", "tlsCertificateFile=/none;tlsPrivateKeyFile"} {
		opened := make(chan error, 1)
		go func() {
			_, err := mongoqueue.Open(t.Context(), "mongodb://bob:s3cret@h/db?tls=true&"+option+"="+strings.ReplaceAll(pipe, " ", "%20"), mongoqueue.Options{})
			opened <- err
		}()
		select {
		case err := <-opened:
			if name := option[strings.LastIndexAny(option, "&;")+1:]; !errors.Is(err, queue.ErrInvalidURL) || !strings.Contains(err.Error(), name+"="+pipe) ||
				strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: %v", option, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: it waits forever", option)
		}
	}
}
