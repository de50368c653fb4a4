"""Who holds which state slot (pages and snapshots join in a later release). Never imports torch."""
