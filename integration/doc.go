// Package integration runs the real programs as processes against the real backends, injects faults around them, and then
// checks the files. It holds tests only.
package integration
