package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	core "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// judgement is what Pod Security says of a pod at level `restricted`: whether it is allowed, and the checks
// that refuse it, those included that another check of this level stands for.
type judgement struct {
	Allowed bool             `json:"allowed"`
	Checks  []policy.CheckID `json:"checks"`
}

func judge(evaluator policy.Evaluator, checks []policy.Check, pod *core.Pod) judgement {
	level := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	results := evaluator.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec)
	found := judgement{Allowed: policy.AggregateCheckResults(results).Allowed, Checks: []policy.CheckID{}}
	for _, check := range checks {
		latest := check.Versions[len(check.Versions)-1]
		if !latest.CheckPod(&pod.ObjectMeta, &pod.Spec).Allowed {
			found.Checks = append(found.Checks, check.ID)
		}
	}
	return found
}

// newPodSecurity is the admission of pods without an API server: `pod-security` writes the names of all
// checks as a line of JSON, and a judgement for each pod on its standard input.
func newPodSecurity() *cobra.Command {
	run := func(command *cobra.Command, _ []string) error {
		checks := policy.DefaultChecks()
		evaluator, err := policy.NewEvaluator(checks, nil)
		if err != nil {
			return err
		}
		names := []policy.CheckID{}
		for _, check := range checks {
			names = append(names, check.ID)
		}
		answers := json.NewEncoder(command.OutOrStdout())
		if err := answers.Encode(names); err != nil {
			return err
		}
		pods := json.NewDecoder(command.InOrStdin())
		for {
			var pod core.Pod
			if err := pods.Decode(&pod); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return fmt.Errorf("read a pod: %w", err)
			}
			if err := answers.Encode(judge(evaluator, checks, &pod)); err != nil {
				return err
			}
		}
	}
	return &cobra.Command{Use: "pod-security", Args: cobra.NoArgs, RunE: run}
}
