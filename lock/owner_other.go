//go:build !linux

package lock

// processIdentity is not known on this system: a dead holder is found by its lease alone.
func processIdentity(int) (boot, namespace, started string) { return "", "", "" }

func processStarted(int) (started string, gone, known bool) { return "", false, false }
