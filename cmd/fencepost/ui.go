package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/ops"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/cmd/internal/ui"
	"github.com/fencepost/fencepost/internal/backlog"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/fencepost/fencepost/worker"
	"github.com/spf13/cobra"
)

const (
	uiStop        = 3 * time.Second // for answers under way when the program ends
	mostUsersFile = 1 << 20         // bytes
)

// uiFlags are those of fencepost ui.
type uiFlags struct {
	url, dir, store  *string
	listen, basePath string
	hosts, proxies   []string
	authFile, header string
	hide             bool
	refresh          time.Duration
	most             int
	log              *cli.LogFlags
	access           ui.Access
}

func uiCommand() *cobra.Command { return new(uiFlags).command() }

func (f *uiFlags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Look at types, files, messages, dead letters, workers and locks with a browser",
		Long: `Ui serves pages about everything that is in the queue and in the files, and prints their address. They stay true while they are
open. Nothing can be changed there. It ends with the first signal.

It answers this machine only, and asks for no password. To be reached from other machines it needs --auth-file, or a proxy that has asked for
the password and names the user in a header (--user-header, --proxy). It has no TLS: that is a proxy's, too.

Files are shown where this program reaches them: in --dir on this machine, or in --store. Of others it says where they are.

While nobody looks it asks the server nothing. While somebody does it costs two reads of index entries per type and refresh, a few at
a time, however many look.`,
		Example: `  fencepost ui
  fencepost ui --url mongodb://localhost/shop --store mongodb: --listen :8080
  fencepost ui --listen 0.0.0.0:9095 --auth-file users --hide-payloads`,
		Args: cli.NoArgs,
	}
	f.url = cli.URLFlag(cmd)
	f.dir = cmd.Flags().String("dir", "data", "directory of the files")
	f.store = cli.StoreFlag(cmd, "the files are in a store that every machine reaches, instead of --dir")
	cmd.Flags().StringVar(&f.listen, "listen", "127.0.0.1:9095", "address of the pages; port 0 takes a free one")
	cmd.Flags().StringSliceVar(&f.hosts, "listen-host", nil, "host name under which the pages may be asked for, beside the machine's own and names without a dot; repeatable")
	cmd.Flags().StringVar(&f.basePath, "base-path", "", "path under which a proxy shows the pages, as in /fencepost")
	cmd.Flags().BoolVar(&f.hide, "hide-payloads", false, "show no payloads and no values of headers")
	cmd.Flags().StringVar(&f.authFile, "auth-file", "", "file of users: lines of name and bcrypt hash, as htpasswd -nB prints them")
	cmd.Flags().StringVar(&f.header, "user-header", "", "header in which a trusted proxy names the user, as in X-Forwarded-User; requests without it are refused")
	cmd.Flags().StringSliceVar(&f.proxies, "proxy", []string{"127.0.0.1", "::1"}, "address or network of a proxy whose --user-header is believed; repeatable")
	cmd.Flags().DurationVar(&f.refresh, "refresh", 2*time.Second, "refresh interval")
	cmd.Flags().IntVar(&f.most, "count-up-to", backlog.DefaultMax, "count at most this many messages per type")
	f.log = cli.AddLogFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.FromEnv(cmd); err != nil {
			return err
		}
		if err := f.check(cmd); err != nil {
			return err
		}
		return withBackend(cmd, *f.url, func(ctx context.Context, b *fencepost.Backend) error { return f.serve(ctx, cmd, b) })
	}
	return cmd
}

// basePath is what a path in front of all others may look like.
var basePath = regexp.MustCompile(`^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$`)

func (f *uiFlags) check(cmd *cobra.Command) error {
	f.basePath = strings.TrimSuffix(f.basePath, "/")
	switch {
	case f.most < 1:
		return cli.Usagef("--count-up-to %d: count at least 1", f.most)
	case f.refresh < 500*time.Millisecond:
		return cli.Usagef("--refresh %v is too often; use at least 500ms", f.refresh)
	case f.basePath != "" && !basePath.MatchString(f.basePath):
		return cli.Usagef("--base-path %q is not a path; write it as in /fencepost, of letters, digits, dots and dashes", f.basePath)
	case f.authFile != "" && f.header != "":
		return cli.Usagef("--auth-file and --user-header cannot be combined: either this program asks for the password, or the proxy does")
	case f.header == "" && cmd.Flags().Changed("proxy"):
		return cli.Usagef("--proxy goes with --user-header: it says whose header is believed")
	}
	if err := cli.NoDirWithStore(cmd); err != nil {
		return err
	}
	if *f.store != "" {
		if err := store.Check(*f.store, *f.url); err != nil {
			return err
		}
	}
	if err := f.checkAccess(); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(f.listen)
	if err != nil {
		return nil // opening it tells what is wrong
	}
	// rule: what other machines reach asks for a password: everybody could read every message.
	if f.access.Users == nil && f.access.Header == "" && !loopback(host) {
		return cli.Usagef("--listen %s is reached from other machines, and everybody there could read the messages; ask for a password with --auth-file, "+
			"let a proxy do it with --user-header, or listen on 127.0.0.1", f.listen)
	}
	return nil
}

// loopback tells whether a host of --listen is this machine only.
func loopback(host string) bool {
	if host == "" || strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

func (f *uiFlags) checkAccess() error {
	f.access = ui.Access{Header: f.header}
	if f.header != "" && !regexp.MustCompile(`^[A-Za-z0-9-]+$`).MatchString(f.header) {
		return cli.Usagef("--user-header %q is not the name of a header; write it as in X-Forwarded-User", f.header)
	}
	for _, p := range f.proxies {
		prefix, err := netip.ParsePrefix(p)
		if addr, errAddr := netip.ParseAddr(p); errAddr == nil {
			prefix, err = netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()), nil
		}
		if err != nil {
			return cli.Usagef("--proxy %q is neither an address nor a network; write it as in 10.1.2.3 or 10.0.0.0/8", p)
		}
		f.access.Proxies = append(f.access.Proxies, prefix)
	}
	if f.authFile == "" {
		return nil
	}
	text, err := os.ReadFile(f.authFile)
	if err != nil {
		return cli.Usagef("--auth-file: %w", err)
	}
	if len(text) > mostUsersFile {
		return cli.Usagef("--auth-file %s is larger than %d bytes; is it the right one?", f.authFile, mostUsersFile)
	}
	if f.access.Users, err = ui.ParseUsers(text); err != nil {
		return cli.Usagef("--auth-file %s: %w", f.authFile, err)
	}
	return nil
}

// serve answers until ctx ends.
func (f *uiFlags) serve(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend) error {
	files := ui.Files{Dir: *f.dir, Place: worker.Place(nil, *f.dir)}
	if *f.store != "" {
		place, err := store.Open(ctx, *f.store, *f.url)
		if err != nil {
			return err
		}
		defer place.Close()
		files = ui.Files{Until: place.Until, Dir: place.Dir, Place: worker.Place(place.FS, place.Dir), Name: place.Name}
	}
	l, host, err := ops.Open(f.listen)
	if err != nil {
		return err
	}
	pages := ui.New(ui.Options{Backend: b, Files: files, BasePath: f.basePath, HidePayloads: f.hide, Refresh: f.refresh, CountUpTo: f.most,
		Access: f.access, Log: f.log.Logger(cmd.ErrOrStderr())})
	server := ops.NewServer(pages.Handler(), host, f.hosts)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	printable.Fprintf(cmd.OutOrStdout(), "http://%s%s/\n", shownAddress(host, l.Addr()), f.basePath)
	select {
	case <-ctx.Done():
	case err = <-served:
		err = fmt.Errorf("--listen %s: %w", f.listen, err)
	}
	pages.Close()
	stopCtx, cancel := context.WithTimeout(context.Background(), uiStop)
	defer cancel()
	if server.Shutdown(stopCtx) != nil {
		server.Close()
	}
	return err
}

// shownAddress is what a person opens: an address where the server listens, or this machine where it listens on all of them.
func shownAddress(host string, addr net.Addr) string {
	_, port, _ := net.SplitHostPort(addr.String())
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port)
}
