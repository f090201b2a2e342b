module trainyard.invalid/argo-cd

go 1.26

// For its CRDs alone: no program of it is built.
require github.com/argoproj/argo-cd/v3 v3.5.3
