package main

import (
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost/cmd/internal/store"
)

// The deployment of fencepost serve. A test of cmd/fencepost checks that it has these flags.

const servePort = "9096"

// serveArgs checks the arguments, and that it gets enough time to finish requests before it is killed. It returns the values.
func (f *findings) serveArgs(args []string, killedAfter time.Duration) map[string]string {
	flags := map[string]string{"stop-timeout": "30s"}
	for _, a := range args {
		name, value, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		flags[name] = value
	}
	if want := "0.0.0.0:" + servePort; flags["listen"] != want {
		f.add("--listen is %q, want %s", flags["listen"], want)
	}
	if stop, err := time.ParseDuration(flags["stop-timeout"]); err != nil || killedAfter < stop+5*time.Second {
		f.add("killed after %v, which should be 5 s more than --stop-timeout %s", killedAfter, flags["stop-timeout"])
	}
	return flags
}

func (f *findings) checkServe(c cluster, i image) {
	f.where = "serve"
	if len(c.pods) != 1 || c.service == nil || c.budget == nil || len(c.claims) > 0 {
		f.add("want a workload, a Service and a PodDisruptionBudget, and no claim")
		return
	}
	w := c.pods[0]
	own := w.Spec.Template.Metadata.Labels
	if !c.budget.Spec.Selector.MatchLabels.in(own) || c.budget.Spec.MaxUnavailable < 1 {
		f.add("the budget has to select the pods, and to let a node be drained")
	}
	pod := f.pod(w, i, servePort)
	if pod == nil {
		return
	}
	if p := c.service.Spec.Ports; !c.service.Spec.Selector.in(own) || len(p) != 1 || p[0].TargetPort != pod.Ports[0].Name {
		f.add("the service has to lead to the pods, at port %s", pod.Ports[0].Name)
	}
	if !slices.Equal(pod.Command, []string{"fencepost", "serve"}) {
		f.add("runs %q, want fencepost serve: the image's own program is the worker", pod.Command)
	}
	flags := f.serveArgs(pod.Args, time.Duration(w.Spec.Template.Spec.TerminationGracePeriodSeconds)*time.Second)
	for _, name := range []string{"token-file", "tls-cert", "tls-key"} {
		if !slices.ContainsFunc(pod.VolumeMounts, func(m volumeMount) bool { return m.ReadOnly && strings.HasPrefix(flags[name], m.MountPath+"/") }) {
			f.add("--%s %q is in no read-only volume", name, flags[name])
		}
	}
	for _, v := range w.Spec.Template.Spec.Volumes {
		if v.Secret.Name == "" || v.Secret.Mode != 0o440 {
			f.add("volume %s is not a secret readable for the group alone", v.Name)
		}
	}
	for _, p := range []probe{pod.ReadinessProbe, pod.LivenessProbe} {
		if p.HTTPGet.Scheme != "HTTPS" {
			f.add("a probe asks without TLS")
		}
	}
	if err := store.Check(pod.store(), "mongodb://db/shop"); err != nil || pod.store() == "" {
		f.add("FENCEPOST_STORE %q is not the address of a store: %v", pod.store(), err)
	}
}

func (f *findings) composeServe(s composeService) {
	if !slices.Equal(s.Profiles, []string{"http"}) {
		f.add("it has to be asked for, as it needs a file of tokens: want the profile http")
	}
	if want := []string{"127.0.0.1:" + servePort + ":" + servePort}; !slices.Equal(s.Ports, want) {
		f.add("ports %v, want %v: without TLS it is for this machine alone", s.Ports, want)
	}
	if !slices.Equal(s.Entrypoint, []string{"fencepost", "serve"}) {
		f.add("runs %q, want fencepost serve", s.Entrypoint)
	}
	flags := f.serveArgs(s.Command, s.StopGracePeriod)
	if file := flags["token-file"]; !slices.ContainsFunc(s.Volumes, func(v string) bool {
		_, inside, _ := strings.Cut(v, ":")
		dir, readOnly := strings.CutSuffix(inside, ":ro")
		return readOnly && strings.HasPrefix(file, dir+"/")
	}) {
		f.add("--token-file %q is in no directory that is mounted read-only; a file that is mounted itself stays as it was when an editor puts another in its place", file)
	}
	if test := s.Healthcheck.Test; len(test) != 4 || test[3] != "http://127.0.0.1:"+servePort+"/readyz" {
		f.add("the health check is %q, want fencepost healthcheck with the address of /readyz", test)
	}
}
