//go:build !unix

package sqlitedb

func isReadOnlyFS(error) bool { return false }

func isNoSpace(error) bool { return false }
