// Command kubernetes is kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy and kubelet in one program,
// which plays the part it is called by (argv[0]): what they share is compiled, linked and stored once. Each part is
// Kubernetes' own command, unchanged.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // time zones of CronJobs

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // the JSON log format
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the client
	_ "k8s.io/component-base/metrics/prometheus/version"  // metrics of the version
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var parts = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-proxy":              proxy.NewProxyCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	name := filepath.Base(os.Args[0])
	part, found := parts[name]
	if !found {
		fmt.Fprintf(os.Stderr, "%s is no part of Kubernetes; call this program by one of these names:\n", name)
		for part := range parts {
			fmt.Fprintln(os.Stderr, "  "+part)
		}
		os.Exit(2)
	}
	os.Exit(cli.Run(part()))
}
