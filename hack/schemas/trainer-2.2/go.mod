module trainyard.invalid/trainer-2.2

go 1.26

// For its CRDs alone: no program of it is built.
require github.com/kubeflow/trainer/v2 v2.2.1
