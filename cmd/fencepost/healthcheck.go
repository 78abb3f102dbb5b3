package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/spf13/cobra"
)

func healthcheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "healthcheck [URL]",
		Short: "Check whether a worker is ready, for containers without another HTTP client",
		Long: `Healthcheck requests the URL and exits with 0 if the response is 2xx, else with 1, within --timeout. Without a URL it requests /readyz of the
worker on this machine that has the same --listen (or FENCEPOST_LISTEN).`,
		Example: `  fencepost healthcheck
  fencepost healthcheck http://127.0.0.1:9090/livez
  fencepost healthcheck http://127.0.0.1:9095/readyz   # of fencepost ui`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Usagef("unexpected argument %q; give one URL", args[1])
			}
			return nil
		},
	}
	listen := cmd.Flags().String("listen", ":9090", "the worker's --listen")
	timeout := cmd.Flags().Duration("timeout", 2*time.Second, "how long to wait for the response")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *timeout <= 0 {
			return cli.Usagef("--timeout must be greater than 0")
		}
		var target string
		if len(args) > 0 {
			target = args[0]
			if u, err := url.Parse(target); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
				return cli.Usagef("%q is not an http or https URL; write it as in http://127.0.0.1:9090/readyz", target)
			}
		} else {
			var err error
			if target, err = readyURL(*listen); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		return checkHealth(ctx, target)
	}
	return cmd
}

// readyURL returns the readiness URL of a worker on this machine that listens at addr.
func readyURL(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", cli.Usagef("--listen %q is not an address; write it as in :9090 or 127.0.0.1:9090", addr)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.Is6() {
			host = "::1"
		}
	}
	return "http://" + net.JoinHostPort(host, port) + "/readyz", nil
}

// checkHealth returns nil if target responds with 2xx. It does not follow redirects: the target of one is not the worker.
func checkHealth(ctx context.Context, target string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return cli.Usagef("%w", err)
	}
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true}, // no proxy: the worker is local
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	res, err := client.Do(req)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%s did not answer in time; is a worker with this --listen running?", target)
		}
		return fmt.Errorf("%w; is a worker with this --listen running?", err)
	}
	defer res.Body.Close()
	if res.StatusCode/100 == 2 {
		return nil
	}
	why, _ := bufio.NewReader(io.LimitReader(res.Body, 500)).ReadString('\n')
	return fmt.Errorf("%s responds with %s: %s", target, res.Status, strings.TrimSpace(why))
}
