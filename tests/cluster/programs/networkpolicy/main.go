// Command networkpolicy says of each connection in the question on its standard input whether the NetworkPolicies of a cluster
// allow it. The question is a JSON document {"objects": [...], "connections": [{"from": .., "to": .., "port": .., "protocol":
// ..}]}, and the answer is a list of booleans. The evaluation is that of kube-network-policies, an implementation by Kubernetes'
// SIG Network: it gets the addresses of a packet, and finds the pods and policies of both ends itself.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kube-network-policies/pkg/api"
	"sigs.k8s.io/kube-network-policies/pkg/network"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	"sigs.k8s.io/kube-network-policies/pkg/podinfo"
)

// clientPort is the port that connections come from, which no policy names.
const clientPort = 49152

// question is a cluster and connections between addresses. Those of pods are in their statuses; all others, such as a node's,
// belong to no pod.
type question struct {
	Objects     []json.RawMessage `json:"objects"`
	Connections []connection      `json:"connections"`
}

type connection struct {
	From     net.IP        `json:"from"`
	To       net.IP        `json:"to"`
	Port     int           `json:"port"`
	Protocol core.Protocol `json:"protocol"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	var question question
	if err := json.NewDecoder(in).Decode(&question); err != nil {
		return fmt.Errorf("read the question: %w", err)
	}
	engine, err := newEngine(question.Objects)
	if err != nil {
		return err
	}
	verdicts := []bool{}
	for _, connection := range question.Connections {
		packet := network.Packet{
			Family:  core.IPv4Protocol,
			SrcIP:   connection.From,
			DstIP:   connection.To,
			Proto:   connection.Protocol,
			SrcPort: clientPort,
			DstPort: connection.Port,
		}
		isAllowed, err := engine.EvaluatePacket(context.Background(), &packet)
		if err != nil {
			return fmt.Errorf("evaluate %+v: %w", connection, err)
		}
		verdicts = append(verdicts, isAllowed)
	}
	return json.NewEncoder(out).Encode(verdicts)
}

// newEngine returns the library's evaluation over a cluster of these objects. It reads caches, which are filled here instead
// of by an API server.
func newEngine(objects []json.RawMessage) (*networkpolicy.PolicyEngine, error) {
	factory := informers.NewSharedInformerFactory(nil, 0)
	namespaces, pods := factory.Core().V1().Namespaces(), factory.Core().V1().Pods()
	policies := factory.Networking().V1().NetworkPolicies()
	resolver, err := podinfo.NewInformerResolver(pods.Informer())
	if err != nil {
		return nil, err
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, text := range objects {
		object, _, err := decoder.Decode(text, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("read an object: %w", err)
		}
		switch object := object.(type) {
		case *core.Namespace:
			err = namespaces.Informer().GetStore().Add(object)
		case *core.Pod:
			err = pods.Informer().GetStore().Add(object)
		case *networking.NetworkPolicy:
			if err = asStored(object); err == nil {
				err = policies.Informer().GetStore().Add(object)
			}
		default:
			err = fmt.Errorf("a %T has no part in network policies", object)
		}
		if err != nil {
			return nil, err
		}
	}
	provider := podinfo.NewInformerProvider(pods, namespaces, nil, []podinfo.IPResolver{resolver})
	standard := networkpolicy.NewStandardNetworkPolicy("", namespaces, pods, policies)
	return networkpolicy.NewPolicyEngine(provider, []api.PolicyEvaluator{standard}), nil
}

// asStored turns a policy into what the API server returns, which the library relies on: an empty list of rules is an absent
// one. Defaults are not set here, so a policy that leaves them to the API server is refused.
func asStored(policy *networking.NetworkPolicy) error {
	spec := &policy.Spec
	if len(spec.PolicyTypes) == 0 {
		return fmt.Errorf("policy %s has no policyTypes", policy.Name)
	}
	var ports []networking.NetworkPolicyPort
	for _, rule := range spec.Ingress {
		ports = append(ports, rule.Ports...)
	}
	for _, rule := range spec.Egress {
		ports = append(ports, rule.Ports...)
	}
	for _, port := range ports {
		if port.Protocol == nil {
			return fmt.Errorf("a port of policy %s has no protocol", policy.Name)
		}
	}
	if len(spec.Ingress) == 0 {
		spec.Ingress = nil
	}
	if len(spec.Egress) == 0 {
		spec.Egress = nil
	}
	return nil
}
