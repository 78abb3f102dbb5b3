//go:build !unix

package dirslots

import "os"

const openFlags = 0

// names cannot tell here. An answer that was lost and repeated stays unclear.
func names(os.FileInfo) uint64 { return 0 }
