"""What make demo plays, and the check of what came out."""
