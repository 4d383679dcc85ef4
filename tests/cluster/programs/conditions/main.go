// Command conditions says of each line on its standard input what Argo Workflows makes of a resource under conditions: the line
// is a JSON document {"success": ..., "failure": ..., "object": ...}, and the answer one of `succeeded`, `failed` and `waiting`.
// Conditions are selectors of labels, whose labels are paths of the object: both libraries are those that Argo's executor uses
// (workflow/executor/resource.go).
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/labels"
)

type question struct {
	Success string          `json:"success"`
	Failure string          `json:"failure"`
	Object  json.RawMessage `json:"object"`
}

// fields are the fields of an object as labels.
type fields struct{ object []byte }

func (f fields) Has(path string) bool { return gjson.GetBytes(f.object, path).Exists() }

func (f fields) Get(path string) string { return gjson.GetBytes(f.object, path).String() }

func (f fields) Lookup(path string) (string, bool) {
	found := gjson.GetBytes(f.object, path)
	return found.String(), found.Exists()
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	decoder := json.NewDecoder(in)
	for {
		var question question
		if err := decoder.Decode(&question); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a question: %w", err)
		}
		answer, err := answer(question)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, answer)
	}
}

// answer: one requirement of failure is enough to fail, and success needs all of its requirements.
func answer(question question) (string, error) {
	object := fields{question.Object}
	failure, err := requirements(question.Failure)
	if err != nil {
		return "", err
	}
	for _, requirement := range failure {
		if requirement.Matches(object) {
			return "failed", nil
		}
	}
	success, err := requirements(question.Success)
	if err != nil {
		return "", err
	}
	for _, requirement := range success {
		if !requirement.Matches(object) {
			return "waiting", nil
		}
	}
	return "succeeded", nil
}

func requirements(condition string) (labels.Requirements, error) {
	selector, err := labels.Parse(condition)
	if err != nil {
		return nil, fmt.Errorf("read the condition %q: %w", condition, err)
	}
	requirements, _ := selector.Requirements()
	return requirements, nil
}
