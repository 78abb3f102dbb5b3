//go:build !linux

package lock

// processIdentity is unknown on this system: only the lease shows that a holder is dead.
func processIdentity(int) (boot, namespace, started string) { return "", "", "" }

func processStarted(int) (started string, gone, known bool) { return "", false, false }
