package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// driver offers devices that are nothing but names, and keeps a file for each claim that a pod of this node
// holds.
type driver struct {
	folder string
}

func (d driver) PrepareResourceClaims(
	_ context.Context, claims []*resource.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	prepared := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		var result kubeletplugin.PrepareResult
		for _, device := range claim.Status.Allocation.Devices.Results {
			result.Devices = append(result.Devices, kubeletplugin.Device{
				Requests: []string{device.Request}, PoolName: device.Pool, DeviceName: device.Device,
			})
		}
		result.Err = os.WriteFile(filepath.Join(d.folder, claim.Name), nil, 0o600)
		prepared[claim.UID] = result
	}
	return prepared, nil
}

func (d driver) UnprepareResourceClaims(
	_ context.Context, claims []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	unprepared := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(filepath.Join(d.folder, claim.Name))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		unprepared[claim.UID] = err
	}
	return unprepared, nil
}

func (d driver) HandleError(_ context.Context, err error, message string) {
	os.Stderr.WriteString(message + ": " + err.Error() + "\n")
}

// newDeviceDriver is a driver for dynamic resource allocation: `device-driver NAME NODE KUBELET FOLDER
// DEVICE...` offers the devices on a node whose kubelet keeps its files in the folder KUBELET.
func newDeviceDriver() *cobra.Command {
	run := func(command *cobra.Command, words []string) error {
		name, node, kubelet, folder, devices := words[0], words[1], words[2], words[3], words[4:]
		config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
		if err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		plugins := filepath.Join(kubelet, "plugins", name)
		if err := os.MkdirAll(plugins, 0o700); err != nil {
			return err
		}
		plugin, err := kubeletplugin.Start(command.Context(), driver{folder},
			kubeletplugin.DriverName(name), kubeletplugin.NodeName(node), kubeletplugin.KubeClient(client),
			kubeletplugin.RegistrarDirectoryPath(filepath.Join(kubelet, "plugins_registry")),
			kubeletplugin.PluginDataDirectoryPath(plugins),
		)
		if err != nil {
			return err
		}
		var slice resourceslice.Slice
		for _, device := range devices {
			slice.Devices = append(slice.Devices, resource.Device{Name: device})
		}
		pools := map[string]resourceslice.Pool{node: {Slices: []resourceslice.Slice{slice}}}
		if err := plugin.PublishResources(command.Context(), resourceslice.DriverResources{Pools: pools}); err != nil {
			return err
		}
		<-command.Context().Done()
		return nil
	}
	return &cobra.Command{Use: "device-driver", Args: cobra.MinimumNArgs(5), RunE: run}
}
