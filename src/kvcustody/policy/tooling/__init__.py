"""What people do with a policy before it is in force: check it, ask it, test it, compare it."""
