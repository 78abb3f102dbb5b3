package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/fencepost/fencepost"
	"github.com/fencepost/fencepost/cmd/internal/cli"
	"github.com/fencepost/fencepost/cmd/internal/ops"
	"github.com/fencepost/fencepost/cmd/internal/store"
	"github.com/fencepost/fencepost/cmd/internal/ui"
	"github.com/fencepost/fencepost/internal/backlog"
	"github.com/fencepost/fencepost/internal/printable"
	"github.com/spf13/cobra"
)

const uiStop = 3 * time.Second // for responses in progress when the program ends

// uiFlags are the flags of fencepost ui.
type uiFlags struct {
	url, dir, store *string
	listen          string
	hosts           []string
	pages           ui.Flags
	write           bool
	writers         []string
	refresh         time.Duration
	most            cli.Count
	log             *cli.LogFlags
}

func uiCommand() *cobra.Command { return new(uiFlags).command() }

func (f *uiFlags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Browse types, files, messages, dead letters, workers and locks, and act on them",
		Long: `Ui serves web pages that show everything in the queue and in the files, and prints their address. Open pages update
automatically. It ends with the first signal.

With --write the pages have actions: pause, resume, limit and purge types, requeue and remove dead letters, remove delayed
messages, release locks. Each does the same as the command of that name. It first shows what will happen, and to how many messages; it is
logged with its user and reason. Without --write nothing can be changed; with --writers only the users that it names can make changes.

By default it answers this machine only and requires no password. To be reachable from other machines it needs --auth-file, or a proxy that
checks the password and names the user in a header (--user-header, --proxy). It has no TLS; use a proxy for that as well.

It shows the files in --dir on this machine, or in --store. For other files it says where they are.

While no page is open it does not query the server. Otherwise it costs two reads of index entries per type and refresh, a few at a time, no
matter how many pages are open.`,
		Example: `  fencepost ui
  fencepost ui --write
  fencepost ui --url mongodb://localhost/shop --store mongodb: --listen :8080
  fencepost ui --listen 0.0.0.0:9095 --auth-file users --hide-payloads --write --writers anna,bob`,
		Args: cli.NoArgs,
	}
	f.url = cli.URLFlag(cmd)
	f.dir = cmd.Flags().String("dir", "data", "directory of the files")
	f.store = store.Flag(cmd)
	cmd.Flags().StringVar(&f.listen, "listen", "127.0.0.1:9095", "address of the pages; port 0 takes a free one")
	cmd.Flags().StringSliceVar(&f.hosts, "listen-host", nil, "host name accepted in requests, in addition to the machine's own and names without a dot; repeatable")
	cmd.Flags().BoolVar(&f.write, "write", false, "offer actions on the pages; without it nothing can be changed there")
	cmd.Flags().StringSliceVar(&f.writers, "writers", nil, "with --write: only these users may act, all others only read; repeatable")
	f.pages.Add(cmd, "")
	cmd.Flags().DurationVar(&f.refresh, "refresh", 2*time.Second, "refresh interval")
	f.most = backlog.DefaultMax
	cmd.Flags().Var(&f.most, "count-up-to", "count at most this many messages per type")
	f.log = cli.AddLogFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(cmd); err != nil {
			return err
		}
		return withBackend(cmd, *f.url, func(ctx context.Context, b *fencepost.Backend) error { return f.serve(ctx, cmd, b) })
	}
	return cmd
}

func (f *uiFlags) check(cmd *cobra.Command) error {
	writers := cmd.Flags().Lookup("writers")
	switch {
	case f.most < 1:
		return cli.Usagef("--count-up-to %d: count at least 1", f.most)
	case f.refresh < 500*time.Millisecond:
		return cli.Usagef("--refresh %v is too often; use at least 500ms", f.refresh)
	case len(f.writers) > 0 && !f.write:
		return cli.Usagef("--writers requires --write: it says which users may act")
	case writers.Changed && len(f.writers) == 0 && f.write:
		return cli.Usagef("%s names no user; name the users who may act, or leave out --write", cli.Where(writers))
	}
	if err := cmp.Or(ops.CheckHosts(f.hosts), store.CheckFlags(cmd, *f.store, *f.url)); err != nil {
		return err
	}
	if err := f.pages.Check(cmd, f.listen); err != nil {
		return err
	}
	return f.pages.CheckWriters(f.writers)
}

// serve serves the pages until ctx ends.
func (f *uiFlags) serve(ctx context.Context, cmd *cobra.Command, b *fencepost.Backend) error {
	var place *store.Place
	if *f.store != "" {
		var err error
		if place, err = store.Open(ctx, *f.store, *f.url); err != nil {
			return err
		}
		defer place.Close()
	}
	pages, err := openPages(f.listen, f.hosts, ui.Options{Backend: b, Files: store.FilesOf(place, *f.dir), BasePath: f.pages.BasePath, HidePayloads: f.pages.HidePayloads, Write: f.write, Writers: f.writers,
		Refresh: f.refresh, CountUpTo: int(f.most), Access: f.pages.Access, Log: f.log.Logger(cmd.ErrOrStderr())})
	if err != nil {
		return cli.Sourced(cmd.Flags().Lookup("listen"), err)
	}
	printable.Fprintf(cmd.OutOrStdout(), "%s\n", pages.address)
	select {
	case <-ctx.Done():
	case err = <-pages.served:
		err = fmt.Errorf("--listen %s: %w", f.listen, err)
	}
	pages.close()
	return err
}

// pages is a running server of the pages.
type pages struct {
	address string // the URL to open
	served  chan error
	ui      *ui.UI
	server  *http.Server
}

// openPages serves the pages until close is called.
func openPages(listen string, hosts []string, o ui.Options) (*pages, error) {
	l, host, err := ops.Open(listen)
	if err != nil {
		return nil, err
	}
	p := &pages{address: fmt.Sprintf("http://%s%s/", shownAddress(host, l.Addr()), o.BasePath), served: make(chan error, 1), ui: ui.New(o)}
	p.server = ops.NewServer(p.ui.Handler(), host, hosts)
	go func() { p.served <- p.server.Serve(l) }()
	return p, nil
}

func (p *pages) close() {
	p.ui.Close()
	ctx, cancel := context.WithTimeout(context.Background(), uiStop)
	defer cancel()
	if p.server.Shutdown(ctx) != nil {
		p.server.Close()
	}
}

// shownAddress returns the address for a user to open: where the server listens, or this machine if it listens on all addresses.
func shownAddress(host string, addr net.Addr) string {
	_, port, _ := net.SplitHostPort(addr.String())
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port)
}
