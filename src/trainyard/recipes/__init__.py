"""Named settings. Each file's header says where they come from, the published accuracy, and what was run."""
