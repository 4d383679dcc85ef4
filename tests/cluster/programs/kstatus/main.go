// Command kstatus says of each object on its standard input, one JSON document after the other, what Flux's own library makes
// of it: `Current: Resource is current`, one line each.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	decoder := json.NewDecoder(in)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read an object: %w", err)
		}
		result, err := status.Compute(object)
		if err != nil {
			return fmt.Errorf("compute the status of %s: %w", object.GetName(), err)
		}
		fmt.Fprintf(out, "%s: %s\n", result.Status, result.Message)
	}
}
