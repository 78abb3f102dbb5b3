package lock

import (
	"crypto/rand"
	"encoding/hex"
	"os"
)

// ThisProcess describes the running process. Instance is random; it differs with every call.
func ThisProcess() Process {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	var b [6]byte
	_, _ = rand.Read(b[:])
	o := Process{Host: host, PID: os.Getpid(), Instance: hex.EncodeToString(b[:])}
	o.Boot, o.PIDNamespace, o.Started = processIdentity(o.PID)
	return o
}

// provablyDead reports whether holder ran on the same boot of the same machine and in the same PID
// namespace as self, and has ended: its PID is not in use, or is in use by a process that started at
// another time. If anything is unknown it returns false.
//
// rule: a machine cloned while running has the same boot ID and namespaces as the original. The host name tells them apart; if the
// machine was renamed meanwhile, a waiter has to wait for the dead holder's lease.
func provablyDead(self, holder Process) bool {
	if self.Boot == "" || self.PIDNamespace == "" || holder.Started == "" || holder.PID <= 0 ||
		holder.Host != self.Host || holder.Boot != self.Boot || holder.PIDNamespace != self.PIDNamespace {
		return false
	}
	started, gone, known := processStarted(holder.PID)
	return known && (gone || started != holder.Started)
}
