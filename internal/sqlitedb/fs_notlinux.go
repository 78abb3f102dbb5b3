//go:build !linux

package sqlitedb

// unsafeFileSystem cannot tell on this system.
func unsafeFileSystem(string) (string, bool) { return "", false }
