//go:build !linux

package lock

// processIdentity returns nothing on this system: only an expired lease shows that a holder is dead.
func processIdentity(int) (boot, namespace, started string) { return "", "", "" }

func processStarted(int) (started string, gone, known bool) { return "", false, false }
