"""Who holds which page, slot and snapshot, and where a prompt may start. Never imports torch."""
