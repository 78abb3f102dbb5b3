// Package integration runs the real programs as processes against the real backends, breaks things around them, and checks
// what is in the files afterwards. It holds tests only.
package integration
