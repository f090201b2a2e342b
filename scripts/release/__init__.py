"""Read one Helm release's objects with the user's own kubeconfig: why it waits or failed, and how far it is."""
