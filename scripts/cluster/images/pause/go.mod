module trainyard/pause

go 1.26.0
