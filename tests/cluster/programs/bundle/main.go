// Command bundle says what the Operator Lifecycle Manager's own library finds wrong with the bundle in a folder, one line each:
// `error: ..` or `warning: ..`.
package main

import (
	"fmt"
	"os"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 1 {
		return fmt.Errorf("expected the folder of a bundle, got %d arguments", len(arguments))
	}
	bundle, err := manifests.GetBundleFromDir(arguments[0])
	if err != nil {
		return fmt.Errorf("read the bundle in %s: %w", arguments[0], err)
	}
	validators := validation.DefaultBundleValidators.WithValidators(
		validation.OperatorHubV2Validator,
		validation.StandardCapabilitiesValidator,
		validation.StandardCategoriesValidator,
	)
	for _, result := range validators.Validate(bundle.ObjectsToValidate()...) {
		for _, found := range result.Errors {
			fmt.Printf("error: %s\n", found.Error())
		}
		for _, found := range result.Warnings {
			fmt.Printf("warning: %s\n", found.Error())
		}
	}
	return nil
}
