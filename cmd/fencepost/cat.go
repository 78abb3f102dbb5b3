package main

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/fencepost/fencepost/internal/cli"
	"github.com/fencepost/fencepost/queue"
	"github.com/fencepost/fencepost/storage"
	"github.com/spf13/cobra"
)

func catCommand() *cobra.Command {
	format := cli.NewOneOf("lines", "json", "len32", "raw")
	var limit cli.Count
	var from uint64
	cmd := &cobra.Command{
		Use:   "cat FILE…",
		Short: "Print the messages of files",
		Long: `Cat prints the messages of files to stdout, in file order. It is safe on a file that is being written to: it prints what
is there. At damage below what was known to be durable it stops with exit code 3.

Formats: lines (the payload and a newline), raw (the payload and nothing else), len32 (the payload behind its length, 32
bit big endian: what producer publish --format len32 reads), json (one object per line with index, id, time, epoch, headers,
and payload, or payload_base64 where it is not UTF-8 text).`,
		Example: `  fencepost cat data/words.fpl | sort | uniq -c
  fencepost cat --format json --from 1000 --count 10 data/orders.fpl | jq .
  fencepost cat --format len32 data/orders.fpl | producer publish --type copy --format len32`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cli.FromEnv(cmd); err != nil {
				return err
			}
			if len(args) == 0 {
				return cli.Usagef("no file; name the files to print, as in fencepost cat data/orders.fpl")
			}
			out := bufio.NewWriterSize(cmd.OutOrStdout(), 1<<20)
			left := int64(limit)
			for _, path := range args {
				if err := catFile(out, path, format.Value, from, &left, limit > 0); err != nil {
					return errors.Join(err, out.Flush())
				}
			}
			return out.Flush()
		},
	}
	cmd.Flags().VarP(format, "format", "f", "how messages are printed")
	cmd.Flags().Uint64Var(&from, "from", 0, "start at this index")
	cmd.Flags().VarP(&limit, "count", "n", "print at most this many; 0 is no bound")
	return cmd
}

func catFile(w *bufio.Writer, path, format string, from uint64, left *int64, limited bool) error {
	r, err := storage.OpenReader(path, storage.ReaderOptions{From: from})
	if err != nil {
		return err
	}
	defer r.Close()
	for !limited || *left > 0 {
		rec, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case rec.Index < from, rec.Kind == storage.KindSkipped:
			continue
		}
		if err := printRecord(w, format, &rec); err != nil {
			return err
		}
		*left--
	}
	return nil
}

// jsonRecord is cat's json format.
type jsonRecord struct {
	Index         uint64            `json:"index"`
	ID            string            `json:"id"`
	Time          time.Time         `json:"time"`
	Epoch         uint64            `json:"epoch"`
	AfterGap      bool              `json:"after_gap,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Payload       *string           `json:"payload,omitempty"`
	PayloadBase64 *string           `json:"payload_base64,omitempty"`
}

func printRecord(w *bufio.Writer, format string, r *storage.Record) (err error) {
	switch format {
	case "raw":
		_, err = w.Write(r.Payload)
	case "lines":
		w.Write(r.Payload)
		err = w.WriteByte('\n')
	case "len32":
		var head [4]byte
		binary.BigEndian.PutUint32(head[:], uint32(len(r.Payload)))
		w.Write(head[:])
		_, err = w.Write(r.Payload)
	case "json":
		j := jsonRecord{Index: r.Index, ID: idText(r.ID), Time: r.When().UTC(), Epoch: r.Epoch, AfterGap: r.Kind == storage.KindAfterGap}
		if len(r.Headers) > 0 {
			j.Headers = make(map[string]string, len(r.Headers))
			for _, h := range r.Headers {
				j.Headers[h.Key] = h.Value
			}
		}
		text := string(r.Payload)
		if utf8.Valid(r.Payload) {
			j.Payload = &text
		} else {
			text = base64.StdEncoding.EncodeToString(r.Payload)
			j.PayloadBase64 = &text
		}
		err = json.NewEncoder(w).Encode(j)
	}
	return err
}

// idText is the text form of a message ID; IDs of other origin are printed in hex.
func idText(b []byte) string {
	if len(b) == len(queue.ID{}) {
		return queue.ID(b).String()
	}
	return fmt.Sprintf("%x", b)
}
