module trainyard.invalid/trainer-2.1

go 1.26

// For its CRDs alone: no program of it is built.
require github.com/kubeflow/trainer/v2 v2.1.0
