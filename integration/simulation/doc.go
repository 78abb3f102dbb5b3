// Package simulation plays random schedules of faults against the whole of Fencepost in virtual time. It holds tests only.
package simulation
